"""Theme files, and the palettes of the shipped themes."""

import os
import pty
import re
import termios
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest
from rich.style import Style
from textual.color import Color

from esper.common.configuration.config import ConfigError
from esper.sanctum.symbols import STAGES
from esper.sanctum.terminal_background import BackgroundQuery, is_light, typed_keys
from esper.sanctum.theme import DEFAULT_THEME, Palette, find_theme, load_themes
from tests.sanctum.driving import copy_of_default, opened, press, replay, screen_strips, screen_text, settle
from tests.sanctum.population import population

_FRAME_STATS = re.compile(r" *\S+ events/s  \S+ ms/frame *")
THEMES = ["sanctum-dark", "sanctum-light", "high-contrast", "colour-blind"]
MIN_CONTRAST = {
    "bright": 7.0,
    "title": 7.0,
    "normal": 4.5,
    "warning": 4.5,
    "outlier": 4.5,
    "error": 4.5,
    "bad": 4.5,
    "embargoed": 2.5,
    "spark": 1.7,
    "area": 1.8,
    "band": 1.4,
    "dormant": 1.7,
    "faint": 1.3,
    "absent": 1.3,
}
"""Minimum contrast ratios; 3 for all other roles, WCAG's minimum for graphics.

Those below 3 are fills, rules and placeholders, whose glyphs have the same meaning without colour.
"""
GROUPS = (
    ("bright", "normal", "dim", "faint"),
    ("info", "warning", "error"),
    tuple(STAGES),
    tuple(f"rank{rank}" for rank in range(1, 6)),
    tuple(f"series{curve}" for curve in range(8)),
    tuple(f"area{curve}" for curve in range(8)),
)
"""Roles that are drawn beside each other."""


def test_themes_are_listed_default_first() -> None:
    assert list(load_themes()) == [DEFAULT_THEME, "colour-blind", "high-contrast", "sanctum-light"]


@pytest.mark.parametrize("name", THEMES)
def test_palette_every_role_meets_its_minimum_contrast(name: str) -> None:
    palette = load_themes()[name]
    for role, style in (*palette.styles.items(), *palette.selected_styles.items()):
        assert style.color is not None
        assert style.bgcolor is not None
        ratio = contrast(Color.from_rich_color(style.color), Color.from_rich_color(style.bgcolor))
        assert ratio >= MIN_CONTRAST.get(role.rstrip("0123456789"), 3.0), role


@pytest.mark.parametrize("name", THEMES)
def test_palette_roles_of_one_group_have_distinct_colours(name: str) -> None:
    palette = load_themes()[name]
    for group in GROUPS:
        for styles in (palette.styles, palette.selected_styles):
            assert len({styles[role].color for role in group}) == len(group), group


async def test_themes_change_only_colours_and_use_only_their_palette(tmp_path: Path) -> None:
    app, playback = replay(population(), tmp_path)  # a live engine without events would soon be reported as silent
    playback.seek_end()
    async with opened(app) as pilot:
        for keys in (("1",), ("w",), ("w", "enter"), ("2",), ("3",), ("4",), ("5",), ("6",)):
            await press(pilot, *keys)
            while app.source.curves.is_waiting:
                await settle(pilot)
            texts: set[str] = set()
            drawn: list[set[Style]] = []
            for name in THEMES:
                app.theme = name
                await settle(pilot)
                texts.add(_FRAME_STATS.sub("", screen_text(app)))
                drawn.append({cell.style for strip in screen_strips(app) for cell in strip if cell.style})
                assert colours(drawn[-1]) <= palette_colours(app.palettes[name]), (name, keys)
            assert len(texts) == 1, keys
            assert len({frozenset(styles) for styles in drawn}) == len(THEMES), keys


def colours(styles: Iterable[Style]) -> set[str]:
    """Text and background colours of styles."""
    return {colour.name for style in styles for colour in (style.color, style.bgcolor) if colour is not None}


def palette_colours(palette: Palette) -> set[str]:
    """Colours of all roles, and of the rules between panels."""
    styles = [*palette.styles.values(), *palette.selected_styles.values()]
    return {*colours(styles), palette.theme.variables["rule"]}


def contrast(one: Color, other: Color) -> float:
    """Contrast ratio of two colours by WCAG 2, from 1 to 21."""

    def luminance(colour: Color) -> float:
        channels = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in colour.normalized]
        return 0.2126 * channels[0] + 0.7152 * channels[1] + 0.0722 * channels[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_user_theme_overrides_shipped_and_adds_new(user_themes: Path) -> None:
    copy_of_default(user_themes, "mine", "#0f1317", "#010203")
    copy_of_default(user_themes, DEFAULT_THEME, "#0f1317", "#040506")
    themes = load_themes()
    assert themes["mine"].theme.background == "#010203"
    assert themes[DEFAULT_THEME].theme.background == "#040506"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('training = "#5b9bd8"', "training = 3", "stages.training: expected `str`, got `int`"),
        ('training = "#5b9bd8"\n', "", "stages: object missing required field `training`"),
        (
            'training = "#5b9bd8"',
            'training = "bluish"',
            "stages.training: invalid colour 'bluish'; write it as '#7aa2f7'",
        ),
        ('primary = "#6aa9d8"', 'primray = "#6aa9d8"', "object contains unknown field `primray`"),
        ("[text]", "[text", "is not TOML"),
    ],
)
def test_invalid_theme_file_is_refused_only_if_it_is_named(user_themes: Path, old: str, new: str, says: str) -> None:
    path = copy_of_default(user_themes, "mine", old, new)
    themes = load_themes()
    assert DEFAULT_THEME in themes
    assert "mine" not in themes
    with pytest.raises(ConfigError) as refused:
        find_theme("mine", themes)
    message = str(refused.value)
    assert str(path) in message
    assert says in message
    assert "\n" not in message


def test_unknown_theme_suggests_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"unknown theme 'sanctum-drak'; did you mean sanctum-dark\?"):
        find_theme("sanctum-drak", load_themes())
    with pytest.raises(ConfigError, match="valid: sanctum-dark, colour-blind"):
        find_theme("zzz", load_themes())


@pytest.mark.parametrize(
    ("reply", "colour_of_environment", "light"),
    [
        ("\x1b]11;rgb:ffff/ffff/ffff\x1b\\", "", True),
        ("\x1b]11;rgb:fd/f6/e3\x07", "15;0", True),
        ("\x1b]11;rgb:0000/2b2b/3636\x1b\\", "0;15", False),
        ("", "0;15", True),
        ("", "15;0", False),
        ("", "", False),
    ],
)
def test_background_is_that_which_the_terminal_reports(
    reply: str, colour_of_environment: str, light: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORFGBG", colour_of_environment)
    screen, terminal = pty.openpty()

    def answer() -> None:
        asked = b""
        while not asked.endswith(b"\x1b[c"):
            asked += os.read(screen, 1024)
        os.write(screen, f"p{reply}é\x1b[?62;4c".encode())  # the user types, too

    answering = threading.Thread(target=answer)
    answering.start()
    received = BackgroundQuery(terminal, timeout=60.0).close()
    assert is_light(received) is light
    assert typed_keys(received) == "pé"
    answering.join()


def test_silent_terminal_counts_as_dark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("COLORFGBG", raising=False)
    _, terminal = pty.openpty()
    before = termios.tcgetattr(terminal)
    assert not is_light(BackgroundQuery(terminal, timeout=0.01).close())
    assert termios.tcgetattr(terminal) == before
    os.close(terminal)
    assert not is_light(BackgroundQuery(terminal, timeout=0.01).close())
