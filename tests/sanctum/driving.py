"""Shortcuts to a dashboard under a Pilot."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from esper.sanctum.app import SanctumApp
from esper.sanctum.source import LiveSource, ReplaySource
from esper.sanctum.theme import DEFAULT
from esper.sanctum.widgets.header import Header
from esper.sanctum.widgets.panel import Panel
from esper.telemetry.codec import encode
from esper.telemetry.events import AnyEvent
from esper.telemetry.playback import Playback
from esper.telemetry.reader import open_history
from esper.telemetry.state import Record
from tests.sanctum.sessions import FakeSession

ROOMY = (200, 60)
THEMES = Path(__file__).resolve().parents[2] / "themes"
"""Those that are shipped."""
PATIENCE = 60.0
"""Seconds: far more than anything takes; what never comes fails the test."""


def copy_of_default(folder: Path, name: str, old: str = "", new: str = "") -> Path:
    """A theme file like the shipped default, but for one text in it."""
    path, text = folder / f"{name}.toml", (THEMES / f"{DEFAULT}.toml").read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    return path


def live(records: Iterable[Record], *, theme: str = DEFAULT) -> tuple[SanctumApp, FakeSession]:
    """A dashboard over a session that has said these records."""
    session = FakeSession(records)
    return SanctumApp(LiveSource(session), theme=theme), session


def replay(events: Iterable[AnyEvent], folder: Path) -> tuple[SanctumApp, Playback]:
    """A dashboard over a recording, held at its start."""
    file = folder / "events-00001.jsonl"
    file.write_bytes(b"".join(encode(event) + b"\n" for event in events))
    source = ReplaySource(Playback(open_history(file)))
    source.start = lambda: None  # a test plays when it wants to
    return SanctumApp(source, theme=DEFAULT), source.playback


async def settle(pilot: Pilot[Any]) -> None:
    """One look at the source, without waiting for the timer; then all messages."""
    app = pilot.app
    assert isinstance(app, SanctumApp)
    app.source.tick(0.0)
    app.refresh_view()
    await pilot.pause()


async def until(pilot: Pilot[Any], condition: Callable[[], bool]) -> None:
    """Wait for what a timer, a thread or another process brings."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await pilot.pause(0.02)


def shown(app: SanctumApp, panel: type[Panel]) -> str:
    """What stands in a panel of the front screen, with runs of spaces made one."""
    return " ".join(app.screen.query_one(panel).text.split())


def header(app: SanctumApp) -> str:
    """The first line."""
    return shown(app, Header)


def screen_text(app: SanctumApp) -> str:
    """The whole screen, borders too, as a terminal would show it."""
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())
