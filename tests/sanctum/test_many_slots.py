"""Screens of a run with 16 slots: all columns fit into the table, and the headings of the slots differ."""

from __future__ import annotations

from pathlib import Path

import msgspec

from esper.recordings import events as ev
from esper.sanctum.symbols import slot_labels
from tests.factory import example_run
from tests.sanctum.driving import ROOMY, opened, press, replay, resize, screen_text

SLOTS = [f"block_{index:02d}" for index in range(16)]


def wide_run() -> list[ev.AnyEvent]:
    """The example run with 16 slots: those of the example, over and over."""
    events: list[ev.AnyEvent] = []
    for event in example_run():
        if isinstance(event, ev.RunStarted):
            event = msgspec.structs.replace(event, slot_names=SLOTS)
        elif isinstance(event, ev.EnvStepped):
            event = msgspec.structs.replace(event, slots=(event.slots * 16)[:16])
        events.append(event)
    return events


async def test_env_table_shows_the_stage_of_every_slot(tmp_path: Path) -> None:
    app, _ = replay(wide_run(), tmp_path, at_end=True)
    async with opened(app, size=(60, 15)) as pilot:
        for size in ((60, 15), (120, 40), (80, 24)):
            await resize(pilot, size)
            lines = screen_text(app).splitlines()
            heading = next(line for line in lines if "return" in line)
            assert "slots" in heading
            assert "lane" in heading
            (row,) = [line for line in lines if line.lstrip("│").startswith(" 02")]
            assert any(len(word) == 16 for word in row.split())
        await press(pilot, "o", "o", "o", "o")  # accuracy, return, two slots, which have no column
        assert "block_01" in screen_text(app)
        await resize(pilot, ROOMY)
        heading = next(line for line in screen_text(app).splitlines() if "return" in line)
        assert [word.rstrip("↓") for word in heading.split() if word[:2].isdecimal()] == [f"{n:02d}" for n in range(16)]


async def test_growth_and_numerics_tell_slots_apart(tmp_path: Path) -> None:
    app, _ = replay(wide_run(), tmp_path, at_end=True)
    async with opened(app) as pilot:
        for key in "34":
            await press(pilot, key)
            heading = next(line for line in screen_text(app).splitlines() if "env " in line and "00" in line)
            assert [word for word in heading.split() if word in {"07", "15"}] == ["07", "15"]


def test_names_that_fit_are_kept() -> None:
    assert slot_labels(["early", "mid", "late"], 5) == ["early", "mid", "late"]
    assert slot_labels(["block_21", "block_3"], 5) == ["21", "3"]
    assert slot_labels(["block", "block_1"], 5) == ["block", "block_1"]  # nothing would be left of the first
    assert slot_labels(["alone_and_long"], 5) == ["alone_and_long"]
