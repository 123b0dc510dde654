"""The comparison of two recordings finds the one event that was modified."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.recordings import events as ev
from esper.recordings.history.divergence import DETERMINISTIC_EVENTS, DivergenceSearch, GhostRun
from esper.recordings.history.history import History, open_history
from tests.factory import example_run, stamp
from tests.recordings.files.recordings import fold, recording, write_segment

RUN = example_run()
COMPUTED_AT = [index for index, event in enumerate(RUN) if type(event) in DETERMINISTIC_EVENTS]


def history(directory: Path, events: Sequence[ev.AnyEvent]) -> History:
    return open_history(write_segment(directory, 1, recording(events)))


def compare(folder: Path, events: Sequence[ev.AnyEvent]) -> DivergenceSearch:
    comparison = DivergenceSearch(history(folder / "a", RUN), history(folder / "b", events), ("a", "b"))
    assert comparison.search()
    return comparison


def modified_run(index: int, **changes: object) -> list[ev.AnyEvent]:
    return [*RUN[:index], msgspec.structs.replace(RUN[index], **changes), *RUN[index + 1 :]]


@given(index=st.sampled_from(COMPUTED_AT))
def test_divergence_names_the_first_changed_event(tmp_path_factory: pytest.TempPathFactory, index: int) -> None:
    folder = tmp_path_factory.mktemp("runs")

    comparison = compare(folder, modified_run(index, round=7))

    found = comparison.divergence
    assert found is not None
    assert (found.position, found.other_position) == (index + 1, index + 1)
    assert comparison.num_equal == COMPUTED_AT.index(index)
    event = RUN[index]
    assert isinstance(event, tuple(DETERMINISTIC_EVENTS))
    assert f"a and b diverge at round {event.round}" in comparison.description
    assert f"round {event.round} vs 7" in comparison.description


def test_divergence_ignores_seq_time_and_requests(tmp_path: Path) -> None:
    other: list[ev.AnyEvent] = []
    for event in RUN:
        if isinstance(event, ev.PhaseTimed):
            event = msgspec.structs.replace(event, wall=9.0)
            other += [ev.Paused(round=1, step=1, origin="test"), ev.Resumed(round=1, step=1, origin="test")]
        other.append(event)

    comparison = compare(tmp_path, stamp(other, start=5.0))

    assert comparison.divergence is None
    assert comparison.description == f"a and b are equal until one of them ends: {len(COMPUTED_AT)} equal events"


def test_divergence_finds_a_nan_in_one_run(tmp_path: Path) -> None:
    index = next(i for i, event in enumerate(RUN) if isinstance(event, ev.EnvStepped) and event.env == 2)

    found = compare(tmp_path, modified_run(index, loss=math.nan)).divergence

    assert found is not None
    assert (found.round, found.step, found.env) == (1, 1, 2)
    assert "loss 2 vs nan" in found.text


def test_divergence_names_nested_fields(tmp_path: Path) -> None:
    index = next(i for i, event in enumerate(RUN) if isinstance(event, ev.EnvStepped))
    step = RUN[index]
    assert isinstance(step, ev.EnvStepped)
    slots = [step.slots[0], msgspec.structs.replace(step.slots[1], alpha=0.25, dependence=None), step.slots[2]]

    found = compare(
        tmp_path, modified_run(index, slots=slots, reward_parts={**step.reward_parts, "rent": 0.0})
    ).divergence

    assert found is not None
    assert "reward_parts.rent -0.05 vs 0" in found.text
    assert "slots[1].alpha 0.5 vs 0.25" in found.text
    assert "slots[1].dependence 0.04 vs no value" in found.text


def test_divergence_finds_another_event_type(tmp_path: Path) -> None:
    index = next(i for i, event in enumerate(RUN) if isinstance(event, ev.SeedMoved))

    found = compare(tmp_path, [*RUN[:index], *RUN[index + 1 :]]).divergence

    assert found is not None
    assert found.position == index + 1
    assert "SeedMoved vs" in found.text


def test_divergence_ignores_an_early_end(tmp_path: Path) -> None:
    comparison = compare(tmp_path, RUN[:40])

    assert comparison.divergence is None
    assert "equal until one of them ends" in comparison.description


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (modified_run(0, seed=3), "a has random seed 0, b has 3; only their curves by round can be compared"),
        (
            modified_run(0, task="digits"),
            "a has task digits_impaired, b has digits; only their curves by round can be compared",
        ),
        (example_run(envs=2), "a has number of envs 4, b has 2; only their curves by round can be compared"),
    ],
)
def test_incomparable_runs_are_not_compared(other: Sequence[ev.AnyEvent], message: str, tmp_path: Path) -> None:
    comparison = DivergenceSearch(history(tmp_path / "a", RUN), history(tmp_path / "b", other), ("a", "b"))

    assert comparison.search()
    assert comparison.divergence is None
    assert comparison.description == message


def test_excerpt_is_compared_from_its_first_complete_step(tmp_path: Path) -> None:
    cut = next(i for i, event in enumerate(RUN) if isinstance(event, ev.EnvStepped) and event.step == 3)
    last = max(COMPUTED_AT)
    other = modified_run(last, round=9)
    piece = open_history(write_segment(tmp_path / "b", 1, recording(other[cut:], fold(other[:cut]))))
    comparison = DivergenceSearch(history(tmp_path / "a", RUN), piece, ("a", "b"))

    assert comparison.search()

    assert comparison.divergence is not None
    assert (comparison.divergence.position, comparison.divergence.other_position) == (last + 1, last + 1 - cut)


def test_divergence_search_can_be_interrupted_and_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esper.recordings.history.divergence.EVENTS_PER_CLOCK_CHECK", 3)
    index = COMPUTED_AT[-1]
    comparison = DivergenceSearch(
        history(tmp_path / "a", RUN), history(tmp_path / "b", modified_run(index, round=9)), ("a", "b")
    )

    slices = 1
    while not comparison.search(0.0):
        assert "so far" in comparison.description
        slices += 1

    assert slices == (len(COMPUTED_AT) + 2) // 3
    assert comparison.divergence is not None
    assert comparison.divergence.position == index + 1
    assert not comparison.search()


def test_ghost_run_is_at_the_same_step(tmp_path: Path) -> None:
    run = history(tmp_path / "a", RUN)
    slower = [event for event in RUN if not isinstance(event, ev.DeviceSampled)]
    ghost = GhostRun(run, history(tmp_path / "b", stamp(slower)))

    for position in [0, 1, 2, *run.steps, 30, *(start + 1 for start in run.rounds)]:
        state = fold(RUN[:position])
        ghost.follow(state, 0.0)
        assert (ghost.state.round, ghost.state.step) == (state.round, state.step)
