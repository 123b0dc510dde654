"""Every test of the screen runs in UTC and in all colours, without the user's own themes.

And it waits for what a key leads to, not for a while.
"""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from textual._context import active_app


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture(autouse=True)
def _all_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever terminal the tests are run in, the screen is drawn for one that has them."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")


@pytest.fixture(autouse=True)
def _no_pulse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its figures are the machine's, and differ from run to run."""
    monkeypatch.setattr("esper.sanctum.view.UPDATE_INTERVAL_S", float("inf"))


@pytest.fixture(autouse=True)
def _read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is, a short recording is read within one look."""
    monkeypatch.setattr("esper.sanctum.source.SLICE", 60.0)


@pytest.fixture(autouse=True)
def user_themes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty folder in place of the user's."""
    monkeypatch.setattr("esper.sanctum.theme.user_folder", lambda: tmp_path / "themes")
    (tmp_path / "themes").mkdir()
    return tmp_path / "themes"


@pytest.fixture(autouse=True)
def _certain_pilot(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Pilot waits until all that followed from a key has happened.

    Textual's own takes a process that computes nothing for 20 ms, twice for every key, to have done so: most of what a
    test of the screen takes, and a guess where others keep the machine busy.
    """
    monkeypatch.setattr("textual.app.wait_for_idle", _until_quiet)
    monkeypatch.setattr("textual.pilot.wait_for_idle", _until_quiet)


async def _until_quiet(*_: float) -> None:
    """Until nothing is left to do but what a timer, a thread or a person will bring, and all of it is painted."""
    ready = vars(asyncio.get_running_loop())["_ready"]
    app = active_app.get()
    give_up = time.process_time() + 1.0  # as Textual's own does after a second, whoever else had the processor in it
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
