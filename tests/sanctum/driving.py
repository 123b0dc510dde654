"""Drive a dashboard under a Pilot, and read its screen.

The only module of these tests that uses private names of the dashboard or of Textual.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from rich.console import RenderableType
from rich.segment import Segment
from textual._compositor import Compositor
from textual._context import active_app
from textual.app import App
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet
from textual.geometry import Region, Spacing
from textual.map_geometry import MapGeometry
from textual.pilot import Pilot
from textual.screen import Screen
from textual.strip import Strip
from textual.widget import Widget

from esper.common.control import Request
from esper.recordings.events import AnyEvent
from esper.recordings.events.codec import encode_json
from esper.recordings.history.divergence import GhostRun
from esper.recordings.history.history import History, open_history
from esper.recordings.history.playback import Playback
from esper.sanctum.app import SanctumApp
from esper.sanctum.source import LiveSource, ReplaySource
from esper.sanctum.theme import DEFAULT_THEME, Palette, load_themes
from esper.sanctum.view import ViewState
from esper.sanctum.widgets.header import Header
from esper.sanctum.widgets.panel import Panel
from tests.sanctum.sessions import FakeSession

P = TypeVar("P", bound=Panel)
SIZE, ROOMY = (120, 40), (200, 60)
THEMES = Path(__file__).resolve().parents[2] / "themes"
"""Directory of the shipped theme files."""
TIMEOUT_S = 60.0
"""Limit for `until`, far above the duration of any awaited change."""
_QUIET_CPU_S = 1.0
"""CPU time after which `until_quiet` gives up. Textual's own function has the same limit in wall time."""


def copy_of_default(folder: Path, name: str, old: str = "", new: str = "") -> Path:
    """Write a copy of the default theme file in which one text is replaced."""
    path, text = folder / f"{name}.toml", (THEMES / f"{DEFAULT_THEME}.toml").read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    return path


def live(
    events: Sequence[AnyEvent], *, recorded_in: Path | None = None, **options: Any
) -> tuple[SanctumApp, FakeSession]:
    """Return a live dashboard, and its session with these events, whose recording is written to a folder."""
    session = FakeSession(events)
    if recorded_in is not None:
        session.record(recorded_in, events)
    return SanctumApp(LiveSource(session), theme=DEFAULT_THEME, **options), session


def replay(events: Iterable[AnyEvent], folder: Path, *, at_end: bool = False) -> tuple[SanctumApp, Playback]:
    """Return a dashboard over a recording, paused at its start or at its end."""
    file = folder / "events-00001.jsonl"
    file.write_bytes(b"".join(encode_json(event) + b"\n" for event in events))
    app, playback = replay_of(open_history(file))
    if at_end:
        playback.seek_end()
    return app, playback


def replay_of(
    history: History, *, follow: bool = False, ghost_run: GhostRun | None = None, **options: Any
) -> tuple[SanctumApp, Playback]:
    """Return a dashboard over a history, which does not play by itself."""
    source = ReplaySource(Playback(history), hold=True, follow=follow, ghost_run=ghost_run)
    return SanctumApp(source, theme=DEFAULT_THEME, **options), source.playback


def drawn(make: Callable[[ViewState], P], events: Iterable[AnyEvent], size: tuple[int, int] = ROOMY) -> P:
    """Return a panel with a border and this size of its content, as it shows a live run after some events.

    No app is started, which takes a hundred times as long.
    """
    source = LiveSource(FakeSession(events))
    source.start()
    source.tick(0.0)
    panel = make(ViewState(source, _default_palette()))
    panel.styles.border = ("round", "white")
    region = Region(0, 0, *size).grow((1, 1, 1, 1))
    panel._parent, panel._size = _PanelScreen(region), region.size
    panel._lines = panel._draw()
    return panel


class _PanelScreen(Screen[None]):
    """Screen without an app, whose only panel takes all its space."""

    def __init__(self, region: Region) -> None:
        super().__init__()
        self._place = MapGeometry(region, (), region, region.size, region.size, region, Spacing())

    def find_widget(self, widget: Widget) -> MapGeometry:
        return self._place


@cache
def _default_palette() -> Palette:
    return load_themes()[DEFAULT_THEME]


def words(panel: Panel) -> str:
    """Text of a panel, with runs of spaces collapsed."""
    return " ".join(panel.text.split())


@asynccontextmanager
async def opened(app: SanctumApp, *keys: str, size: tuple[int, int] = SIZE) -> AsyncIterator[Pilot[None]]:
    """Run a dashboard, read its source and press keys."""
    async with app.run_test(size=size) as pilot:
        await settle(pilot)
        if keys:
            await pilot.press(*keys)
            await settle(pilot)
        yield pilot
        if app.is_running and not has_left(app):
            screen_strips(app)  # every panel can be painted


