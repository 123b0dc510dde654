"""Every test of the screen runs in UTC and in all colours, without the user's own themes."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest


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
    monkeypatch.setattr("esper.sanctum.pulse.PERIOD", float("inf"))


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
