"""The curve store gives the curves of the events, however they were read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.recordings import events as ev
from esper.recordings.files import segments
from esper.recordings.history import curve_store, keyframe_index
from esper.recordings.history.curve_store import MAX_ENVS, CurveStore, env_of
from esper.recordings.history.curves import Point, RunCurves
from esper.recordings.history.history import History, open_history
from tests.factory import START, example_run, stamp
from tests.recordings.files.recordings import fold, lines, recording, write_segment

RUN = example_run(envs=3, rounds=3, steps=3)
OTHER = [
    msgspec.structs.replace(event, loss=event.loss + 1) if isinstance(event, ev.EnvStepped) else event for event in RUN
]
"""The same events with other losses."""
ENV = 2


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyframe_index, "INDEX_INTERVAL", 7)
    monkeypatch.setattr(segments, "READ_CHUNK_BYTES", 2000)
    monkeypatch.setattr(curve_store, "_EVENTS_PER_CHECK", 3)


def expected(events: Sequence[ev.AnyEvent]) -> dict[str, list[tuple[int, float]]]:
    """Steps and values of the curves over all envs, and of one env."""
    found: dict[str, list[tuple[int, float]]] = {}
    curves = RunCurves(per_env=True)
    for event in events:
        for point in curves.points(event):
            if isinstance(point, Point) and env_of(point.curve) in {None, ENV}:
                found.setdefault(point.curve, []).append((point.step, float(point.value)))
    return found


def stored(store: CurveStore) -> dict[str, list[tuple[int, float]]]:
    """Steps and values of the curves of a store: those over all envs, and of one env."""
    names = store.names
    names += [name.replace("/median", f"/env {ENV:02d}") for name in names if name.endswith("/median")]
    names.append(f"skipped batches/env {ENV:02d}")
    curves = {name: store.curve(name) for name in names}
    return {
        name: list(zip(curve.steps.tolist(), curve.values.tolist(), strict=True))
        for name, curve in curves.items()
        if len(curve.steps)
    }


def assert_equal(store: CurveStore, events: Sequence[ev.AnyEvent]) -> None:
    found, wanted = stored(store), expected(events)
    differing = [name for name in found.keys() | wanted.keys() if repr(found.get(name)) != repr(wanted.get(name))]
    assert not differing


def read_all(store: CurveStore, history: History) -> None:
    """Read the rest of a history, and the curves of the env."""
    store.curve(f"loss/env {ENV:02d}")
    store.update(history, None, math.inf)
    assert store.fraction_read == 1


ACTIONS = st.lists(st.sampled_from(["poll", "update", "ask", "poll all"]), max_size=40)


@given(actions=ACTIONS)
def test_store_read_in_slices_equals_run_curves(tmp_path_factory: pytest.TempPathFactory, actions: list[str]) -> None:
    history, store = (
        open_history(write_segment(tmp_path_factory.mktemp("run"), 1, recording(RUN)), within=0.0),
        CurveStore(),
    )
    for action in actions:
        match action:
            case "poll":
                history.poll(within=0.0)
            case "poll all":
                history.poll()
            case "ask":
                store.curve(f"loss/env {ENV:02d}")
            case _:
                store.update(history, None, 0.0)
    history.poll()
    read_all(store, history)
    assert_equal(store, RUN)


@given(
    restores=st.lists(st.tuples(st.integers(1, len(RUN)), st.integers(1, len(RUN))), max_size=4),
    budgets=st.lists(st.sampled_from([0.0, math.inf, None]), min_size=5, max_size=5),
)
def test_store_of_a_rewound_run_equals_its_history(
    tmp_path_factory: pytest.TempPathFactory, restores: list[tuple[int, int]], budgets: list[float | None]
) -> None:
    """`restores`: number of kept events, and number of the events after them; `budgets`: None does not read."""
    run = list(RUN[:40])
    path = tmp_path_factory.mktemp("run")
    write_segment(path, 1, recording(run))
    history, store = open_history(path), CurveStore()
    for number, (kept, length) in enumerate([(40, 0), *restores]):
        if number:
            run = run[:kept]
            after = stamp(OTHER[len(run) : len(run) + length], first=len(run) + 1, start=START + 1000 * number)
            write_segment(path, number + 1, recording(after, fold(run)))
            run += after
            history.poll()
        if budgets[number] is not None:
            store.curve(f"loss/env {ENV:02d}")
            store.update(history, None, budgets[number] or 0.0)
    assert repr(list(history.events())) == repr(run)
    read_all(store, history)
    assert_equal(store, run)
    steps = store.curve("step time/total").steps
    done = [sum(isinstance(event, ev.EnvStepped) for event in run[:position]) for position in history.steps]
    ends = [history.elapsed(position - 1, run[position - 1].time) for position in history.steps]
    assert store.x_values(steps, "env-steps").tolist() == done
    assert store.x_values(steps, "time").tolist() == ends


def test_curves_end_at_the_playhead(tmp_path: Path) -> None:
    history, store = open_history(write_segment(tmp_path, 1, recording(RUN))), CurveStore()
    read_all(store, history)
    for playhead in range(0, len(RUN), 9):
        store.update(history, playhead, math.inf)
        assert_equal(store, RUN[:playhead])


def test_store_continues_with_a_growing_recording(tmp_path: Path) -> None:
    path = write_segment(tmp_path, 1, recording(RUN[:40]))
    history, store = open_history(path), CurveStore()
    read_all(store, history)
    before = store.key("loss/median")
    assert not store.update(history, None, math.inf)
    with path.open("ab") as file:
        file.write(lines(RUN[40:]))
    history.poll()
    assert store.key("loss/median") != before
    assert_equal(store, RUN)


def test_store_of_another_history_begins_again(tmp_path: Path) -> None:
    store = CurveStore()
    assert (store.names, store.update(None, None, math.inf), store.fraction_read) == ([], False, 1.0)
    for name, run in (("first", RUN), ("second", OTHER[:50])):
        history = open_history(write_segment(tmp_path / name, 1, recording(run)))
        read_all(store, history)
        assert_equal(store, run)


def test_only_the_envs_asked_for_last_are_kept(tmp_path: Path) -> None:
    run = example_run(envs=MAX_ENVS + 2, rounds=1, steps=4)
    history, store = open_history(write_segment(tmp_path, 1, recording(run))), CurveStore()
    for env in range(MAX_ENVS + 2):
        assert len(store.curve(f"loss/env {env:02d}").steps) == 0
        store.update(history, None, math.inf)
        assert len(store.curve(f"loss/env {env:02d}").steps) == 4
    assert len(store.curve("loss/env 02").steps) == 4
    assert len(store.curve("loss/env 00").steps) == 0


def test_curves_of_an_excerpt_have_the_steps_of_the_run(tmp_path: Path) -> None:
    start = next(i for i, event in enumerate(RUN) if isinstance(event, ev.RoundStarted) and event.round == 2)
    store = CurveStore()
    read_all(store, open_history(write_segment(tmp_path, 2, recording(RUN[start:], fold(RUN[:start])))))
    whole = expected(RUN)
    assert stored(store)["loss/median"] == [point for point in whole["loss/median"] if point[0] > 3]


def test_steps_become_values_of_each_axis(tmp_path: Path) -> None:
    history, store = open_history(write_segment(tmp_path, 1, recording(RUN))), CurveStore()
    read_all(store, history)
    steps = store.curve("KL/policy").steps
    ends = [history.elapsed(position - 1, RUN[position - 1].time) for position in history.steps]
    assert steps.tolist() == [3, 6, 9]
    assert store.x_values(steps, "step").tolist() == [3, 6, 9]
    assert store.x_values(steps, "round").tolist() == [1, 2, 3]
    assert store.x_values(steps, "env-steps").tolist() == [9, 18, 27]
    assert store.x_values(steps, "time").tolist() == [ends[2], ends[5], ends[8]]