async def settle(pilot: Pilot[Any]) -> None:
    """Read the source once without waiting for the timer, and process all messages."""
    app = pilot.app
    assert isinstance(app, SanctumApp)
    app.source.tick(0.0)
    app.poll_what_if()
    app.refresh_view()
    await pilot.pause()


async def resize(pilot: Pilot[Any], size: tuple[int, int]) -> None:
    """Give the terminal another size, and draw the screen in it."""
    await pilot.resize_terminal(*size)
    await settle(pilot)
    await settle(pilot)  # panels that have shared out the rows anew are drawn by the next tick


async def press(pilot: Pilot[Any], *keys: str) -> None:
    """Press keys, and read the source again."""
    await pilot.press(*keys)
    await settle(pilot)


async def emit(pilot: Pilot[Any], session: FakeSession, *events: AnyEvent) -> None:
    """Emit events, and read the source."""
    session.emit(*events)
    await settle(pilot)


async def until(pilot: Pilot[Any], condition: Callable[[], bool]) -> None:
    """Wait for a change made by a tick of the app, a timer, a thread or another process."""
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():
            await pilot.pause(0.02)
            if isinstance(pilot.app, SanctumApp) and "_reading_timer" in vars(pilot.app):  # its timers have started
                tick(pilot.app)


def shown(app: SanctumApp, panel: type[Panel]) -> str:
    """Text of a panel of the open screen, with runs of spaces collapsed."""
    return words(app.screen.query_one(panel))


def header(app: SanctumApp) -> str:
    """Text of the header, also below a dialog that has opened by itself."""
    screen = next(screen for screen in reversed(app.screen_stack) if screen.query(Header))
    return " ".join(screen.query_one(Header).text.split())


def screen_text(app: SanctumApp) -> str:
    """Text of the whole screen with its borders, one line per terminal row."""
    return "\n".join(strip.text for strip in screen_strips(app))


def screen_strips(app: App[Any]) -> list[Strip]:
    """Styled rows of the whole screen, before the line filters."""
    return app.screen._compositor.render_strips()


def terminal_rows(app: App[Any]) -> list[list[Segment]]:
    """Segments of every row as they are sent to the terminal, after the line filters."""
    rows: list[list[Segment]] = []
    for strip in screen_strips(app):
        segments = list(strip)
        for line_filter in app.get_line_filters():
            segments = line_filter.apply(segments, app.screen.background_colors[1])
        rows.append(segments)
    return rows


def notices(app: App[Any]) -> list[str]:
    """Messages of all notifications that have not expired, oldest first."""
    return [notification.message for notification in app._notifications]


def has_left(app: App[Any]) -> bool:
    """True if the app is exiting."""
    return app.return_code is not None


def tick(app: SanctumApp) -> None:
    """Run the callback of the app's timer once. The timer itself never runs it (`conftest._no_timer`)."""
    app._tick()


async def next_requests(pilot: Pilot[Any], session: FakeSession) -> list[Request]:
    """Wait until the session has received requests, and return them."""
    requests: list[Request] = []

    def received() -> bool:
        requests.extend(session.asked())
        return bool(requests)

    await until(pilot, received)
    return requests


_render_update = Compositor.render_update


def render_screenshots_only(compositor: Compositor, full: bool = False, **options: Any) -> RenderableType | None:
    """Paint the whole screen, but no update of it. Replaces `render_update`.

    A headless app discards what it has painted after each change, which is a quarter of the CPU time of these tests. A
    test that looks at the screen paints it (`screen_strips`).
    """
    if full:
        return _render_update(compositor, full, **options)
    compositor._dirty_regions.clear()
    return None


_parse_rules = Stylesheet._parse_rules
_parsed: dict[object, list[RuleSet]] = {}


def parse_rules_once(sheet: Stylesheet, *arguments: Any, **options: Any) -> list[RuleSet]:
    """Parse a text of CSS once for all apps with the same variables. Replaces `_parse_rules`, which does so per app."""
    key = (arguments, tuple(options.items()), tuple(sorted(sheet._variables.items())))
    if key not in _parsed:
        _parsed[key] = _parse_rules(sheet, *arguments, **options)
    return _parsed[key]


async def until_quiet(*_: float) -> None:
    """Wait until the event loop has nothing ready and the screen is painted. Replaces Textual's `wait_for_idle`."""
    ready = vars(asyncio.get_running_loop())["_ready"]
    app = active_app.get()
    give_up = time.process_time() + _QUIET_CPU_S
    while not app._exit and time.process_time() < give_up:
        await asyncio.sleep(0)
        if ready:
            continue
        if app._resize_timer is not None:
            app._check_resize()
            continue
        screen = app.screen
        unpainted = screen._layout_required or screen._scroll_required or screen._repaint_required
        if not (unpainted or screen._recompose_required or screen._dirty_widgets or screen._callbacks):
            return
        if app._batch_count:
            await asyncio.sleep(0.001)
        else:
            screen._on_timer_update()
