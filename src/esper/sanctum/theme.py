"""Themes: one TOML file each, the fields of a Textual theme plus the colours that mean something here.

A file is shipped with the package, or is the user's own; the user's wins where both have the name. The name of a
theme is the name of its file.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec
import platformdirs
from rich.style import Style
from textual.color import Color, ColorParseError
from textual.theme import Theme

from esper.formatting import suggest
from esper.sanctum.symbols import STAGES

DEFAULT_THEME = "sanctum-dark"


_SERIES = {
    True: ("#56b4e9", "#2fbf8f", "#cc79a7", "#d9cf5b", "#8f9cf0", "#e69f00", "#9aa4ad", "#e0734a"),
    False: ("#0072b2", "#007a58", "#a84c80", "#857a00", "#4a55b8", "#a86f00", "#5c666f", "#b8480f"),
}
"""Colours of curves that share a chart, on dark and on light ground: Okabe and Ito's, who can be told apart by all."""


class ThemeError(ValueError):
    """A theme cannot be had; the message is one sentence that says which, where, and what to do."""


class TextColours(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Four degrees of attention, from what moves to what only holds the place."""

    bright: str
    normal: str
    dim: str
    faint: str


class StageColours(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One colour for each stage of a seed's life."""

    dormant: str
    germinated: str
    training: str
    blending: str
    probationary: str
    fossilized: str
    culled: str
    embargoed: str


class SeverityColours(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is fine, what wants a look, what wants an act."""

    info: str
    warning: str
    error: str


class ThemeFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a theme file."""

    dark: bool
    background: str
    surface: str
    panel: str
    """Also the background of the selected row."""
    foreground: str
    primary: str
    """Curves, bars and keys."""
    secondary: str
    accent: str
    text: TextColours
    stages: StageColours
    severities: SeverityColours
    variables: dict[str, str] = {}
    """CSS variables of Textual."""


@dataclass(frozen=True)
class Palette:
    """The styles of a theme, by the role that a text plays on the screen."""

    name: str
    styles: dict[str, Style]
    selected_styles: dict[str, Style]
    """The same roles on the selected row."""
    theme: Theme
    """What Textual draws its own widgets with."""

    def __getitem__(self, role: str) -> Style:
        return self.styles[role]


class _DerivedColours(NamedTuple):
    """What a file does not say, since it follows from what it says."""

    spark: str
    areas: tuple[str, ...]
    """Under the curves of a chart."""
    series: tuple[str, ...]
    """The curves."""
    ranks: tuple[str, ...]
    """From the worst to the best."""


def load_themes(*, sixteen: bool = False) -> dict[str, Palette]:
    """All themes by name, the default first, then by name.

    Args:
        sixteen: as far as sixteen colours go.

    Raises:
        ThemeError: a file cannot be read, or a key of it is wrong.
    """
    files = {path.stem: path for folder in _folders() for path in sorted(folder.glob("*.toml"))}
    names = sorted(files, key=lambda name: (name != DEFAULT_THEME, name))
    return {name: _load(files[name], sixteen) for name in names}


def find_theme(name: str, themes: dict[str, Palette]) -> Palette:
    """The theme of that name.

    Raises:
        ThemeError: there is none.
    """
    if name in themes:
        return themes[name]
    raise ThemeError(f"unknown theme {name!r}: {suggest(name, themes)}")


def user_folder() -> Path:
    """Where a user's own theme files are looked for."""
    return platformdirs.user_config_path("esper-sanctum") / "themes"


def _folders() -> list[Path]:
    """Folders with theme files; a later one wins. An installed package has them inside, a checkout at its root."""
    package = Path(__file__).resolve().parents[1]
    return [package / "themes", package.parents[1] / "themes", user_folder()]


def _load(path: Path, sixteen: bool) -> Palette:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
        file = msgspec.convert(values, ThemeFile)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ThemeError(f"theme file {path} cannot be read: {error}") from error
    except msgspec.ValidationError as error:
        reason, _, where = str(error).partition(" - at `$.")
        key = f"{where.rstrip('`')}: " if where else ""
        raise ThemeError(f"theme file {path}: {key}{reason[0].lower()}{reason[1:]}") from error
    for key, colour in _colours(file):
        try:
            Color.parse(colour)
        except ColorParseError as error:
            raise ThemeError(f"theme file {path}: {key}: {colour!r} is no colour; write it as '#7aa2f7'") from error
    if sixteen:
        chosen = ANSI16_DARK if file.dark else ANSI16_LIGHT
        shades = _DerivedColours(chosen.spark, chosen.series, chosen.series, chosen.ranks)
        return _palette(path.stem, msgspec.convert(chosen.file, ThemeFile), shades)
    return _palette(path.stem, file, _derive_colours(file))


def _colours(file: ThemeFile) -> list[tuple[str, str]]:
    """Every colour of a file, with its key."""
    found: list[tuple[str, str]] = []
    for key, value in msgspec.structs.asdict(file).items():
        if isinstance(value, str):
            found.append((key, value))
        elif isinstance(value, msgspec.Struct):
            found += [(f"{key}.{name}", colour) for name, colour in msgspec.structs.asdict(value).items()]
    return found


def _derive_colours(file: ThemeFile) -> _DerivedColours:
    ground, series = Color.parse(file.background), _SERIES[file.dark]
    calm, worst, best = map(Color.parse, (file.text.dim, file.severities.warning, file.primary))
    ranks = (calm.blend(worst, 0.6), calm.blend(worst, 0.3), calm, calm.blend(best, 0.5), best)
    return _DerivedColours(
        spark=ground.blend(best, 0.5).hex,
        areas=tuple(ground.blend(Color.parse(colour), 0.6).hex for colour in series),
        series=series,
        ranks=tuple(colour.hex for colour in ranks),
    )


def _palette(name: str, file: ThemeFile, shades: _DerivedColours) -> Palette:
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
        "spark": style(shades.spark),
        "band": style(file.secondary),
        "key": style(file.primary, bold=True),
        "info": style(severities.info),
        "warning": style(severities.warning, bold=True),
        "outlier": style(severities.warning, bold=True, reverse=True),
        "error": style(severities.error, bold=True, reverse=True),
        "bad": style(severities.error, bold=True, reverse=True),
    }
    for role, colours in (("series", shades.series), ("area", shades.areas), ("rank", shades.ranks)):
        for index, colour in enumerate(colours):
            styles[f"{role}{index}"] = style(colour)
    for stage in STAGES:
        styles[stage] = style(getattr(file.stages, stage), bold=stage == "fossilized" or None)
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


BLACK, RED, GREEN, BROWN = "#000000", "#aa0000", "#00aa00", "#aa5500"
BLUE, MAGENTA, CYAN, WHITE = "#0000aa", "#aa00aa", "#00aaaa", "#aaaaaa"
GREY, BRIGHT_RED, BRIGHT_GREEN, YELLOW = "#555555", "#ff5555", "#55ff55", "#ffff55"
BRIGHT_BLUE, BRIGHT_MAGENTA, BRIGHT_CYAN, BRIGHT_WHITE = "#5555ff", "#ff55ff", "#55ffff", "#ffffff"


class Ansi16Palette(NamedTuple):
    """What stands in a theme file, and what is mixed from it elsewhere."""

    file: dict[str, object]
    series: tuple[str, ...]
    """Curves that share a chart, and the areas below them."""
    ranks: tuple[str, str, str, str, str]
    """From the worst to the best."""
    spark: str


ANSI16_DARK = Ansi16Palette(
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
ANSI16_LIGHT = Ansi16Palette(
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
