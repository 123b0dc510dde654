"""Episodes of an evaluation: the same for every policy, unused in training, and tested on the test split."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from esper.common.configuration.config import Config, PolicyName
from esper.networks.tasks import load_task
from esper.networks.tasks.task import Task
from esper.studies.evaluation.episodes import run_episodes
from esper.studies.evaluation.results import EpisodeResult
from esper.training.engine.agent_factory import build_agent
from esper.training.lanes.pool import EnvPool
from esper.training.policy.baselines import StaticAgent
from esper.training.ppo.rewards import rent_cost
from tests.runs import LiveRun
from tests.training.engine.populations import digits, digits_profile

DIGITS = load_task("digits_impaired")
TASK = replace(DIGITS, samples_per_epoch=2 * DIGITS.batch_size)
SLOTS = ("early", "mid", "late")


def nothing(*_: object) -> None:
    """Ignore a step."""


def played(policy: PolicyName, envs: int, steps: int, task: Task = TASK) -> tuple[list[EpisodeResult], EnvPool]:
    config = Config(envs=envs, steps=steps, seed=5, policy=policy, reward="simplified")
    pool = EnvPool(task, digits_profile(), (digits(),), ["cpu:0"], config)
    try:
        return run_episodes(
            pool, build_agent(config, digits_profile().sites, digits_profile().blueprints), config, nothing
        ), pool
    finally:
        pool.close()


@pytest.mark.parametrize("policy", ["random", "ppo"])
def test_episodes_do_not_depend_on_their_number(policy: PolicyName) -> None:
    few, _ = played(policy, envs=2, steps=4)
    more, _ = played(policy, envs=3, steps=4)
    assert more[:2] == few
    assert more[2] not in few


def test_policies_share_hosts_and_data() -> None:
    """The heuristic plants nothing in its first steps, so they equal those of `static`."""
    static, _ = played("static", envs=2, steps=2)
    heuristic, _ = played("heuristic", envs=2, steps=2)
    assert heuristic == static


@pytest.mark.slow
def test_heuristic_fills_several_slots_in_an_episode() -> None:
    results, pool = played("heuristic", envs=1, steps=40, task=DIGITS)
    network = pool.envs[0].network
    kept = [slot for slot in network.slots if slot.stage.is_blended]
    assert len(kept) >= 2
    assert results[0].test_score > 0.8
    assert results[0].parameter_ratio == network.parameter_ratio > 1.0


def test_net_return_is_gain_minus_rent_and_op_costs() -> None:
    (result,), pool = played("full", envs=1, steps=3)
    (env,) = pool.envs
    seeds = [slot.parameter_count for slot in env.network.slots]
    host = env.network.host_parameter_count
    weights = Config().reward_weights
    charged = 3 * weights.op + sum(rent_cost(1 + sum(seeds[:count]) / host, host, weights) for count in (1, 2, 3))
    env.reset(env.key._replace(round=0))
    first = env.validate(last=False)[1].item()
    assert result.net_return == pytest.approx(result.validation_score - first - charged)


def test_evaluation_tests_on_the_test_split() -> None:
    (result,), pool = played("static", envs=1, steps=2)
    (env,) = pool.envs
    with torch.no_grad():
        logits = env.network.eval()(env.splits.test[0], env.network.alphas())
    assert result.test_score == pytest.approx((logits.argmax(1) == env.splits.test[1]).float().mean().item())
    assert result.test_score != result.validation_score


def test_final_test_uses_the_alphas_of_the_last_validation() -> None:
    """The policy advances the first seed in the fourth step, so that its alpha is at a third of the ramp."""
    _, pool = played("full", envs=1, steps=4)
    assert pool.envs[0].network.alphas() == [pytest.approx(1 / 3), 0.0, 0.0]


def test_training_never_uses_the_test_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loads = EnvPool.__init__

    def without_test(self: EnvPool, task, profile, data, *rest) -> None:
        (splits,) = data
        x, y = splits.test
        broken = {"test": (torch.full_like(x, torch.nan), y - 1000)}
        loads(self, task, profile, (type(splits)(**{**vars(splits), **broken}),), *rest)

    def finals(name: str) -> list[float]:
        live = LiveRun(tmp_path / name, policy="periodic", rounds=1)
        return live.start().finish().finals

    whole = finals("whole")
    monkeypatch.setattr(EnvPool, "__init__", without_test)
    assert finals("broken") == whole


def test_planted_seeds_are_in_the_network_from_the_start() -> None:
    grown, _ = played("full", envs=2, steps=8)
    assert [seed.slot for seed in grown[0].seeds] == ["early", "mid", "late"]
    config = Config(envs=2, steps=3, seed=5, policy="static", reward="simplified")
    pool = EnvPool(TASK, digits_profile(), (digits(),), ["cpu:0"], config)
    try:
        first, bare = run_episodes(pool, StaticAgent(), config, nothing, [grown[0].seeds, []])
        alone, _ = played("static", envs=2, steps=3)
    finally:
        pool.close()
    assert first.seeds == grown[0].seeds
    assert bare == alone[1]
    assert first.parameter_ratio == grown[0].parameter_ratio
    rent = 3 * rent_cost(first.parameter_ratio, 390, config.reward_weights)
    initial = alone[0].validation_score - alone[0].net_return  # an episode without seeds has no costs
    assert first.net_return == pytest.approx(first.validation_score - initial - rent)
