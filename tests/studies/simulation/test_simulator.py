"""Simulations: exact reproductions, and changes whose results are known in another way."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from esper.common.configuration.config import Config, ConfigError
from esper.common.decisions import Decision, parse_decision
from esper.networks.tasks.prepare import prepare_task
from esper.recordings.effects.change import NOTHING, UNCHANGED, WITHOUT_GROWTH, Change, without_decision, without_steps
from esper.recordings.effects.episode import RecordedEpisode
from esper.recordings.effects.references import known_references
from esper.recordings.effects.results import Simulation, Trajectory, effect, reproduced_round
from esper.recordings.effects.store import RESULTS_FILE, EffectStore
from esper.recordings.state.series import decision_of
from esper.studies.simulation import play as play_module
from esper.studies.simulation.recording import RecordingSimulator
from esper.studies.simulation.simulator import SimulationJob, Simulator
from esper.training.engine.episode import Episode, capture_episode, install_episode
from esper.training.engine.reporter import round_to
from tests.studies.simulation.runs import episodes, record, simulate, write_task
from tests.training.engine.populations import population


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of random decisions."""
    return record(tmp_path_factory.mktemp("random"))


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> list[RecordedEpisode]:
    """Episodes of a run that does not grow, with the hosts of `run`."""
    return episodes(record(tmp_path_factory.mktemp("static"), policy="static"), 1, 2)


@pytest.fixture(scope="module")
def recorded(run: Path) -> RecordedEpisode:
    """An episode of the second round."""
    return episodes(run, 2)[1]


