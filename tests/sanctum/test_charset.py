"""Rendering in terminals without braille, or with ASCII only."""

import os
import subprocess
import sys
from typing import Any

import pytest
from textual.widgets import Static

from esper.sanctum.app import SanctumApp
from esper.sanctum.symbols import CHARSETS, MARK_SYMBOLS, RUN_STATES, SEVERITIES, STAGES, detect_charset, translate
from esper.sanctum.view import MAX_FRAME_S, FrameStats
from tests.sanctum.driving import live, opened, press, terminal_rows
from tests.sanctum.population import population


def drawn(app: SanctumApp) -> str:
    """Text of the screen as it is sent to the terminal."""
    return "\n".join("".join(segment.text for segment in row) for row in terminal_rows(app))


@pytest.mark.parametrize(("symbols", "size"), [("ascii", (80, 24)), ("block", (120, 40))])
async def test_screens_keep_to_the_charset_and_column_count(symbols: str, size: tuple[int, int]) -> None:
    app, _ = live(population(), symbols=symbols)
    async with opened(app, size=size) as pilot:
        for key in ("1", "2", "3", "4", "5", "6", "question_mark"):
            await press(pilot, key)
            text = drawn(app)
            assert "accuracy" in text or "env" in text
            if symbols == "ascii":
                assert text.isascii()
            assert not any(0x2800 <= ord(character) < 0x2900 for character in text)
            assert {len(line) for line in text.splitlines()} == {size[0]}


async def test_ascii_key_names_are_unambiguous() -> None:
    app, _ = live(population(), symbols="ascii")
    async with opened(app) as pilot:
        assert "Enter env" in drawn(app)
        await pilot.press("f1")
        page = " ".join(str(app.screen.query_one("#page", Static).content).split())
        for line in ("Enter open the selected env", "Shift-Left back one round", "Left back one step"):
            assert line in page


@pytest.mark.parametrize("symbols", [MARK_SYMBOLS, SEVERITIES, STAGES, RUN_STATES])
def test_symbols_have_distinct_ascii_characters(symbols: dict[Any, Any]) -> None:
    glyphs = [(each[0] if isinstance(each, tuple) else each).glyph for each in symbols.values()]
    drawn = [translate(glyph, "ascii") for glyph in glyphs]
    assert "?" not in drawn
    assert len(set(drawn)) == len(set(glyphs))


def test_braille_is_translated_to_blocks_and_ascii() -> None:
    assert translate("⠁⠈⡀⢀⣿⠉⣀⡇", "block") == "▘▝▖▗█▀▄▌"
    assert translate("⠁⣀⣿ a─▲", "ascii") == "'.: a-!"
    assert translate("⣿", "braille") == "⣿"


@pytest.mark.parametrize(
    ("term", "encoding", "expected"),
    [
        ("xterm-256color", "UTF-8", "braille"),
        ("linux", "UTF-8", "block"),
        ("vt100", "UTF-8", "ascii"),
        ("xterm", "ANSI_X3.4-1968", "ascii"),
    ],
)
def test_auto_charset_depends_on_term_and_locale(
    term: str, encoding: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr("locale.getencoding", lambda: encoding)
    assert detect_charset("auto") == expected
    assert [detect_charset(charset) for charset in CHARSETS[1:]] == list(CHARSETS[1:])


def test_frame_stats_show_data_age_event_rate_and_frame_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esper.sanctum.view.UPDATE_INTERVAL_S", 1.0)
    stats = FrameStats()
    for tick in range(6):
        stats.record_frame(tick / 5, tick * 100, tick * 0.004, shows_age=True)
    assert stats.text == "data 0.0s old  500 events/s  4 ms/frame"
    for tick in range(6, 16):
        stats.record_frame(tick / 5, 500, 0.02, shows_age=True)
    assert stats.age == pytest.approx(2.0)
    assert stats.text == "data 2s old  0 events/s  0 ms/frame"
    stats.record_frame(60.0, 500, 0.02, shows_age=True)  # the process was stopped: the engine was not silent
    assert stats.age == pytest.approx(2.0 + MAX_FRAME_S)
    for tick in range(300, 306):
        stats.record_frame(tick / 5, 500, 0.02, shows_age=False)
    assert stats.text == "0 events/s  0 ms/frame"


def test_auto_charset_is_ascii_under_lc_all_c() -> None:
    """Under LC_ALL=C Python turns its UTF-8 mode on, which must not hide the locale."""
    program = "from esper.sanctum.symbols import detect_charset; print(detect_charset('auto'))"
    environment = {**os.environ, "LC_ALL": "C", "TERM": "xterm-256color"}
    result = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert result.stdout == "ascii\n"
