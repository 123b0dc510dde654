"""The dialog at the end of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from esper.recordings import events as ev
from esper.sanctum.screens.dialogs import ChoiceDialog
from esper.sanctum.screens.env_detail import EnvDetailScreen
from esper.sanctum.widgets.footer import Footer
from tests.factory import env_stepped, example_run, policy_updated, run_started, stamp
from tests.sanctum.driving import has_left, live, notices, opened, press, replay, screen_text, settle, shown, tick

PATH = "telemetry/run/checkpoints/00001-005"
BEGINNING = [run_started(3), ev.RoundStarted(round=1), *(env_stepped(env, score=0.5 + env / 10) for env in range(3))]
SAVED = ev.CheckpointSaved(round=1, step=5, path=PATH, bytes=1, origin="end")
END = ev.RunEnded(outcome="done")


async def test_end_of_a_live_run_offers_next_steps_once(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "00001-005").mkdir(parents=True)
    app, session = live(stamp([*BEGINNING, policy_updated(1), SAVED]))
    session.directory = tmp_path
    async with opened(app, size=(60, 15)) as pilot:
        tick(app)
        session.emit(END)
        tick(app)
        await pilot.pause()
        text = screen_text(app)
        assert "Run done. Best env of round 1: 02, accuracy 70.0 %" in text
        assert all(f" {step}: " in text for step in ("replay", "harvest", "what if", "evaluate"))
        await press(pilot, "e")
        assert "esper-sanctum evaluate --checkpoint" in notices(app)[-1]
        tick(app)
        await pilot.pause()
        assert not isinstance(app.screen, ChoiceDialog)
        await press(pilot, "F", "h")
        assert "is not a checkpoint" in notices(app)[-1]
        await pilot.resize_terminal(120, 40)
        await settle(pilot)
        assert "F next steps" in shown(app, Footer)


async def test_next_steps_without_a_checkpoint_are_replay_and_what_if(tmp_path: Path) -> None:
    app, playback = replay(example_run(rounds=2), tmp_path, at_end=True)
    async with opened(app, "F") as pilot:
        assert isinstance(app.screen, ChoiceDialog)
        assert "harvest" not in screen_text(app)
        assert "evaluate" not in screen_text(app)
        await press(pilot, "h", "e")
        assert isinstance(app.screen, ChoiceDialog)
        await press(pilot, "w")
        assert isinstance(app.screen, EnvDetailScreen)
        playback.speed = 0.01
        await press(pilot, "F", "r")
        assert playback.playing
        assert playback.elapsed < 1


@pytest.mark.parametrize("key", ["escape", "q"])
async def test_next_steps_can_be_left(key: str) -> None:
    app, session = live(stamp(BEGINNING))
    async with opened(app) as pilot:
        tick(app)
        session.emit(END)
        tick(app)
        await settle(pilot)
        assert isinstance(app.screen, ChoiceDialog)
        await pilot.press(key)
        assert has_left(app) == (key == "q")
