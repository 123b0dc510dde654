"""The dashboard with 16 colours, or without colour: text is readable and distinct roles look distinct."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import pytest
from rich.color import Color, ColorSystem
from rich.style import Style
from textual.color import Color as ColorOfTextual
from textual.pilot import Pilot

from esper.common.plots.sparkline import BLOCK_CHARS
from esper.recordings import events as ev
from esper.sanctum import theme
from esper.sanctum.theme import Palette, load_themes
from tests.factory import example_run
from tests.sanctum.driving import live, opened, press, screen_strips
from tests.sanctum.test_theme import contrast

COLOURS = (
    *(theme.BLACK, theme.RED, theme.GREEN, theme.BROWN),
    *(theme.BLUE, theme.MAGENTA, theme.CYAN, theme.WHITE),
    *(theme.GREY, theme.BRIGHT_RED, theme.BRIGHT_GREEN, theme.YELLOW),
    *(theme.BRIGHT_BLUE, theme.BRIGHT_MAGENTA, theme.BRIGHT_CYAN, theme.BRIGHT_WHITE),
)
"""The 16 colours in ANSI order."""
LIVING = ("germinated", "training", "blending", "probationary", "fossilized", "culled")
SEVERITIES = ("info", "warning", "error")


RUN = example_run()
DURING = RUN[: next(i for i, event in enumerate(RUN) if isinstance(event, ev.AnomalyFound)) + 1]
"""Events up to the first anomaly, a NaN gradient."""


def number(colour: Color | None) -> int:
    """ANSI number that a colour is mapped to."""
    assert colour is not None
    chosen = colour.downgrade(ColorSystem.STANDARD).number
    assert chosen is not None
    return chosen


def shades(style: Style) -> float:
    """Contrast of text and background in a terminal with the default 16 colours."""
    text, ground = (ColorOfTextual.parse(COLOURS[number(colour)]) for colour in (style.color, style.bgcolor))
    return contrast(text, ground)


@pytest.fixture(params=["sanctum-dark", "sanctum-light", "high-contrast", "colour-blind"])
def palette(request: pytest.FixtureRequest) -> Palette:
    return load_themes(ansi16=True)[request.param]


def test_ansi16_every_role_is_readable(palette: Palette) -> None:
    for role, style in {
        **palette.styles,
        **{f"{role}, selected": style for role, style in palette.selected_styles.items()},
    }.items():
        for colour in (style.color, style.bgcolor):
            assert colour is not None
            assert colour.get_truecolor().hex == COLOURS[number(colour)], role
        assert shades(style) >= 2.0, role


def test_ansi16_roles_of_one_group_differ(palette: Palette) -> None:
    ranks = [f"rank{rank}" for rank in range(1, 6)]
    curves = [f"series{curve}" for curve in range(8)]
    for group in (LIVING, SEVERITIES, ranks, curves):
        for one, other in combinations(group, 2):
            assert number(palette[one].color) != number(palette[other].color), (one, other)
    assert palette["error"].reverse
    assert not palette["warning"].reverse


async def pictures(pilot: Pilot[None]) -> list[tuple[str, Style]]:
    """Text and style of all segments of two screens."""
    found: list[tuple[str, Style]] = []
    for key in "13":
        await press(pilot, key)
        for strip in screen_strips(pilot.app):
            found += [(segment.text, segment.style) for segment in strip if segment.text.strip() and segment.style]
    return found


@pytest.mark.parametrize(("system", "no_color"), [("standard", False), ("standard", True), ("truecolor", False)])
async def test_screen_is_readable_in_16_colours_and_without_colour(
    system: str, no_color: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("textual.constants.COLOR_SYSTEM", system)
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    app, _ = live(DURING)
    async with opened(app) as pilot:
        drawn = await pictures(pilot)
        strips = screen_strips(app)
        sent = "".join(strip.render(app.console) for strip in strips)

    assert len(drawn) > 100
    ((background, _),) = Counter(style.bgcolor for _, style in drawn).most_common(1)
    for text, style in drawn:
        assert style.color is not None
        assert style.bgcolor is not None
        if no_color:
            for colour in (style.color, style.bgcolor):
                assert len(set(colour.get_truecolor())) == 1, text
        is_edge = not text.strip(BLOCK_CHARS) and style.bgcolor != background  # between two areas of a chart
        if system == "standard" and text.strip("─│╭╮╰╯ ") and not is_edge:
            assert shades(style) >= 2.0, text
    assert ("\x1b[38;2;" in sent) == (system == "truecolor")
    errors = [style for text, style in drawn if "✖" in text]
    assert errors
    assert all(style.reverse for style in errors)
