"""Colour themes, one TOML file each, and palettes for 16-colour terminals.

A theme file has the fields of a Textual theme, and the colours of text, stages and severities. The name of a theme is
the name of its file. Files of the user take precedence over files of the package with the same name.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec
import platformdirs
from rich.style import Style
from textual.color import Color, ColorParseError
from textual.theme import Theme

from esper.common.configuration.config import ConfigError
from esper.common.configuration.files import read_toml
from esper.common.domain import Stage
from esper.common.formatting import suggest

DEFAULT_THEME = "sanctum-dark"
LIGHT_THEME = "sanctum-light"
"""Theme for a terminal with a light background, unless the user names one."""
_SERIES = {
    True: ("#56b4e9", "#2fbf8f", "#cc79a7", "#d9cf5b", "#8f9cf0", "#e69f00", "#9aa4ad", "#e0734a"),
    False: ("#0072b2", "#007a58", "#a84c80", "#857a00", "#4a55b8", "#a86f00", "#5c666f", "#b8480f"),
}
"""Colours of curves that share a chart. Keyed by whether the background is dark.

From the palette of Okabe and Ito, which people with colour vision deficiency can also tell apart.
"""

BLACK, RED, GREEN, BROWN = "#000000", "#aa0000", "#00aa00", "#aa5500"
BLUE, MAGENTA, CYAN, WHITE = "#0000aa", "#aa00aa", "#00aaaa", "#aaaaaa"
GREY, BRIGHT_RED, BRIGHT_GREEN, YELLOW = "#555555", "#ff5555", "#55ff55", "#ffff55"
BRIGHT_BLUE, BRIGHT_MAGENTA, BRIGHT_CYAN, BRIGHT_WHITE = "#5555ff", "#ff55ff", "#55ffff", "#ffffff"
"""The 16 colours of a VGA text console."""


class DerivedColours(NamedTuple):
    """Colours of a theme that are not in its file."""

    sparkline: str
    areas: tuple[str, ...]
    """Colours of the areas under the curves of a chart."""
    series: tuple[str, ...]
    """Colours of the curves of a chart."""
    ranks: tuple[str, ...]
    """Colours of a ranking, from the worst to the best."""


_ANSI16_CURVES = {
    True: (BRIGHT_CYAN, BRIGHT_GREEN, BRIGHT_MAGENTA, YELLOW, BRIGHT_BLUE, BROWN, WHITE, BRIGHT_RED),
    False: (BLUE, GREEN, MAGENTA, BROWN, CYAN, RED, GREY, BLACK),
}
_ANSI16_RANKS = {True: (YELLOW, BROWN, WHITE, CYAN, BRIGHT_CYAN), False: (RED, BROWN, GREY, CYAN, BLUE)}
_ANSI16_FILES: dict[bool, dict[str, object]] = {
    True: {
        "dark": True,
        "background": BLACK,
        "surface": BLACK,
        "panel": BLUE,
        "foreground": WHITE,
        "primary": BRIGHT_CYAN,
        "secondary": CYAN,
        "accent": BRIGHT_CYAN,
        # Grey is almost invisible in some terminal colour schemes: no text uses it.
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
    False: {
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
}
"""Content of a theme file for a 16-colour terminal, which cannot show blended colours. Keyed as `_SERIES`."""


class TextColours(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Text colours in four degrees, from the most to the least noticeable."""

    bright: str
    normal: str
    dim: str
    faint: str


