"""GrowthDirector without training: its budgets, fresh hosts, faults and checkpoints."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import torch

from esper.common.configuration.config import TaskError
from esper.common.score_scale import PERCENT
from esper.common.system.ranks import SINGLE_RANK, RankGroup
from esper.networks.tasks.task import Chance
from esper.recordings.candidates.candidates import BARE_HOST, FROM_SCRATCH, WIDE_HOST, choose
from esper.studies.growth import trainings
from esper.studies.growth.best_network import BestNetwork
from esper.studies.growth.candidate_agent import CandidateAgent
from esper.studies.growth.director import GrowthDirector
from esper.studies.growth.fresh_scores import NetworkScores
from esper.studies.growth.growth import FRESH_HOSTS, GrowthRequest
from esper.studies.growth.search import PlanSearch
from esper.studies.harvest.structure import GrownSeed
from esper.training.engine.training_state import TrainingState
from esper.training.lanes.errors import FaultError, RunFailedError
from esper.training.policy.baselines import StaticAgent, germinate_action
from tests.ranks import together
from tests.studies.growth.plans import BLUEPRINTS, sites, space

PLANS = ("1:norm@early", "2:conv_light@mid", "3:norm@late", "4:depthwise@late")
SEED = GrownSeed(
    slot="early", module="early", layout="BCHW", channels=8, is_causal=False, blueprint="norm", blend="add", alpha=1.0,
    parameters=16,
)  # fmt: skip
SCORES = {BARE_HOST: 0.5, "1:norm@early": 0.8, "2:conv_light@mid": 0.7, "3:norm@late": 0.6}


@pytest.fixture(autouse=True)
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(env: Any, score: float, round_number: int, step: int) -> BestNetwork:
        values = {"score": score, "env": env.index, "round": round_number, "step": step}
        seeds = [SEED] if env.index else []  # the bare host is the first of its round
        tensors = {"weight": torch.tensor([score, env.index, round_number])}
        return BestNetwork(**values, parameter_ratio=1.1 if env.index else 1.0, seeds=seeds, tensors=tensors)

    def measure_network(network: BestNetwork, env: StubEnv) -> NetworkScores:
        scores_N = torch.full((4,), network.score)
        return NetworkScores(scores_N, scores_N)

    monkeypatch.setattr(BestNetwork, "of", of)
    monkeypatch.setattr(BestNetwork, "seeds_differ", lambda *_: False)
    monkeypatch.setattr(trainings, "measure_network", measure_network)
    monkeypatch.setattr(trainings, "plant_grown", lambda env, seeds, _: env.planted.append(seeds))


@dataclass(frozen=True)
class StubEnv:
    index: int
    planted: list[Any] = field(default_factory=list[Any], compare=False)
    network: Any = field(default_factory=lambda: SimpleNamespace(slots=[]), compare=False)


class Rounds:
    """Rounds of one step of a director. `tried` has the candidates and fresh hosts of this rank in each round."""

    def __init__(
        self,
        envs: int = 4,
        steps: int = 1,
        policies: Sequence[str] = (),
        limit: int | None = None,
        choose_width: Callable[[float], float] | None = None,
        ranks: RankGroup = SINGLE_RANK,
        **budget: Any,
    ) -> None:
        self.tried: list[list[tuple[str, int]]] = []
        self.episodes = [
            SimpleNamespace(
                env=StubEnv(index), inactive=False, episode_return=0.0, view=SimpleNamespace(step=0),
                update_parameter_ratio=lambda: None, last_good=SimpleNamespace(save=lambda: None),
            )
            for index in ranks.env_range(envs)
        ]  # fmt: skip
        profile = SimpleNamespace(
            host_parameters=1000, sites=sites(), blueprints=BLUEPRINTS, chance=Chance(loss=2.3, score=0.1)
        )
        pool = SimpleNamespace(
            envs=[one.env for one in self.episodes],
            profile=profile,
            task=SimpleNamespace(score_scale=PERCENT),
            reset_loss_scales=lambda: None,
        )
        self.training = SimpleNamespace(
            config=SimpleNamespace(steps=steps, seed=0, envs=envs),
            ranks=ranks,
            pool=pool,
            agent=CandidateAgent({}, lambda _: StaticAgent(), envs, ranks.env_range(envs)),
            hub=SimpleNamespace(emit=lambda _: None),
            episodes=self.episodes,
            round=0,
            step=0,
        )
        request = GrowthRequest(**budget)
        training = cast("TrainingState", self.training)

        def make_search() -> PlanSearch:
            return PlanSearch(space(limit=limit), policies=policies, plans=PLANS, seed=0)

        self.director = GrowthDirector(request, make_search, training, choose_width)
        self.widths: list[float] = []
        """Width of the host of each training."""

    def begin(self) -> dict[int, str]:
        """Begin a round, and return the candidate of each env of any rank that trains."""
        keys = self.director.begin_round()
        self.director.start_round()
        names = self.names
        self.tried.append([(names[env.index], key.env) for env, key in keys.items()])
        self.widths += [key.width for key in keys.values()]
        for episode in self.episodes:
            episode.inactive = episode.env not in keys
        return names

    @property
    def names(self) -> dict[int, str]:
        """Candidate of each env of any rank whose training has not ended."""
        return {env: job.candidate for env, job in self.director._trainings.jobs.items()}

    def step(self, scores: Mapping[str, float] = SCORES, seconds: float = 1.0) -> bool:
        """Train for a step, and return True if the round ends with it."""
        names = self.names
        self.training.step += 1
        for episode in self.episodes:
            score = scores.get(names.get(episode.env.index, ""), 0.1)
            episode.view.step, episode.view.scores, episode.episode_return = self.training.step, [0.0, score], score
        episodes = cast("Any", self.episodes)
        self.director.observe(episodes)
        self.director.end_group(cast("Any", SimpleNamespace(episodes=episodes, outcomes=[None] * len(episodes))))
        return self.director.end_step(seconds)

    def end(self) -> None:
        self.director.end_round()
        self.training.round, self.training.step = self.training.round + 1, 0

    def play(self, seconds: float = 1.0) -> None:
        """Play rounds until the growth has ended."""
        while not self.director.has_ended:
            self.begin()
            self.step(seconds=seconds)
            self.end()

    def resume(self, state: Any, tensors: Mapping[str, torch.Tensor]) -> None:
        """Continue from a checkpoint."""
        self.director.load_state_dict(state, tensors)
        self.director.resume()

    @property
    def fresh_hosts(self) -> dict[str, list[int]]:
        """Fresh hosts of each candidate that was trained on them."""
        return {one.name: one.fresh_hosts for one in self.director.search_state.candidates if one.fresh_hosts}


def test_best_candidates_train_on_the_same_fresh_hosts() -> None:
    rounds = Rounds(trials=5)
    rounds.play()
    assert [len(tried) for tried in rounds.tried] == [4, 1, *[4] * FRESH_HOSTS]
    assert {host for tried in rounds.tried[:2] for _, host in tried} == {0}
    assert rounds.fresh_hosts == {name: list(range(1, FRESH_HOSTS + 1)) for name in SCORES}
    chosen = choose(rounds.director.search_state.candidates, "score")
    assert chosen is not None
    assert chosen.name == "1:norm@early"
    assert set(rounds.director.networks) >= set(SCORES)
    many = Rounds(trials=30, envs=30)
    many.play()
    assert [len(tried) for tried in many.tried] == [30, 30, 18]  # the bare host and five others, on eight hosts


@pytest.mark.parametrize(("seconds", "searching", "finalists"), [(6.0, 2, 3), (6.5, 1, 3), (7.0, 1, 2), (20.0, 1, 1)])
def test_minutes_leave_time_for_fresh_hosts(seconds: float, searching: int, finalists: int) -> None:
    rounds = Rounds(minutes=1.0)
    rounds.play(seconds)
    on_host = [tried for tried in rounds.tried if tried[0][1] == 0]
    assert len(on_host) == searching
    assert len(rounds.fresh_hosts) == 1 + finalists
    with pytest.raises(RunFailedError, match="which is more than --minutes 1; give --minutes 5"):
        Rounds(minutes=1.0).play(61.0)
    warms_up = Rounds(minutes=1.0, steps=4)
    warms_up.begin()
    assert not warms_up.step(seconds=20.0)
    assert not warms_up.step(seconds=1.0)


def test_growth_continues_only_with_a_larger_budget() -> None:
    """An exhausted space leaves trials over, which must not begin the search again."""
    first = Rounds(trials=3)
    first.play()
    stored, tensors = json.loads(json.dumps(first.director.state_dict())), first.director.state_tensors()
    for trials, expected in ((3, True), (2, True), (5, False)):
        later = Rounds(trials=trials)
        later.resume(stored, tensors)
        assert later.director.has_ended is expected
    later.play()
    added = [training for tried in later.tried for training in tried]
    assert added[:2] == [("3:norm@late", 0), ("4:depthwise@late", 0)]
    assert added[2:] == [("3:norm@late", host) for host in range(1, FRESH_HOSTS + 1)]
    stored["all"]["budget"] = [9, None]
    exhausted = Rounds(trials=9)
    exhausted.resume(stored, tensors)
    assert exhausted.director.has_ended


def test_fault_of_one_training_repeats_the_others() -> None:
    rounds = Rounds(trials=4, steps=2)
    names = rounds.begin()
    rounds.step()
    lost = FaultError("out of reach", is_device_lost=True)
    assert not rounds.director.recover(lost)
    assert not rounds.director.recover(FaultError("of the policy"))
    assert rounds.director.recover(FaultError("no room", env=2))
    failed = rounds.director.search_state.find(names[2])
    assert failed is not None
    assert (failed.outcome, failed.reason) == ("failed", "no room")
    rounds.training.round, rounds.training.step = 1, 0
    repeated = rounds.begin()
    assert list(repeated.values()) == [names[0], names[1], names[3]]
    assert not rounds.director.recover(FaultError("no room", env=0))  # that of the bare host


def test_training_ends_after_steps_without_a_better_score() -> None:
    rounds = Rounds(trials=4, steps=9, patience=2)
    rounds.begin()
    assert [rounds.step() for _ in range(3)] == [False, False, True]
    assert [one.outcome for one in rounds.director.search_state.candidates] == ["done"] * 4


def test_best_trial_is_not_too_large() -> None:
    rounds = Rounds(trials=2, policies=["large"], limit=1001)
    rounds.begin()
    assert rounds.director.best_trial() is None
    rounds.training.agent.actions[1] = [germinate_action(0, 0)]
    rounds.step({BARE_HOST: 0.0, "large": 0.9})
    rounds.director.end_round()
    best = rounds.director.best_trial()
    assert best is not None
    assert best.name == BARE_HOST
    rounds = Rounds(trials=2)
    rounds.begin()
    rounds.step({BARE_HOST: 0.0, "1:norm@early": -0.3})
    rounds.director.end_round()
    assert rounds.director.best_trial() is rounds.director.search_state.candidates[0]


def test_checkpoint_of_the_start_of_a_round_has_its_trainings() -> None:
    """After a fault, the stash of the round's start is saved, and the round begins again."""
    for played in (0, 2):  # trials, and trainings on fresh hosts
        rounds = Rounds(trials=4)
        for _ in range(played):
            rounds.begin()
            rounds.step()
            rounds.end()
        names = rounds.begin()
        later = Rounds(trials=4)
        stored = json.loads(json.dumps(rounds.director.state_dict()))
        later.resume(stored, rounds.director.state_tensors())
        assert later.begin() == names
        assert later.tried[-1] == rounds.tried[-1]


