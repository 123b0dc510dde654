from __future__ import annotations

from pathlib import Path

from esper.history.history import open_history
from esper.sanctum.app import MAX_NOTICES
from tests.factory import example_run
from tests.recording.recordings import recording, write_segment
from tests.sanctum.driving import ROOMY, notices, replay_of, tick


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
