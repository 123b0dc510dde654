"""Tests of the dashboard run in UTC, with all colours and without the user's themes.

After a key, the Pilot waits for its effects, not for a fixed time.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sanctum.driving import parse_rules_once, render_screenshots_only, until_quiet


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture(autouse=True)
def _all_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw for a true-colour terminal, whichever terminal runs the tests."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")


@pytest.fixture(autouse=True)
def _no_pulse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the performance figures, which differ from run to run."""
    monkeypatch.setattr("esper.sanctum.view.UPDATE_INTERVAL_S", float("inf"))


@pytest.fixture(autouse=True)
def _no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tick only on request: on a busy machine, the timer would act between two keys, and take a tenth of the CPU."""
    monkeypatch.setattr("esper.sanctum.app.TICK_INTERVAL_S", 3600.0)
    monkeypatch.setattr("esper.sanctum.app.READING_INTERVAL_S", 3600.0)


@pytest.fixture(autouse=True)
def _no_idle_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start processes only for keys."""
    monkeypatch.setattr("esper.sanctum.idle_work.IdleWork.next_request", lambda *_: None)


@pytest.fixture(autouse=True)
def _read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read a short recording within one tick, however busy the machine is."""
    monkeypatch.setattr("esper.sanctum.source.READ_BUDGET_S", 60.0)


@pytest.fixture(autouse=True)
def user_themes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Empty directory in place of the user's theme directory."""
    monkeypatch.setattr("esper.sanctum.theme.user_folder", lambda: tmp_path / "themes")
    (tmp_path / "themes").mkdir()
    return tmp_path / "themes"


@pytest.fixture(autouse=True)
def _certain_pilot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the Pilot wait until all effects of a key have happened.

    Textual's `wait_for_idle` waits until the process has used no CPU for 20 ms, twice for each key. That is most of the
    duration of these tests, and unreliable on a busy machine.
    """
    monkeypatch.setattr("textual.app.wait_for_idle", until_quiet)
    monkeypatch.setattr("textual.pilot.wait_for_idle", until_quiet)


@pytest.fixture(autouse=True)
def _css_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parse the CSS once for all apps: it is a fifth of the CPU time of these tests."""
    monkeypatch.setattr("textual.css.stylesheet.Stylesheet._parse_rules", parse_rules_once)


@pytest.fixture(autouse=True)
def _painted_when_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not paint screens that no test reads: it is a quarter of the CPU time of these tests."""
    monkeypatch.setattr("textual._compositor.Compositor.render_update", render_screenshots_only)