@pytest.fixture(scope="module")
def breaking(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A task whose envs break down, and a run of it under loss scaling."""
    task = write_task(tmp_path_factory.mktemp("task"), "fragile", nan=0.04)
    return task, record(tmp_path_factory.mktemp("broken"), task=task, amp="fp16", rounds=3, envs=3, training={})


def decided(episode: RecordedEpisode) -> list[int]:
    """Steps with an op."""
    return [step.step for step in episode.steps if step.op != "wait"]


def trajectories(results: Sequence[Simulation]) -> list[Trajectory]:
    return [result.trajectory for result in results]


def test_recording_is_reproduced_exactly_in_every_round(run: Path) -> None:
    results = simulate(episodes(run, 1, 2))
    assert len(results) == 4
    assert [str(result.reproduction) for result in results] == ["reproduced exactly, 6 of 6 steps"] * 4


def test_episodes_after_rollbacks_under_loss_scaling_are_reproduced(breaking: tuple[str, Path]) -> None:
    task, run = breaking
    found = episodes(run, 2, 3)
    assert any(episode.previous for episode in found)
    results = simulate(found, task=task)
    assert {result.trajectory.broke_down for result in results} == {True, False}
    assert all(result.is_exact for result in results)


def test_shared_loss_scale_is_named_as_the_cause(tmp_path: Path) -> None:
    run = record(tmp_path, amp="fp16", scaler="device", rounds=1, envs=3)
    differing = [result.reproduction for result in simulate(episodes(run, 1)) if not result.is_exact]
    assert differing
    assert all("the envs of a lane shared a loss scale" in str(reproduction) for reproduction in differing)


def test_unfinished_episode_is_simulated_up_to_its_last_step(recorded: RecordedEpisode) -> None:
    part = recorded._replace(steps=recorded.steps[:5], ended=None)
    (unchanged, changed) = simulate([part], without_steps([2]))
    assert str(unchanged.reproduction) == "reproduced exactly, 5 of 5 steps"
    assert changed.trajectory.num_steps == 5


@pytest.mark.parametrize("broken", [False, True])
def test_change_from_a_snapshot_equals_one_from_the_start(
    recorded: RecordedEpisode, breaking: tuple[str, Path], monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    task, run = breaking if broken else (None, None)
    found = [episode for episode in episodes(run, 3) if len(decided(episode)) > 1] if run else [recorded]
    changes = {
        episode.env: [
            change
            for step in decided(episode)[:2]
            for change in (
                without_decision(episode, step),
                Change(decisions={step: decision_of(episode.steps[step - 1])}),  # which changes nothing
                without_steps([step], NOTHING),
            )
        ]
        for episode in found
    }
    from_snapshots = [simulate([episode], *changes[episode.env], task=task) for episode in found]
    monkeypatch.setattr(play_module, "MAX_SNAPSHOT_BYTES", 0)
    from_start = [simulate([episode], *changes[episode.env], task=task, num_plays=1) for episode in found]
    assert from_snapshots == from_start
    for unchanged, *changed in from_snapshots:
        assert all(result.trajectory == unchanged.trajectory for result in changed[1::3])
    assert any(result.trajectory.broke_down for results in from_start for result in results) == broken


def test_episodes_restored_from_one_snapshot_share_nothing() -> None:
    with population(envs=2) as pool:
        played = [Episode(env, Config(envs=2)) for env in pool.envs]
        for episode, (loss, score) in zip(played, pool.reset(0), strict=True):
            episode.begin(loss, score)
        snapshot = capture_episode(played[0])
        for episode in played:
            install_episode(episode, snapshot)
        before = list(played[0].view.scores)
        played[0].view.scores.append(0.5)
        assert played[1].view.scores == snapshot.state["view"]["scores"] == before


def test_waiting_afterwards_is_leaving_out_everything_that_follows(recorded: RecordedEpisode) -> None:
    first, *others = decided(recorded)
    waits, left_out = trajectories(
        simulate([recorded], without_steps([first], NOTHING), without_steps([first, *others]))
    )[1:]
    assert waits == left_out
    assert waits.parameter_ratio == 1.0


@pytest.mark.parametrize("lanes", [("cpu:0",), ("cpu:0", "cpu:1")])
def test_reference_equals_a_run_of_the_same_hosts_that_waits(
    run: Path, waiting: list[RecordedEpisode], lanes: Sequence[str]
) -> None:
    references = simulate(episodes(run, 1, 2), WITHOUT_GROWTH, lanes=lanes)[1::2]
    assert [(found.round, found.env) for found in references] == [(found.round, found.env) for found in waiting]
    for found, waited in zip(references, waiting, strict=True):
        assert waited.ended
        trajectory = found.trajectory
        assert [round_to(score) for score in trajectory.scores[1:]] == [step.score for step in waited.steps]
        assert round_to(trajectory.final_score) == waited.ended.score
        assert round_to(trajectory.net_return) == waited.ended.episode_return
        assert (trajectory.parameter_ratio, trajectory.costs) == (1.0, 0.0)


def test_envs_of_a_host_share_its_reference(tmp_path: Path) -> None:
    found = episodes(record(tmp_path, policy="ppo", ppo={"envs-per-host": 2}, envs=3, rounds=1), 1)
    of_round = {episode.env: episode for episode in found}
    _, wanted = known_references(reproduced_round(of_round, []))
    assert [episode.env for episode in wanted] == [0, 2]
    results = simulate(found, WITHOUT_GROWTH)
    first, second, third = (simulation.trajectory for simulation in results[1::2])
    assert first == second != third
    known, missing = known_references(reproduced_round(of_round, results[2:4]))  # env 1 stands for its host
    assert ([(host.envs, host.is_exact) for host in known], missing) == ([([0, 1], True)], [found[2]])
    assert known[0].scores == first.scores[1:]


def test_costs_and_gain_make_up_the_return(recorded: RecordedEpisode) -> None:
    unchanged, waits = trajectories(simulate([recorded], WITHOUT_GROWTH))
    assert unchanged.costs == pytest.approx(
        -sum(value for step in recorded.steps for part, value in step.reward_parts.items() if part in {"rent", "op"}),
        abs=1e-4,
    )
    worth = effect(unchanged, waits)
    assert worth.gain == pytest.approx(unchanged.final_score - waits.final_score)
    assert worth.net_return == pytest.approx(worth.gain - worth.rent)


def test_illegal_decision_waits_and_is_reported(recorded: RecordedEpisode) -> None:
    seed = next(seed for seed in recorded.seeds if len(seed.decisions) > 1)
    alone, together = trajectories(
        simulate([recorded], without_steps(seed.decisions[:1]), without_steps(seed.decisions))
    )[1:]
    assert set(seed.decisions[1:]) <= set(alone.waited)
    assert together.waited == []
    assert alone.scores == together.scores


@pytest.mark.parametrize(("policy", "num_plays"), [("random", 1), ("heuristic", 3), ("pretrained", 3)])
def test_policy_that_follows_decides_as_in_its_own_run(tmp_path: Path, policy: str, num_plays: int) -> None:
    """Other envs of the pool play nothing."""
    recorded = episodes(record(tmp_path, policy=policy, rounds=1, steps=8), 1)[1]
    follows = Change(decisions={1: decision_of(recorded.steps[0])}, then=policy)
    unchanged, changed = simulate([recorded], follows, num_plays=num_plays)
    assert unchanged.is_exact
    assert changed.trajectory == unchanged.trajectory


def test_family_has_the_context_of_the_episode(tmp_path: Path) -> None:
    run = record(tmp_path, task="digits_impaired+recall", context_seed=7, envs=3, steps=4)
    found = episodes(run, 2)
    results = simulate(found, without_steps([1]))
    assert all(result.is_exact for result in results if result.change == UNCHANGED)
    assert len({len(episode.steps[0].slots) for episode in found}) == 2
    small = min(found, key=lambda episode: len(episode.steps[0].slots))
    (_, changed) = simulate([small], Change(decisions={2: Decision("germinate", "late", "norm")}))
    assert 2 in changed.trajectory.waited


def test_repeat_is_another_host_and_the_same_one_each_time(recorded: RecordedEpisode) -> None:
    change = without_steps(decided(recorded)[:1])
    first, again = (simulate([recorded], change, repeat=1, num_plays=plays) for plays in (1, 9))
    assert first == again
    assert first[0].reproduction is None
    assert first[0].trajectory != simulate([recorded])[0].trajectory


def test_play_begins_after_the_others_have_ended(run: Path) -> None:
    short, whole = episodes(run, 1)
    short = short._replace(steps=short.steps[:2], ended=None)
    jobs = [
        SimulationJob(episode=short, changes=[without_steps([1])]),  # ends after step 2
        SimulationJob(episode=whole, changes=[without_steps([6])]),  # begins with step 6
    ]
    simulator = Simulator(whole.config, prepare_task(whole.config), ["cpu:0"], 4, run.parent)
    found = list(simulator.simulate(jobs, lambda _: None))
    simulator.close()
    assert [simulation.trajectory.num_steps for simulation in found] == [2, 6, 2, 6]


def test_unknown_choice_is_refused_before_anything_is_played(recorded: RecordedEpisode) -> None:
    for decision, message in (
        (Decision("advance", "erly"), "'erly' is not a choice of slot; did you mean early?"),
        (Decision("cull", "mid", alpha_speed="4"), "'4' is not a choice of speed"),
    ):
        with pytest.raises(ConfigError, match=message):
            simulate([recorded], Change(decisions={2: decision}))
    steps = [step for step in recorded.steps if step.op == "germinate"]
    choices = {**steps[0].decision, "blueprint": type(steps[0].decision["slot"])(choice="gone")}
    gone = msgspec.structs.replace(steps[0], decision=choices)
    without = recorded._replace(steps=[gone if step is steps[0] else step for step in recorded.steps])
    with pytest.raises(
        ConfigError, match=r"step \d of env 1 cannot be simulated with this version of the task: 'gone'"
    ):
        simulate([without])


# With stored results


def ask(
    run: Path, recorded: RecordedEpisode, *changes: Change, task: str | None = None
) -> tuple[int, RecordingSimulator]:
    """Simulate what is not known. Returns the number of simulations, and the closed simulator."""
    simulator = RecordingSimulator(
        run, [(recorded, changes)], task_reference=task, devices=("cpu:0",), telemetry_dir=run.parent
    )
    try:
        return len(list(simulator.simulate(lambda _: None))), simulator
    finally:
        simulator.close()


def test_nothing_is_computed_twice(run: Path, recorded: RecordedEpisode) -> None:
    change = without_steps([1])
    count, simulator = ask(run, recorded, change)
    assert (count, simulator.storage_problem) == (2, None)
    assert ask(run, recorded, change)[0] == 0
    assert ask(run, recorded, change, without_steps([2]))[0] == 2
    (run / RESULTS_FILE).unlink()


def test_stored_plan_and_stored_decision_count_the_same_step(run: Path, recorded: RecordedEpisode) -> None:
    by_plan = Change(then="plan:3:norm@late")
    plant = parse_decision("3:norm@late")
    waits = without_steps([1, 2], NOTHING)
    by_hand = Change(decisions=waits.decisions | {plant.step: plant.decision.with_defaults()}, then=NOTHING)
    ask(run, recorded, by_plan, by_hand)
    assert ask(run, recorded, by_plan, by_hand)[0] == 0
    for steps, is_planted in ((2, False), (3, True)):
        _, simulator = ask(run, recorded._replace(steps=recorded.steps[:steps], ended=None), by_plan, by_hand)
        found = [simulator.results[0].get(change) for change in (by_plan, by_hand)]
        assert [result and result.trajectory.parameter_ratio > 1 for result in found] == [is_planted] * 2
    (run / RESULTS_FILE).unlink()


def test_result_that_cannot_be_stored_is_still_given(
    run: Path, recorded: RecordedEpisode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(EffectStore, "add", refuse)
    count, simulator = ask(run, recorded)
    assert count == 1
    assert simulator.storage_problem == "results cannot be stored: No space left on device"
    assert simulator.results[0].get() is not None


def test_own_task_is_imported_only_if_it_is_named(breaking: tuple[str, Path]) -> None:
    task, run = breaking
    recorded = episodes(run, 1)[0]
    with pytest.raises(ConfigError, match="the task fragile of this run is not built in; name it"):
        ask(run, recorded)
    assert ask(run, recorded, task=task)[0] == 1


def test_difference_is_found_and_its_causes_are_named(breaking: tuple[str, Path]) -> None:
    task, run = breaking
    recorded = next(episode for episode in episodes(run, 1) if len(episode.steps) > 3)
    steps = list(recorded.steps)
    steps[2] = msgspec.structs.replace(steps[2], loss=steps[2].loss + 1e-4)
    versions = {**recorded.started.versions, "torch": "1.0", "cpu": "NONE"}
    started = msgspec.structs.replace(recorded.started, task_code={"fragile.py": "other"}, versions=versions)
    (result,) = simulate([recorded._replace(started=started, steps=steps)], task=task)
    text = str(result.reproduction)
    assert text.startswith(
        "approximate: loss differs from step 3 on (the code of the task has changed: fragile.py changed"
    )
    assert "recorded with torch 1.0, simulated with" in text
    assert "recorded with cpu NONE, simulated with" in text
