"""A replay with a ghost run: synchronised steps, and the divergence of the two."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from textual.pilot import Pilot

from esper.recordings import events as ev
from esper.recordings.history.divergence import GhostRun
from esper.recordings.history.history import open_history
from esper.recordings.history.playback import Playback
from esper.sanctum.app import SanctumApp
from esper.sanctum.symbols import percent_cell
from esper.sanctum.widgets.env_story import EnvStory
from esper.sanctum.widgets.policy_chart import PolicyChart
from esper.sanctum.widgets.population_score import RoundScores
from esper.sanctum.widgets.timeline import Timeline
from tests.factory import example_run
from tests.recordings.files.recordings import recording, write_segment
from tests.sanctum.driving import SIZE, header, notices, press, replay_of, settle, shown, until

RUN = example_run(rounds=4)


def better(event: ev.AnyEvent) -> ev.AnyEvent:
    """Event of another run, equal until step 3 of round 2 and more accurate from then on."""
    match event:
        case ev.EnvStepped() if (event.round, event.step) >= (2, 3):
            return msgspec.structs.replace(event, score=0.975)
        case ev.EpisodeEnded() if event.round >= 2:
            return msgspec.structs.replace(event, score=0.975)
    return event


def beside(folder: Path, other: Sequence[ev.AnyEvent]) -> tuple[SanctumApp, Playback]:
    histories = [
        open_history(write_segment(folder / name, 1, recording(events)).parent)
        for name, events in (("night", RUN), ("day", other))
    ]
    return replay_of(histories[0], ghost_run=GhostRun(*histories))


async def go(pilot: Pilot[None], playback: Playback, round_: int, step: int) -> None:
    """Seek to the end of a step."""
    playback.seek(playback.history.steps[(round_ - 1) * 5 + step - 1])
    await settle(pilot)


async def test_ghost_run_is_at_the_same_step(tmp_path: Path) -> None:
    app, playback = beside(tmp_path, [better(event) for event in RUN])
    async with app.run_test(size=SIZE) as pilot:
        await go(pilot, playback, 1, 4)
        assert app.view.ghost is not None
        assert (app.view.ghost.round, app.view.ghost.step) == (1, 4)
        before = shown(app, RoundScores)
        await go(pilot, playback, 4, 2)
        assert (app.view.ghost.round, app.view.ghost.step) == (4, 2)
        chart = app.screen.query_one(RoundScores)
        assert "ghost 97.5" in str(chart.border_subtitle)
        assert shown(app, RoundScores) != before
        await press(pilot, "enter")
        assert "ghost 97.5" in str(app.screen.query_one(EnvStory).border_subtitle)
        await go(pilot, playback, 2, 2)  # the runs are still equal here: the curve hides the ghost
        assert app.view.ghost.envs[0].scores == playback.state.envs[0].scores


async def test_divergence_is_notified_once_and_stays_in_header(tmp_path: Path) -> None:
    app, playback = beside(tmp_path, [better(event) for event in RUN])
    async with app.run_test(size=(200, 60)) as pilot:
        await go(pilot, playback, 1, 1)
        await until(pilot, lambda: bool(notices(app)))
        messages = notices(app)
        assert len(messages) == 1
        assert messages[0].startswith("night and day diverge at round 2 step 3, env 00: score ")
        assert "REPLAY paused, ≠ from round 2 step 3: day" in header(app)
        assert "≠" in shown(app, Timeline)
        await go(pilot, playback, 2, 1)
        await press(pilot, "n")
        assert (playback.state.round, playback.state.step) == (2, 3)


async def test_equal_runs_are_marked_as_equal(tmp_path: Path) -> None:
    app, playback = beside(tmp_path, RUN)
    async with app.run_test(size=SIZE) as pilot:
        await go(pilot, playback, 2, 1)
        assert "REPLAY paused, = day" in header(app)


async def test_shorter_ghost_run_stays_at_its_end(tmp_path: Path) -> None:
    rounds = [index for index, event in enumerate(RUN) if isinstance(event, ev.RoundStarted)]
    app, playback = beside(tmp_path, [better(event) for event in RUN[: rounds[3]]])
    async with app.run_test(size=SIZE) as pilot:
        await go(pilot, playback, 4, 5)
        assert "ghost –" in str(app.screen.query_one(RoundScores).border_subtitle)
        await press(pilot, "enter")
        assert "ghost" not in str(app.screen.query_one(EnvStory).border_subtitle)


async def test_ghost_with_other_envs_and_steps_has_round_curves(tmp_path: Path) -> None:
    app, playback = beside(tmp_path, example_run(envs=6, rounds=4, steps=8))
    async with app.run_test(size=SIZE) as pilot:
        await go(pilot, playback, 3, 2)
        assert app.view.ghost is not None
        assert (app.view.ghost.round, app.view.ghost.step) == (3, 2)
        await go(pilot, playback, 3, 5)
        assert (app.view.ghost.round, app.view.ghost.step) == (3, 8)
        final = percent_cell(app.view.ghost.scores_by_round[-1].median).text.strip()
        assert f"ghost {final}" in str(app.screen.query_one(RoundScores).border_subtitle)
        await press(pilot, "enter")
        await press(pilot, "escape", "2")
        chart = app.screen.query(PolicyChart).last().chart()
        assert chart is not None
        assert [(curve.name, curve.xs) for curve in chart.curves] == [("latest", [1, 2, 3]), ("ghost", [1, 2, 3])]
