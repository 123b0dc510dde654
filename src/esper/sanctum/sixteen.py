"""What a theme is on a terminal of sixteen colours: there, only dark and light are left of it.

The nearest of the sixteen to a theme's own colours would be grey for most of them. These are chosen among the sixteen,
by role; each is written as the value by which rich finds its number. What those look like is the terminal's affair.
"""

from __future__ import annotations

from typing import NamedTuple

BLACK, RED, GREEN, BROWN = "#000000", "#aa0000", "#00aa00", "#aa5500"
BLUE, MAGENTA, CYAN, WHITE = "#0000aa", "#aa00aa", "#00aaaa", "#aaaaaa"
GREY, BRIGHT_RED, BRIGHT_GREEN, YELLOW = "#555555", "#ff5555", "#55ff55", "#ffff55"
BRIGHT_BLUE, BRIGHT_MAGENTA, BRIGHT_CYAN, BRIGHT_WHITE = "#5555ff", "#ff55ff", "#55ffff", "#ffffff"


class Sixteen(NamedTuple):
    """What stands in a theme file, and what is mixed from it elsewhere."""

    file: dict[str, object]
    series: tuple[str, ...]
    """Curves that share a chart, and the areas below them."""
    ranks: tuple[str, str, str, str, str]
    """From the worst to the best."""
    spark: str


DARK = Sixteen(
    file={
        "dark": True,
        "background": BLACK,
        "surface": BLACK,
        "panel": BLUE,
        "foreground": WHITE,
        "primary": BRIGHT_CYAN,
        "secondary": CYAN,
        "accent": BRIGHT_CYAN,
        # Some schemes have no grey to speak of: nothing that must be read is in it.
        "text": {"bright": BRIGHT_WHITE, "normal": WHITE, "dim": WHITE, "faint": WHITE},
        "stages": {
            "dormant": WHITE,
            "germinated": BRIGHT_WHITE,
            "training": BRIGHT_BLUE,
            "blending": BRIGHT_CYAN,
            "probationary": BRIGHT_MAGENTA,
            "fossilized": BRIGHT_GREEN,
            "culled": BROWN,
            "embargoed": WHITE,
        },
        "severities": {"info": GREEN, "warning": YELLOW, "error": BRIGHT_RED},
        "variables": {"rule": GREY},
    },
    series=(BRIGHT_CYAN, BRIGHT_GREEN, BRIGHT_MAGENTA, YELLOW, BRIGHT_BLUE, BROWN, WHITE, BRIGHT_RED),
    ranks=(YELLOW, BROWN, WHITE, CYAN, BRIGHT_CYAN),
    spark=CYAN,
)
LIGHT = Sixteen(
    file={
        "dark": False,
        "background": BRIGHT_WHITE,
        "surface": BRIGHT_WHITE,
        "panel": BRIGHT_CYAN,
        "foreground": BLACK,
        "primary": BLUE,
        "secondary": CYAN,
        "accent": BLUE,
        "text": {"bright": BLACK, "normal": BLACK, "dim": GREY, "faint": GREY},
        "stages": {
            "dormant": GREY,
            "germinated": BLACK,
            "training": BLUE,
            "blending": CYAN,
            "probationary": MAGENTA,
            "fossilized": GREEN,
            "culled": BROWN,
            "embargoed": GREY,
        },
        "severities": {"info": GREEN, "warning": BROWN, "error": RED},
        "variables": {"rule": WHITE},
    },
    series=(BLUE, GREEN, MAGENTA, BROWN, CYAN, RED, GREY, BLACK),
    ranks=(RED, BROWN, GREY, CYAN, BLUE),
    spark=CYAN,
)
