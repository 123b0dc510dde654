"""Marks are set for notable events and stay ordered by position."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from esper.common.domain import StageName
from esper.recordings import events as ev
from esper.recordings.history.timeline import NAVIGABLE_KINDS, MarkFilter, MarkKind, Marks

STEP: dict[str, Any] = {"round": 1, "step": 1, "env": 0}


def moved(after: StageName) -> ev.SeedMoved:
    return ev.SeedMoved(**STEP, slot="mid", before="blending", after=after, reason="test")


def stepped(**values: Any) -> ev.EnvStepped:
    fields: dict[str, Any] = {"op": "wait", "train_loss": 1.0, "train_score": 0.5, "loss": 1.0, "score": 0.5}
    return ev.EnvStepped(
        **STEP, **fields, reward=0.0, reward_parts={}, grad_norm=1.0, parameter_ratio=1.0, slots=[], **values
    )


def anomaly(value: float) -> ev.AnomalyFound:
    return ev.AnomalyFound(rule="rule", severity="error", where="env 0", value=value, text="text")


EVENTS_AND_KINDS: list[tuple[ev.AnyEvent, MarkKind | None]] = [
    (moved("germinated"), MarkKind.PLANTED),
    (moved("fossilized"), MarkKind.FOSSILIZED),
    (moved("culled"), MarkKind.CULLED),
    (moved("blending"), None),
    (stepped(), None),
    (stepped(skipped_batches=1), MarkKind.SKIP),
    (anomaly(3.0), MarkKind.ANOMALY),
    (anomaly(math.nan), MarkKind.NOT_FINITE),
    (ev.Paused(round=1, step=1, origin="keyboard"), MarkKind.PAUSE),
    (ev.CheckpointSaved(round=1, step=1, path="p", bytes=1, origin="end"), MarkKind.CHECKPOINT),
    (ev.RoundStarted(round=1), MarkKind.ROUND),
]


def marks_of(chosen: list[int]) -> tuple[Marks, list[tuple[MarkKind, int]]]:
    marks, expected = Marks(), []
    for position, index in enumerate(chosen, start=1):
        event, kind = EVENTS_AND_KINDS[index]
        marks.add_for_event(event, position, position / 10)
        expected += [(kind, position)] if kind is not None else []
    return marks, expected


def test_events_have_their_marks() -> None:
    marks, expected = marks_of(list(range(len(EVENTS_AND_KINDS))))
    assert [(mark.kind, mark.position) for mark in marks] == expected


@given(chosen=st.lists(st.integers(0, len(EVENTS_AND_KINDS) - 1), max_size=40), at=st.integers(0, 41))
def test_next_and_previous_mark_are_the_nearest(chosen: list[int], at: int) -> None:
    marks, expected = marks_of(chosen)
    navigable = [position for kind, position in expected if kind in NAVIGABLE_KINDS]

    shown = MarkFilter("all")
    after, before = marks.next_navigable(at, shown), marks.previous_navigable(at, shown)

    assert (after and after.position) == min((stop for stop in navigable if stop > at), default=None)
    assert (before and before.position) == max((stop for stop in navigable if stop < at), default=None)


@given(chosen=st.lists(st.integers(0, len(EVENTS_AND_KINDS) - 1), max_size=40), at=st.integers(0, 41))
def test_marks_of_undone_events_are_removed(chosen: list[int], at: int) -> None:
    marks, expected = marks_of(chosen)
    marks.truncate_after(at)
    assert [(mark.kind, mark.position) for mark in marks] == [pair for pair in expected if pair[1] <= at]


@given(
    chosen=st.lists(st.integers(0, len(EVENTS_AND_KINDS) - 1), max_size=20),
    bookmarks=st.lists(st.integers(0, 21), max_size=12),
)
def test_bookmarks_can_be_set_and_removed_in_order(chosen: list[int], bookmarks: list[int]) -> None:
    marks, expected = marks_of(chosen)

    is_set = [marks.toggle(position, position / 10) for position in bookmarks]

    assert is_set == [bookmarks[: index + 1].count(position) % 2 == 1 for index, position in enumerate(bookmarks)]
    kept = {position for position in bookmarks if bookmarks.count(position) % 2}
    assert {mark.position for mark in marks if mark.kind is MarkKind.BOOKMARK} == kept
    positions = [mark.position for mark in marks]
    assert positions == sorted(positions)
    assert len(marks) == len(expected) + len(kept)


def test_anomaly_marks_are_numbered_from_one() -> None:
    marks, _ = marks_of([6, 9, 7])
    assert [mark and mark.position for mark in (marks.nth_anomaly(0), marks.nth_anomaly(1), marks.nth_anomaly(2))] == [
        None,
        1,
        3,
    ]
    assert marks.nth_anomaly(3) is None