def test_network_that_has_grown_a_seed_replaces_a_better_one_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, a plan could be chosen whose written network has none of its seeds."""
    rounds = Rounds(trials=4, steps=3)
    rounds.begin()
    rounds.step({BARE_HOST: 0.5, "1:norm@early": 0.8})
    monkeypatch.setattr(BestNetwork, "seeds_differ", lambda _, env: env.index == 1)
    rounds.step({BARE_HOST: 0.4, "1:norm@early": 0.6})
    rounds.director.end_round()
    found = {one.name: one.score for one in rounds.director.search_state.candidates}
    assert (found[BARE_HOST], found["1:norm@early"]) == (0.5, 0.6)


def test_compared_networks_are_candidates_that_train_after_the_answer_is_chosen() -> None:
    rounds = Rounds(trials=4, envs=5, choose_width=lambda ratio: 10 * ratio, compares=True)
    played = 0
    while not rounds.director.has_chosen:
        rounds.begin()
        rounds.step()
        rounds.end()
        played += 1
    assert not rounds.director.has_ended
    rounds.begin()
    stored, tensors = json.loads(json.dumps(rounds.director.state_dict())), rounds.director.state_tensors()
    later = Rounds(trials=4, envs=5, choose_width=lambda ratio: 10 * ratio, compares=True)
    later.resume(stored, tensors)
    later.play()
    hosts = range(1, FRESH_HOSTS + 1)
    compared = [(name, host) for name in (WIDE_HOST, FROM_SCRATCH) for host in hosts]
    assert [training for tried in later.tried for training in tried] == compared
    assert rounds.tried[played] == compared[:5]
    assert later.widths == pytest.approx([11.0] * FRESH_HOSTS + [1.0] * FRESH_HOSTS)
    planted = [seeds for episode in later.episodes for seeds in episode.env.planted]
    assert planted == [[SEED]] * FRESH_HOSTS
    names = {*later.training.agent._candidates.values()}
    assert names == {BARE_HOST}  # they wait in every step
    assert later.fresh_hosts[WIDE_HOST] == later.fresh_hosts[FROM_SCRATCH] == [*hosts]
    assert not {WIDE_HOST, FROM_SCRATCH} & later.director.networks.keys()
    info, search = later.director.search_state.info, later.director.search_state
    assert info.fresh == search.fresh_ended == 4 * FRESH_HOSTS + len(compared)
    assert search.fraction_done(0.0) == 1.0


def test_comparison_that_is_asked_for_later_continues_an_ended_growth() -> None:
    first = Rounds(trials=4)
    first.play()
    stored, tensors = json.loads(json.dumps(first.director.state_dict())), first.director.state_tensors()
    later = Rounds(trials=4, compares=True)
    later.resume(stored, tensors)
    later.play()
    assert [training for tried in later.tried for training in tried] == [
        (FROM_SCRATCH, host) for host in range(1, FRESH_HOSTS + 1)
    ]


def test_wide_host_that_cannot_be_built_is_left_out() -> None:
    def fail(_: float) -> float:
        raise TaskError("wide_model of task own: no room")

    rounds = Rounds(trials=4, choose_width=fail, compares=True)
    logged: list[Any] = []
    rounds.training.hub.emit = logged.append
    rounds.play()
    assert WIDE_HOST not in rounds.fresh_hosts
    assert len(rounds.fresh_hosts[FROM_SCRATCH]) == FRESH_HOSTS
    assert "no wide host is compared: wide_model of task own: no room" in [getattr(one, "text", "") for one in logged]


@pytest.mark.parametrize(("trials", "finalists"), [(1, 0), (3, 2), (8, 3), (24, 4), (60, 5)])
def test_progress_expects_no_more_finalists_than_there_are_trials(trials: int, finalists: int) -> None:
    assert GrowthRequest(trials=trials).info(100).fresh == (1 + finalists) * FRESH_HOSTS


# Several ranks

ENVS = 5
PLANNED: dict[str, Any] = {"trials": 7, "envs": ENVS, "steps": 4, "compares": True}


def play_on(rounds: Rounds) -> Rounds:
    """Play rounds with a failed training in the second one, until the growth has ended."""
    while not rounds.director.has_ended:
        rounds.begin()
        has_ended = False
        while not has_ended and rounds.training.step < PLANNED["steps"]:
            if (rounds.training.round, rounds.training.step) == (1, 2):
                assert rounds.director.recover(FaultError("no room", env=1))
                break
            has_ended = rounds.step()
        else:
            rounds.director.end_round()
        rounds.training.round, rounds.training.step = rounds.training.round + 1, 0
    return rounds


@pytest.mark.parametrize("number", [2, 3])
def test_ranks_grow_as_one(number: int) -> None:
    alone = play_on(Rounds(**PLANNED))
    ranked = together(number, lambda ranks: play_on(Rounds(**PLANNED, ranks=ranks.dealt())))
    states = [msgspec.to_builtins(one.director.search_state, str_keys=True) for one in (alone, ranked[0])]
    assert states[0] == states[1]
    assert any(one["outcome"] == "failed" for one in states[0]["candidates"])
    by_round = zip(*(one.tried for one in ranked), strict=True)
    assert [sorted(job for of_rank in tried for job in of_rank) for tried in by_round] == [*map(sorted, alone.tried)]
    assert {len(of_rank[-1]) for of_rank in (one.tried for one in ranked)} <= {
        len(alone.tried[-1]) // number + extra for extra in (0, 1)
    }
    assert alone.director.networks == ranked[0].director.networks


def test_networks_stay_on_their_ranks_until_they_are_fetched() -> None:
    def fetch(ranks: RankGroup) -> tuple[set[str], dict[str, BestNetwork]]:
        director = play_on(Rounds(**PLANNED, ranks=ranks.dealt())).director
        return {*director._trainings._kept}, director.fetch(lambda: [*director.networks])

    alone = play_on(Rounds(**PLANNED)).director
    wanted = alone.fetch(lambda: [*alone.networks])
    (first, fetched), (second, fetched_too) = together(2, fetch)
    assert first
    assert second
    assert not first & second
    assert first | second == {*wanted}
    for found in (fetched, fetched_too):
        assert [*found] == [*wanted]
        for name, network in wanted.items():
            assert torch.equal(found[name].tensors["weight"], network.tensors["weight"])


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1), (1, 2)])
def test_growth_continues_with_another_number_of_ranks(before: int, after: int) -> None:
    """In the middle of a round, in which one training has ended."""
    ranks_before = together(before, begin_second_round) if before > 1 else [begin_second_round(SINGLE_RANK)]
    state: dict[str, Any] = {}
    tensors: dict[str, torch.Tensor] = {}
    for of_rank, named in ranks_before:
        state |= json.loads(json.dumps(of_rank))
        tensors |= named

    def resume(ranks: RankGroup) -> Rounds:
        ranks = ranks.dealt()
        rounds = Rounds(**PLANNED, ranks=ranks)
        rounds.training.round, rounds.training.step = 1, 1
        own = {key: value for key, value in state.items() if key == "all" or int(key) in ranks.env_range(ENVS)}
        rounds.resume(own, tensors)
        while not rounds.step():
            pass
        rounds.end()
        return play_on(rounds)

    alone = resume(SINGLE_RANK)
    ranked = together(after, resume) if after > 1 else [alone]
    states = [msgspec.to_builtins(one.director.search_state, str_keys=True) for one in (alone, ranked[0])]
    assert states[0] == states[1]
    assert alone.director.networks == ranked[0].director.networks


def begin_second_round(ranks: RankGroup) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Return the state of a growth after a step of its second round."""
    rounds = Rounds(**PLANNED, ranks=ranks.dealt())
    rounds.begin()
    while not rounds.step():
        pass
    rounds.end()
    rounds.begin()
    rounds.step()
    return rounds.director.state_dict(), rounds.director.state_tensors()