class StageColours(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Colours of the stages of a slot."""

    dormant: str
    germinated: str
    training: str
    blending: str
    probationary: str
    fossilized: str
    culled: str
    embargoed: str


class SeverityColours(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Colours of the severities: normal, warning, error."""

    info: str
    warning: str
    error: str


class ThemeFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of a theme file."""

    dark: bool
    background: str
    surface: str
    panel: str
    """Background of panels and of the selected row."""
    foreground: str
    primary: str
    """Colour of curves, bars and keys."""
    secondary: str
    accent: str
    text: TextColours
    stages: StageColours
    severities: SeverityColours
    variables: dict[str, str] = {}
    """Values of Textual's CSS variables."""


@dataclass(frozen=True)
class Palette:
    """Styles of a theme. A role, such as "dim" or "warning", names each style."""

    name: str
    styles: dict[str, Style]
    """Styles keyed by role."""
    selected_styles: dict[str, Style]
    """Styles on the selected row, keyed by role."""
    theme: Theme
    """Theme of Textual's own widgets."""

    def __getitem__(self, role: str) -> Style:
        return self.styles[role]

    def filled(self, role: str, ground: str) -> Style:
        """Return the style of text on cells that the colour of `ground` fills.

        Text in the role "normal" has the colour of the background there, so that it can be read.
        """
        colour = self.styles["normal"].bgcolor if role == "normal" else self.styles[role].color
        return Style(color=colour, bgcolor=self.styles[ground].color)


def load_themes(*, ansi16: bool = False) -> dict[str, Palette]:
    """Load all themes, keyed by name: the default theme first, then in the order of their names.

    A theme whose file is invalid is left out: only a user who names it needs to know, and `find_theme` reports it.

    Args:
        ansi16: Replace the colours by the palette for 16-colour terminals.
    """
    files = _theme_files()
    palettes: dict[str, Palette] = {}
    for name in sorted(files, key=lambda name: (name != DEFAULT_THEME, name)):
        with suppress(ConfigError):
            palettes[name] = _load(files[name], ansi16=ansi16)
    return palettes


def find_theme(name: str, themes: dict[str, Palette]) -> Palette:
    """Return the theme with a name.

    Raises:
        ConfigError: The name is unknown, or the file of the theme cannot be read or has an invalid key.
    """
    if name in themes:
        return themes[name]
    if path := _theme_files().get(name):
        return _load(path)
    raise ConfigError(f"unknown theme {name!r}; {suggest(name, themes)}")


def user_folder() -> Path:
    """Return the folder of the user's theme files."""
    return platformdirs.user_config_path("esper-sanctum") / "themes"


def _theme_files() -> dict[str, Path]:
    """Return the theme files, keyed by the name of the theme; a file of the user replaces one of the package."""
    package = Path(__file__).resolve().parents[1]
    checkout = package.parents[1]  # it has the files in its root, and an installed package contains them
    folders = package / "themes", checkout / "themes", user_folder()
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.toml"))}


def _load(path: Path, *, ansi16: bool = False) -> Palette:
    try:
        file = msgspec.convert(read_toml(path, f"theme file {path}"), ThemeFile)
    except msgspec.ValidationError as error:
        reason, _, where = str(error).partition(" - at `$.")
        key = f"{where.rstrip('`')}: " if where else ""
        raise ConfigError(f"theme file {path}: {key}{reason[0].lower()}{reason[1:]}") from error
    for key, colour in _colours(file):
        try:
            Color.parse(colour)
        except ColorParseError as error:
            raise ConfigError(f"theme file {path}: {key}: invalid colour {colour!r}; write it as '#7aa2f7'") from error
    if ansi16:
        curves = _ANSI16_CURVES[file.dark]
        derived = DerivedColours(CYAN, curves, curves, _ANSI16_RANKS[file.dark])
        return _palette(path.stem, msgspec.convert(_ANSI16_FILES[file.dark], ThemeFile), derived)
    return _palette(path.stem, file, _derive_colours(file))


def _colours(file: ThemeFile) -> list[tuple[str, str]]:
    """Return the key and value of every colour in a file."""
    found: list[tuple[str, str]] = []
    for key, value in msgspec.structs.asdict(file).items():
        if isinstance(value, str):
            found.append((key, value))
        elif isinstance(value, msgspec.Struct):
            found += [(f"{key}.{name}", colour) for name, colour in msgspec.structs.asdict(value).items()]
    return found


def _derive_colours(file: ThemeFile) -> DerivedColours:
    background, series = Color.parse(file.background), _SERIES[file.dark]
    calm, worst, best = map(Color.parse, (file.text.dim, file.severities.warning, file.primary))
    ranks = (calm.blend(worst, 0.6), calm.blend(worst, 0.3), calm, calm.blend(best, 0.5), best)
    return DerivedColours(
        sparkline=background.blend(best, 0.5).hex,
        areas=tuple(background.blend(Color.parse(colour), 0.6).hex for colour in series),
        series=series,
        ranks=tuple(colour.hex for colour in ranks),
    )


def _palette(name: str, file: ThemeFile, derived: DerivedColours) -> Palette:
    background = Color.parse(file.background)

    def style(colour: str, *, bold: bool | None = None, reverse: bool | None = None) -> Style:
        parsed = Color.parse(colour).rich_color
        return Style(color=parsed, bgcolor=background.rich_color, bold=bold, reverse=reverse)

    text, severities = file.text, file.severities
    styles = {
        "bright": style(text.bright),
        "normal": style(text.normal),
        "dim": style(text.dim),
        "faint": style(text.faint),
        "absent": style(text.faint),
        "title": style(text.bright, bold=True),
        "head": style(text.dim),
        "curve": style(file.primary),
        "spark": style(derived.sparkline),
        "band": style(file.secondary),
        "key": style(file.primary, bold=True),
        "info": style(severities.info),
        "warning": style(severities.warning, bold=True),
        "outlier": style(severities.warning, bold=True, reverse=True),
        "error": style(severities.error, bold=True, reverse=True),
        "bad": style(severities.error, bold=True, reverse=True),
    }
    for role, colours in (("series", derived.series), ("area", derived.areas)):
        for index, colour in enumerate(colours):
            styles[f"{role}{index}"] = style(colour)
    for index, colour in enumerate(derived.ranks, 1):
        styles[f"rank{index}"] = style(colour, reverse=True)
    for stage in Stage:
        colour = getattr(file.stages, stage.label)
        styles[stage.label] = style(colour, bold=True if stage is Stage.FOSSILIZED else None)
    theme = Theme(
        name=name,
        primary=file.primary,
        secondary=file.secondary,
        accent=file.accent,
        foreground=file.foreground,
        background=file.background,
        surface=file.surface,
        panel=file.panel,
        success=severities.info,
        warning=severities.warning,
        error=severities.error,
        dark=file.dark,
        variables={"rule": text.faint, "heading": text.dim, **file.variables},
    )
    selected = Style(bgcolor=Color.parse(file.panel).rich_color)
    return Palette(name, styles, {role: style + selected for role, style in styles.items()}, theme)
