"""Writes the picture of the README: `python -m tests.overview_picture`."""

from __future__ import annotations

import asyncio
from pathlib import Path

from esper.recordings.files.runs import find_demo
from esper.recordings.history.address import parse_moment
from esper.recordings.history.history import open_history
from tests.sanctum.driving import opened, replay_of, settle

PICTURE = Path(__file__).parents[1] / "docs" / "overview.svg"
SIZE = (120, 40)
"""Columns and rows of the terminal."""
MOMENT = "step:298"
"""Moment of the demo that is shown: the last round, with seeds in every stage."""


async def picture() -> str:
    """Return the overview of the demo as SVG."""
    history = open_history(find_demo())
    app, playback = replay_of(history)
    async with opened(app, size=SIZE) as pilot:
        position = parse_moment(MOMENT, history)
        assert position is not None
        playback.seek(position)
        for _ in history.rounds:  # each reads the reference of one more round
            await settle(pilot)
        return app.export_screenshot(title="esper-sanctum")


if __name__ == "__main__":
    PICTURE.write_text(asyncio.run(picture()), encoding="utf-8")
