"""The story of an env: marks, lanes, the selected step, and travel to it."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from esper.recordings import events as ev
from esper.sanctum.app import SanctumApp
from esper.sanctum.screens.chart import ChartScreen
from esper.sanctum.screens.env_detail import EnvDetailScreen, EnvStep
from esper.sanctum.widgets.env_decision import EnvDecision
from esper.sanctum.widgets.env_explanation import EnvExplanation
from esper.sanctum.widgets.env_story import EnvStory, SlotLanes
from tests.factory import env_stepped, run_started, stamp
from tests.recordings.effects.growing import DECISIONS, growing_run
from tests.sanctum.driving import (
    ROOMY,
    SIZE,
    emit,
    live,
    notices,
    opened,
    press,
    replay,
    resize,
    screen_text,
    settle,
    shown,
    terminal_rows,
    until,
)
from tests.sanctum.population import moved, population

SIZES = [(80, 24), SIZE, ROOMY]
GLYPHS = {2: "g", 4: "b", 5: "g", 7: "x"}
"""Mark of each decision of `growing_run`, keyed by step."""
EARLIER, LATER = "left_square_bracket", "right_square_bracket"


def column_on_screen(story: EnvStory, step: int) -> int:
    """Column of the screen at a step of the story."""
    column = story.column_of(step)
    assert column is not None
    return story.content_region.x + column


def screen_column(app: SanctumApp, panel: EnvStory | SlotLanes, column: int) -> str:
    """Characters of a panel in a column of the screen, from top to bottom."""
    region = panel.content_region
    return "".join(row[column] for row in screen_text(app).splitlines()[region.y : region.bottom])


def slotted(slots: int, steps: int = 9) -> list[ev.AnyEvent]:
    """Events of an env with this many slots; the last one is planted in step 3, blended in from step 5 on."""
    names = [f"block_{index:02d}" for index in range(slots)]
    empty = ev.SlotReading(stage="dormant")
    events: list[ev.AnyEvent] = [
        msgspec.structs.replace(run_started(1, 2, steps), slot_names=names),
        ev.RoundStarted(round=1),
    ]
    for step in range(1, steps + 1):
        seed = empty
        if step >= 3:
            alpha = None if step < 5 else min((step - 4) / 4, 1.0)
            stage = "training" if step < 5 else "blending" if step < 8 else "probationary"
            seed = ev.SlotReading(
                stage=stage, blueprint="norm", alpha=alpha, age=step - 2, parameters=32,
                dependence=None if alpha is None else step / 100, dependence_se=None if alpha is None else 0.01,
            )  # fmt: skip
        op = {3: "germinate", 5: "advance"}.get(step, "wait")
        target = None if op == "wait" else names[-1]
        events.append(
            env_stepped(0, 1, step, op=op, target=target, score=step / 10, slots=[empty] * (slots - 1) + [seed])
        )
        if step == 3:
            planted = moved(0, names[-1], "dormant", "germinated", "norm", "germinate")
            events.append(msgspec.structs.replace(planted, step=3))
        events.append(ev.PhaseTimed(round=1, step=step, wall=0.2, phases={}))
    return stamp(events)


async def test_each_decision_has_its_mark_on_the_curve(tmp_path: Path) -> None:
    app, _ = replay(growing_run(), tmp_path, at_end=True)
    async with opened(app, "enter") as pilot:
        story = app.screen.query_one(EnvStory)
        for size in SIZES:
            await resize(pilot, size)
            for step, glyph in GLYPHS.items():
                assert glyph in screen_column(app, story, column_on_screen(story, step)), (step, size)
            for step in set(range(1, 10)) - set(DECISIONS):
                assert not set("gbx") & set(screen_column(app, story, column_on_screen(story, step))), (step, size)


async def test_lanes_have_the_columns_of_the_curve(tmp_path: Path) -> None:
    app, _ = replay(slotted(3), tmp_path, at_end=True)
    async with opened(app, "enter", EARLIER) as pilot:
        story, lanes = app.screen.query_one(EnvStory), app.screen.query_one(SlotLanes)
        for size in SIZES:
            await resize(pilot, size)
            for step, letter in {3: "t", 5: "b", 8: "p"}.items():
                assert letter in screen_column(app, lanes, column_on_screen(story, step)), size
            # The selected step is a line through the curve and the empty lanes.
            column = column_on_screen(story, 5)
            assert "│" in screen_column(app, story, column), size
            assert "│" in screen_column(app, lanes, column), size
        story.focus()
        await press(pilot, "plus")  # the lanes follow the zoom
        for step, letter in {3: "t", 5: "b"}.items():
            assert letter in screen_column(app, lanes, column_on_screen(story, step))
        assert story.column_of(8) is None


async def test_height_of_a_lane_is_alpha(tmp_path: Path) -> None:
    app, _ = replay(slotted(3), tmp_path, at_end=True)
    async with opened(app, "enter", size=(80, 24)):
        story = app.screen.query_one(EnvStory)
        line = app.screen.query_one(SlotLanes).text.splitlines()[-1]
        columns = [story.column_of(step) or 0 for step in range(10)]
        assert [line[columns[step] + 1] for step in (3, 5, 6, 7)] == ["╌", "▂", "▄", "▅"]
        assert line[columns[9]] == "▇"
        assert line[: columns[3]].split() == ["2", "·"]


async def test_figures_of_a_slot_are_those_of_the_selected_step(tmp_path: Path) -> None:
    app, _ = replay(slotted(3), tmp_path, at_end=True)
    async with opened(app, "enter") as pilot:
        lanes = app.screen.query_one(SlotLanes)

        def figures() -> str:
            return " ".join(lanes.text.splitlines()[-1][app.screen.query_one(EnvStory).plot_columns().stop :].split())

        assert figures().startswith("p ")
        assert "norm 1.00 +9.0" in figures()
        assert figures().endswith("32 7")
        await press(pilot, EARLIER)
        for size in SIZES:
            await resize(pilot, size)
            assert "at step 5" in str(lanes.border_title)
            assert "norm 0.25 +5.0" in figures(), size
            assert figures().endswith("32 3") == (size[0] >= 120)  # the same seed: its age then


async def test_twelve_slots_leave_room_for_the_curve(tmp_path: Path) -> None:
    app, _ = replay(slotted(12), tmp_path, at_end=True)
    async with opened(app, "enter") as pilot:
        story, lanes = app.screen.query_one(EnvStory), app.screen.query_one(SlotLanes)
        for size in SIZES:
            await resize(pilot, size)
            assert story.size.height >= 6, size
            letters = "".join(line for line in lanes.text.splitlines() if line.startswith("11"))
            assert {"t", "b"} <= set(letters), size  # the only slot with a seed has a lane
            assert ("of 12 slots" in str(lanes.border_title)) == (size[1] < 40)


async def test_cursor_of_the_focused_story_selects_steps(tmp_path: Path) -> None:
    app, _ = replay(growing_run(), tmp_path, at_end=True)
    async with opened(app, "enter") as pilot:
        story = app.screen.query_one(EnvStory)
        story.focus()
        await press(pilot, "left")
        assert app.view.selected_decision == (1, 0, 9)
        assert shown(app, EnvDecision).startswith("wait")
        await press(pilot, "x")
        assert any("waited in step 9" in notice for notice in notices(app))
        await press(pilot, "left", "left")
        assert app.view.selected_step == 7
        assert shown(app, EnvDecision).startswith("x cull in mid")
        assert "step 7: accuracy 72.2" in str(story.border_subtitle)
        await press(pilot, LATER, EARLIER)
        assert app.view.selected_step == 5
        await press(pilot, "escape")
        assert app.view.selected_step is None
        assert isinstance(app.screen, EnvDetailScreen)


async def test_cursor_does_not_skip_a_decision_of_a_long_episode(tmp_path: Path) -> None:
    app, _ = replay(growing_run(steps=230), tmp_path, at_end=True)
    async with opened(app, "enter", size=(80, 24)) as pilot:
        story = app.screen.query_one(EnvStory)
        story.focus()
        await press(pilot, EARLIER, *["left"] * 6)
        assert app.view.selected_step in DECISIONS or app.view.selected_step == 1
        await press(pilot, *["right"] * 3)
        assert (app.view.selected_step or 0) > 7


async def test_click_selects_and_pointer_only_shows_values(tmp_path: Path) -> None:
    app, _ = replay(growing_run(), tmp_path, at_end=True)
    async with opened(app, "enter") as pilot:
        story = app.screen.query_one(EnvStory)
        await pilot.hover(EnvStory, offset=(1 + (story.column_of(4) or 0), 5))
        await settle(pilot)
        assert "step 4: accuracy" in str(story.border_subtitle)
        assert app.view.selected_step is None
        await pilot.click(EnvStory, offset=(1 + (story.column_of(4) or 0), 5))
        await settle(pilot)
        assert app.view.selected_step == 4
        lines = app.screen.query_one(EnvDecision).text.splitlines()
        row = next(number for number, line in enumerate(lines) if line.startswith("   2 g depthwise"))
        await pilot.click(EnvDecision, offset=(5, 1 + row))
        assert app.view.selected_step == 2
        assert shown(app, EnvDecision).startswith("g germinate depthwise")
        await pilot.click(SlotLanes, offset=(1 + (story.column_of(7) or 0), 3))
        assert app.view.selected_step == 7
        assert shown(app, EnvDecision).startswith("x cull in mid")


@pytest.mark.parametrize("is_focused", [False, True])
async def test_enter_on_a_mark_goes_to_the_end_of_its_step(tmp_path: Path, is_focused: bool) -> None:
    app, playback = replay(growing_run(rounds=2), tmp_path, at_end=True)
    async with opened(app, "enter", EARLIER, EARLIER) as pilot:
        if is_focused:
            app.screen.query_one(EnvStory).focus()
        await press(pilot, "enter")
        assert isinstance(app.screen, EnvDetailScreen)
        assert (playback.state.round, playback.state.step) == (2, 5)
        assert app.view.selected_step == 5


async def test_enter_in_a_live_run_opens_the_past(tmp_path: Path) -> None:
    events = [event for event in growing_run(ends=False) if getattr(event, "step", 0) <= 8]
    app, _ = live(events, recorded_in=tmp_path)
    async with opened(app, "enter", EARLIER) as pilot:
        await press(pilot, "enter")
        await until(pilot, lambda: app.source.playback is not None and app.source.state.step == 7)
        await press(pilot, "end")
        assert app.source.state.step == 8


async def test_enter_without_a_selection_shows_the_whole_screen(tmp_path: Path) -> None:
    app, _ = replay(growing_run(), tmp_path, at_end=True)
    async with opened(app, "enter") as pilot:
        await press(pilot, "enter")
        assert "Select a step first." in notices(app)
        app.screen.query_one(EnvStory).focus()
        await press(pilot, "enter")
        assert isinstance(app.screen, ChartScreen)
        await press(pilot, "left", "enter")
        assert isinstance(app.screen, EnvDetailScreen)


async def test_selection_ends_with_the_round() -> None:
    app, session = live(growing_run(ends=False))
    async with opened(app, "enter", EARLIER) as pilot:
        assert app.view.selected_step == 7
        await emit(pilot, session, ev.RoundStarted(round=2))
        assert app.view.selected_step is None
        assert "no step yet in this round" in shown(app, EnvDecision)
        await emit(pilot, session, env_stepped(0, 2, 1, score=0.2))
        assert "step 1" in str(app.screen.query_one(EnvDecision).border_title)


async def test_rollback_is_a_mark() -> None:
    rolled_back = ev.GovernorRolledBack(round=1, step=6, env=0, reason="the loss is NaN", value=math.nan)
    events = [event for event in growing_run(ends=False) if getattr(event, "step", 0) <= 6]
    app, _ = live(stamp([*events, rolled_back]))
    async with opened(app, "enter"):
        story = app.screen.query_one(EnvStory)
        assert "↶" in screen_column(app, story, column_on_screen(story, 6))


async def test_damaged_recording_has_a_story(tmp_path: Path) -> None:
    lost = {("EnvStepped", 4), ("EnvStepped", 6), ("SeedMoved", 5), ("RoundStarted", 2)}

    def is_lost(event: ev.AnyEvent) -> bool:
        at = event.round if isinstance(event, ev.RoundStarted) else getattr(event, "step", 0)
        return (type(event).__name__, at) in lost

    events = [event for event in growing_run(rounds=2) if not is_lost(event)]
    for index, event in enumerate(events):
        if isinstance(event, ev.EnvStepped) and event.step == 7:
            events[index] = msgspec.structs.replace(event, score=math.nan)
    app, playback = replay(events, tmp_path, at_end=True)
    async with opened(app, "enter", EARLIER) as pilot:
        story, lanes = app.screen.query_one(EnvStory), app.screen.query_one(SlotLanes)
        assert app.view.selected_step == 7
        assert "x" in screen_column(app, story, column_on_screen(story, 7))
        # A lost step has no stage: its columns are blank.
        assert "▄" not in screen_column(app, lanes, column_on_screen(story, 4))
        await press(pilot, EARLIER, "enter")
        assert playback.state.step == 5


async def test_explanation_and_last_step_take_the_place_of_the_decision() -> None:
    app, _ = live(population(envs=2, rounds=2, stop=17))
    async with opened(app, "enter") as pilot:
        decision, explanation = app.screen.query_one(EnvDecision), app.screen.query_one(EnvExplanation)
        side = app.screen.query_one("#side-step", EnvStep)
        for size in SIZES:
            await resize(pilot, size)
            assert not explanation.display
            await press(pilot, "o")
            assert explanation.display
            assert decision.display == (size == ROOMY)  # it has room for both
            if size[1] < 34:
                await press(pilot, "o")
                assert side.display
                assert "train acc %" in side.text
                await resize(pilot, SIZE)
                assert not side.display  # it has another place
                await resize(pilot, size)
            await press(pilot, "o")
            assert decision.display
            assert not explanation.display
            assert not side.display


async def test_ascii_terminal_has_marks_and_lanes() -> None:
    app, _ = live(slotted(3), symbols="ascii")
    async with opened(app, "enter", size=(80, 24)):
        text = "\n".join("".join(segment.text for segment in row) for row in terminal_rows(app))
        assert text.isascii()
        assert "t-" in text
        assert "b_" in text
