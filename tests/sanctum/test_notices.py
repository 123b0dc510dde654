from __future__ import annotations

from pathlib import Path

import pytest

from esper.recordings.history.history import open_history
from esper.sanctum.app import MAX_NOTICES
from esper.sanctum.screens.env_detail import EnvDetailScreen
from esper.sanctum.widgets.footer import Footer
from esper.sanctum.widgets.timeline import Timeline
from tests.factory import example_run
from tests.recordings.files.recordings import recording, write_segment
from tests.sanctum.driving import ROOMY, live, notices, press, replay, replay_of, resize, screen_text, settle, tick


async def test_notices_of_damage_appear_once_and_are_capped(tmp_path: Path) -> None:
    content = recording(example_run())
    lines = content.count(b"\n") + 1
    path = write_segment(tmp_path, 1, content + b"{[damage]}\n")
    app, playback = replay_of(open_history(path))
    async with app.run_test(size=ROOMY, notifications=True) as pilot:
        await pilot.pause()
        tick(app)
        tick(app)
        await pilot.pause()
        [message] = notices(app)
        assert message.startswith(f"{path}, line {lines} is damaged and was skipped")

        with path.open("ab") as file:
            file.write(b"{[damage]}\n" * 9)
        playback.poll()
        tick(app)
        tick(app)
        await pilot.pause()
        messages = notices(app)
        assert len(messages) == MAX_NOTICES + 1
        assert messages[-1] == f"{10 - MAX_NOTICES} more notices. --no-tui prints all."


@pytest.mark.parametrize("is_replay", [True, False])
async def test_notice_takes_one_row_above_timeline_and_footer(is_replay: bool, tmp_path: Path) -> None:
    app = replay(example_run(), tmp_path)[0] if is_replay else live(example_run())[0]
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await settle(pilot)
        for _ in range(2):  # equal notices do not stack
            app.notify("Bookmark set.", timeout=60)
        for size in ((80, 24), ROOMY):
            await resize(pilot, size)
            [toast] = app.screen.query("Toast")
            below = app.screen.query_one(Timeline if is_replay else Footer).region
            assert toast.region.height == 1
            assert toast.region.bottom == below.y
            assert screen_text(app).count("Bookmark set.") == 1


async def test_escape_leaves_a_dialog_then_removes_notices_then_leaves_a_screen() -> None:
    app, _ = live(example_run())
    async with app.run_test(notifications=True) as pilot:
        await settle(pilot)
        await press(pilot, "enter", "d")
        assert isinstance(app.screen, EnvDetailScreen)
        assert "Cannot detach" in screen_text(app)
        await press(pilot, "question_mark")
        assert app.screen.is_modal
        await press(pilot, "escape")
        assert isinstance(app.screen, EnvDetailScreen)
        assert "Cannot detach" in screen_text(app)
        await press(pilot, "escape")
        assert notices(app) == []
        assert "Cannot detach" not in screen_text(app)
        assert isinstance(app.screen, EnvDetailScreen)
        await press(pilot, "escape")
        assert not isinstance(app.screen, EnvDetailScreen)
