"""Episodes read from recordings: incomplete ones, loss scales, and the seeds of an episode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.common.configuration.config import ConfigError
from esper.common.decisions import Decision
from esper.recordings import events as ev
from esper.recordings.effects.episode import LossScale, RecordedEpisode, read_episode, read_round
from esper.recordings.events.codec import encode_lines
from esper.recordings.history.history import History, open_history
from esper.recordings.state.state import Keyframe
from tests.factory import SLOTS, env_stepped, run_started, stamp
from tests.recordings.effects.episodes import GROWN, episode

ENVS, ROUNDS, STEPS = 2, 4, 3
BROKEN = {(1, 1), (2, 1)}
"""Round and env of each rollback, in step 2."""


def recorded_steps(round_number: int, env: int) -> list[ev.EnvStepped]:
    """The steps of an episode with a loss scale that names its round and step."""
    steps = 2 if (round_number, env) in BROKEN else STEPS
    return [
        env_stepped(env, round_number, step, loss_scale=2.0 ** (10 * round_number + step), growth_tracker=step)
        for step in range(1, steps + 1)
    ]


def fp16_run() -> list[ev.AnyEvent]:
    """A run under loss scaling, in which env 1 is rolled back in the first two rounds."""
    events: list[ev.AnyEvent] = [msgspec.structs.replace(run_started(ENVS, ROUNDS, STEPS), growth_interval=2000)]
    for number in range(1, ROUNDS + 1):
        events.append(ev.RoundStarted(round=number))
        steps = [recorded_steps(number, env) for env in range(ENVS)]
        for step in range(1, STEPS + 1):
            events += [of_env[step - 1] for of_env in steps if step <= len(of_env)]
            if step == 2 and (number, 1) in BROKEN:
                events.append(
                    ev.GovernorRolledBack(
                        round=number, step=2, env=1, reason="", value=0.0, threshold=None, penalty=1.0, culled=[]
                    )
                )
            events.append(ev.PhaseTimed(round=number, step=step, wall=0.1, phases={}))
        events += [
            ev.EpisodeEnded(
                round=number, env=env, score=0.5, best_score=0.5, episode_return=0.1, parameter_ratio=1.0,
                fossilized=0, culled=0,
            )
            for env in range(ENVS)
        ]  # fmt: skip
    return stamp(events)


def history_of(directory: Path, keep: Callable[[ev.AnyEvent], bool] = lambda _: True) -> History:
    """Record the run in a file, without some of its lines."""
    path = directory / "run.jsonl"
    path.write_bytes(encode_lines([event for event in fp16_run() if keep(event)]))
    return open_history(path)


def test_loss_scale_is_that_of_the_last_step_before_the_round(tmp_path: Path) -> None:
    history = history_of(tmp_path)
    assert read_episode(history, 1, 0).loss_scale is None
    assert read_episode(history, 3, 0).loss_scale == LossScale(2.0**23, 3)
    assert read_episode(history, 3, 0).previous is None


def test_episode_after_rollbacks_has_those_before_it(tmp_path: Path) -> None:
    found = read_round(history_of(tmp_path), 3)
    after = found[1]
    assert after.loss_scale is None
    assert [(before.round, before.env) for before in previous_of(after)] == [(2, 1), (1, 1)]
    assert len(after.previous.steps if after.previous else ()) == 2
    assert read_episode(history_of(tmp_path), 4, 1).loss_scale == LossScale(2.0**33, 3)


def previous_of(found: RecordedEpisode) -> Sequence[RecordedEpisode]:
    return [found.previous, *previous_of(found.previous)] if found.previous else []


@pytest.mark.parametrize("step", [1, 2, STEPS])
def test_episode_with_a_missing_step_is_refused_and_others_are_not(tmp_path: Path, step: int) -> None:
    history = history_of(tmp_path, lambda event: not is_step(event, 4, 0, step))
    with pytest.raises(ConfigError, match=rf"step {step} of env 0 in round 4 of .* is missing"):
        read_episode(history, 4, 0)
    assert list(read_round(history, 4)) == [1]


def test_episode_with_an_unrecorded_loss_scale_is_refused(tmp_path: Path) -> None:
    history = history_of(tmp_path, lambda event: not is_step(event, 3, 0, STEPS))
    with pytest.raises(ConfigError, match=r"the loss scale of env 0 before round 4 is not in .*; choose a later round"):
        read_episode(history, 4, 0)


def test_rollback_that_an_excerpt_does_not_contain_is_refused(tmp_path: Path) -> None:
    history = history_of(tmp_path)
    start = history.rounds[2]
    keyframe = Keyframe.from_state(history.state_at(start), history.start_time)
    path = tmp_path / "excerpt.jsonl"
    path.write_bytes(encode_lines([keyframe, *history.events(start)]))
    excerpt = open_history(path)
    assert read_episode(excerpt, 3, 0) == read_episode(history, 3, 0)
    assert read_episode(excerpt, 4, 1) == read_episode(history, 4, 1)
    with pytest.raises(ConfigError, match="the loss scale of env 1 before round 3 is not in"):
        read_episode(excerpt, 3, 1)
    with pytest.raises(ConfigError, match="round:2 is not in this recording; it has round:3 to round:4"):
        read_episode(excerpt, 2, 0)


def is_step(event: ev.AnyEvent, round_number: int, env: int, step: int) -> bool:
    return isinstance(event, ev.EnvStepped) and (event.round, event.env, event.step) == (round_number, env, step)


def test_unknown_env_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"env 7 has no step in round 2 of .*; the round has envs 0 to 1"):
        read_episode(history_of(tmp_path), 2, 7)


def test_digest_depends_on_the_simulated_steps_only() -> None:
    longer = episode({9: Decision("advance", "mid")}, steps=9)
    assert longer.digest(8) == longer._replace(steps=longer.steps[:8]).digest(8)
    assert longer.digest(8) != longer.digest(9)
    assert GROWN.digest(8) != GROWN._replace(loss_scale=LossScale(2.0, 0)).digest(8)


@given(st.lists(st.sampled_from([None, *SLOTS]), max_size=12), st.data())
def test_seeds_partition_the_decisions_that_have_a_target(targets: list[str | None], data: st.DataObject) -> None:
    decisions: dict[int, Decision] = {}
    planted: set[str] = set()
    for step, slot in enumerate(targets, start=1):
        if slot is None:
            continue
        op = data.draw(st.sampled_from(["germinate", "advance", "cull"])) if slot in planted else "germinate"
        planted.add(slot)
        decisions[step] = Decision(op, slot, "norm" if op == "germinate" else None)
    found = episode(decisions, steps=12).seeds
    assert sorted(step for seed in found for step in seed.decisions) == sorted(decisions)
    assert [seed.step for seed in found] == [step for step, decision in decisions.items() if decision.op == "germinate"]
    assert all(seed.decisions[0] == seed.step for seed in found)
