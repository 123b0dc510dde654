"""The dashboard where there are sixteen colours, or none: what must be read can be, and what differs looks it."""

from __future__ import annotations

from itertools import combinations

import pytest
from rich.color import Color, ColorSystem
from rich.style import Style
from textual.color import Color as ColorOfTextual
from textual.pilot import Pilot

from esper.sanctum import sixteen
from esper.sanctum.theme import Palette, load_themes
from esper.telemetry import events as ev
from tests.factory import example_run
from tests.sanctum.driving import live, screen_strips, settle
from tests.sanctum.test_theme import contrast

COLOURS = (
    *(sixteen.BLACK, sixteen.RED, sixteen.GREEN, sixteen.BROWN),
    *(sixteen.BLUE, sixteen.MAGENTA, sixteen.CYAN, sixteen.WHITE),
    *(sixteen.GREY, sixteen.BRIGHT_RED, sixteen.BRIGHT_GREEN, sixteen.YELLOW),
    *(sixteen.BRIGHT_BLUE, sixteen.BRIGHT_MAGENTA, sixteen.BRIGHT_CYAN, sixteen.BRIGHT_WHITE),
)
"""In the order of their numbers."""
LIVING = ("germinated", "training", "blending", "probationary", "fossilized", "culled")
SEVERITIES = ("info", "warning", "error")


RUN = example_run()
DURING = RUN[: next(i for i, event in enumerate(RUN) if isinstance(event, ev.AnomalyFound)) + 1]
"""Until a gradient is NaN."""


def number(colour: Color | None) -> int:
    """Which of the sixteen it becomes."""
    assert colour is not None
    chosen = colour.downgrade(ColorSystem.STANDARD).number
    assert chosen is not None
    return chosen


def shades(style: Style) -> float:
    """Contrast of text and ground, as the colours looked at first."""
    text, ground = (ColorOfTextual.parse(COLOURS[number(colour)]) for colour in (style.color, style.bgcolor))
    return contrast(text, ground)


@pytest.fixture(params=["sanctum-dark", "sanctum-light", "high-contrast", "colour-blind"])
def palette(request: pytest.FixtureRequest) -> Palette:
    return load_themes(sixteen=True)[request.param]


def test_every_role_has_one_of_the_sixteen_and_can_be_read(palette: Palette) -> None:
    for role, style in {
        **palette.styles,
        **{f"{role}, selected": style for role, style in palette.here.items()},
    }.items():
        for colour in (style.color, style.bgcolor):
            assert colour is not None
            assert colour.get_truecolor().hex == COLOURS[number(colour)], role
        assert shades(style) >= 2.0, role


def test_stages_severities_ranks_and_curves_are_told_apart(palette: Palette) -> None:
    ranks = [f"rank{rank}" for rank in range(5)]
    curves = [f"series{curve}" for curve in range(8)]
    for group in (LIVING, SEVERITIES, ranks, curves):
        for one, other in combinations(group, 2):
            assert number(palette[one].color) != number(palette[other].color), (one, other)
    assert palette["error"].reverse
    assert not palette["warning"].reverse


async def pictures(pilot: Pilot[None]) -> list[tuple[str, Style]]:
    """Every text that is drawn on two screens, as it is drawn."""
    found: list[tuple[str, Style]] = []
    for key in "13":
        await pilot.press(key)
        await settle(pilot)
        for strip in screen_strips(pilot.app):
            found += [(segment.text, segment.style) for segment in strip if segment.text.strip() and segment.style]
    return found


@pytest.mark.parametrize("no_color", [False, True])
@pytest.mark.parametrize("system", ["standard", "truecolor"])
async def test_whatever_is_drawn_can_be_read(system: str, no_color: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("textual.constants.COLOR_SYSTEM", system)
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    app, _ = live(DURING)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        drawn = await pictures(pilot)
        strips = screen_strips(app)
        sent = "".join(strip.render(app.console) for strip in strips)

    assert len(drawn) > 100
    for text, style in drawn:
        assert style.color is not None
        assert style.bgcolor is not None
        if no_color:
            for colour in (style.color, style.bgcolor):
                assert len(set(colour.get_truecolor())) == 1, text
        if system == "standard" and text.strip("─│╭╮╰╯ "):
            assert shades(style) >= 2.0, text
    assert ("\x1b[38;2;" in sent) == (system == "truecolor")
    errors = [style for text, style in drawn if "✖" in text]
    assert errors
    assert all(style.reverse for style in errors)
