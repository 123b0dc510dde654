"""CandidateAgent: each env decides by its candidate, on one rank and on several."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from esper.common.system.ranks import SINGLE_RANK, RankGroup
from esper.studies.growth.candidate_agent import CandidateAgent
from esper.training.policy.actions import WAITING, ChosenAction
from esper.training.policy.agent import EnvStatus
from esper.training.policy.baselines import NonLearningAgent, StaticAgent, germinate_action
from tests.ranks import together

ENVS = 5
POLICY = "policy"


class Policy(NonLearningAgent):
    """Plants in the slot with the number of the env. `groups` has the envs of each call."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.uniforms_ETH = torch.empty(0)

    def begin_round(self, uniforms_ETH: Tensor) -> None:
        self.uniforms_ETH = uniforms_ETH

    def act(self, step: int, views: Sequence[EnvStatus]) -> list[ChosenAction]:
        self.groups.append([view.env for view in views])
        return [ChosenAction(germinate_action(view.env, 0)) for view in views]

    def state_tensors(self, ranks: RankGroup = SINGLE_RANK) -> dict[str, Tensor]:
        return {"uniforms": ranks.all_gather_rows(self.uniforms_ETH)}

    def state_dict(self) -> dict[str, Any]:
        return {str(env): env for group in self.groups for env in group}


def views(envs: Sequence[int]) -> list[EnvStatus]:
    return [EnvStatus(env=env, slots=(), steps=1, chance_loss=1.0, chance_score=0.1) for env in envs]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_policy_decides_for_the_groups_of_one_rank(number: int) -> None:
    """A matrix product may round differently for another number of rows."""
    uniforms_ETH = torch.rand(ENVS, 1, 8)

    def play(ranks: RankGroup) -> SimpleNamespace:
        ranks = ranks.dealt()
        own, policy = ranks.env_range(ENVS), Policy()
        agent = CandidateAgent({POLICY: policy}, lambda _: StaticAgent(), ENVS, own)
        agent.assign({0: "", 1: POLICY, 2: POLICY, 3: POLICY})
        agent.begin_round(ranks.local_rows(uniforms_ETH))
        chosen: list[ChosenAction] = []
        for group in ([env for env in own if env < 3], [env for env in own if env >= 3]):
            chosen += agent.act(0, views(group)) if group else []
        assert torch.equal(ranks.local_rows(policy.uniforms_ETH), ranks.local_rows(uniforms_ETH))
        assert {*map(tuple, policy.groups)} <= {(0, 1, 2), (3, 4)}
        by_env = dict(zip(own, chosen, strict=True))
        return SimpleNamespace(by_env=by_env, state=agent.state_dict(), tensors=agent.state_tensors(ranks))

    played = together(number, play) if number > 1 else [play(SINGLE_RANK)]
    by_env = {env: one.action.slot if one != WAITING else None for rank in played for env, one in rank.by_env.items()}
    assert by_env == {0: None, 1: 1, 2: 2, 3: 3, 4: None}
    state = {key: value for rank in played for key, value in rank.state.items()}
    assert {*state} == {"all", *map(str, range(ENVS))}
    assert all(torch.equal(tensor, uniforms_ETH) for rank in played for tensor in rank.tensors.values())

    policy = Policy()
    again = CandidateAgent({POLICY: policy}, lambda _: StaticAgent(), ENVS)
    loaded: list[dict[str, Any]] = []
    policy.load_state_dict = cast("Any", lambda own, *_: loaded.append(own))
    again.load_state_dict(state, {}, uniforms_ETH)
    assert loaded == [{"1": 1, "2": 2, "3": 3} | loaded[0]]
    assert [len(again.actions[env]) for env in range(4)] == [1] * 4
