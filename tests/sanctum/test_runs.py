"""The dashboard shows one run after another, and returns to the workspace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from esper.sanctum.app import SanctumApp, WorkspaceApp
from esper.sanctum.theme import DEFAULT_THEME
from esper.sanctum.view import OpenRun
from tests.factory import example_run
from tests.recordings.files.recordings import recording, write_segment
from tests.sanctum.driving import has_left, header, live, notices, opened, press, settle, tick, until

RUN = example_run(rounds=4)


@pytest.fixture
def telemetry_dir(tmp_path: Path) -> Path:
    """Directory with two recorded runs; the second one has no end."""
    write_segment(tmp_path / "demo", 1, recording(RUN))
    write_segment(tmp_path / "unfinished", 1, recording(RUN[:60]))
    return tmp_path


async def open_run(pilot: Pilot[Any], run: Path) -> SanctumApp:
    """Request that a run is shown, as the workspace does, and wait for it."""
    app = pilot.app
    assert isinstance(app, SanctumApp)
    app.screen.post_message(OpenRun(run))
    await until(pilot, lambda: app.source.directory == run.resolve() and not app.shows_workspace)
    await until(pilot, lambda: app.source.fraction_read is None)
    await settle(pilot)
    return app


async def test_workspace_opens_one_run_after_another_and_escape_returns(telemetry_dir: Path) -> None:
    async with opened(WorkspaceApp(telemetry_dir, theme=DEFAULT_THEME)) as pilot:
        app = pilot.app
        assert isinstance(app, WorkspaceApp)
        workspace = app.screen
        await press(pilot, "p", "space", "2", "0")  # of a run: no effect
        assert app.screen is workspace
        assert notices(app) == ["No run is open. Enter opens the selected one."]
        await open_run(pilot, telemetry_dir / "demo")
        assert "digits_impaired-20261121-015300 ppo" in header(app)
        assert "round 4/4" in header(app)  # an ended run opens at its end
        await press(pilot, "4", "escape")
        assert app.screen is workspace
        await open_run(pilot, telemetry_dir / "unfinished")
        unfinished = header(app)
        assert "round 4/4" not in unfinished
        await press(pilot, "0", "0")  # to the workspace, and back
        assert header(app) == unfinished
        await press(pilot, "t", "escape")
        assert workspace.view.palette is app.palettes[app.theme]  # pyright: ignore[reportAttributeAccessIssue]
        await press(pilot, "q")
        assert has_left(app)


async def test_escape_in_a_run_clears_before_it_returns(telemetry_dir: Path) -> None:
    async with opened(WorkspaceApp(telemetry_dir, theme=DEFAULT_THEME)) as pilot:
        app = await open_run(pilot, telemetry_dir / "demo")
        await press(pilot, "6", "slash", *"seed", "enter", "escape")
        assert not app.shows_workspace  # the search was cleared
        await press(pilot, "escape")
        assert app.shows_workspace


async def test_unreadable_run_is_reported_and_the_workspace_stays(telemetry_dir: Path) -> None:
    async with opened(WorkspaceApp(telemetry_dir, theme=DEFAULT_THEME)) as pilot:
        app = pilot.app
        app.screen.post_message(OpenRun(telemetry_dir / "gone"))
        await until(pilot, lambda: bool(notices(app)))
        assert notices(app) == [f"no recording found at {telemetry_dir / 'gone'}"]
        assert app.current_mode == "workspace"


async def test_live_run_goes_on_while_another_run_is_shown(telemetry_dir: Path) -> None:
    run = example_run()
    app, session = live(run[:20], recorded_in=telemetry_dir / "own")
    async with opened(app) as pilot:
        await press(pilot, "0")
        await open_run(pilot, telemetry_dir / "demo")
        session.say(*run[20:60])
        tick(app)
        assert app.own_source.live_state.seq == run[59].seq  # applied, although another run is shown
        assert app.source.state.seq != run[59].seq
        await press(pilot, "q")  # shows the live run, and asks
        assert app.source is app.own_source
        assert not has_left(app)
        await press(pilot, "escape", "0")
        await open_run(pilot, telemetry_dir / "own")
        assert app.source is app.own_source


async def test_escape_does_nothing_in_a_run_that_was_not_opened_from_the_workspace(telemetry_dir: Path) -> None:
    app, _ = live(example_run()[:20], recorded_in=telemetry_dir / "own")
    async with opened(app, "escape"):
        assert not app.shows_workspace
