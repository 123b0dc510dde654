from pathlib import Path

import pytest
from textual.color import Color

from esper.sanctum.theme import DEFAULT, ThemeError, find_theme, load_themes
from tests.sanctum.driving import copy_of_default


def test_the_default_stands_first() -> None:
    assert list(load_themes()) == [DEFAULT, "colour-blind", "high-contrast", "sanctum-light"]


@pytest.mark.parametrize("name", ["sanctum-dark", "sanctum-light", "high-contrast", "colour-blind"])
def test_text_can_be_read(name: str) -> None:
    palette = load_themes()[name]
    for role, least in (("bright", 7.0), ("normal", 4.5), ("dim", 3.0), ("warning", 4.5), ("error", 4.5)):
        for style in (palette.styles[role], palette.here[role]):
            assert style.color is not None
            assert style.bgcolor is not None
            ratio = contrast(Color.from_rich_color(style.color), Color.from_rich_color(style.bgcolor))
            assert ratio >= least, role


def contrast(one: Color, other: Color) -> float:
    """WCAG's ratio."""

    def luminance(colour: Color) -> float:
        channels = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in colour.normalized]
        return 0.2126 * channels[0] + 0.7152 * channels[1] + 0.0722 * channels[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_the_users_file_wins_and_adds(user_themes: Path) -> None:
    copy_of_default(user_themes, "mine", "#0f1317", "#010203")
    copy_of_default(user_themes, DEFAULT, "#0f1317", "#040506")
    themes = load_themes()
    assert themes["mine"].theme.background == "#010203"
    assert themes[DEFAULT].theme.background == "#040506"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('training = "#5b9bd8"', "training = 3", "stages.training: expected `str`, got `int`"),
        ('training = "#5b9bd8"\n', "", "stages: object missing required field `training`"),
        (
            'training = "#5b9bd8"',
            'training = "bluish"',
            "stages.training: 'bluish' is no colour; write it as '#7aa2f7'",
        ),
        ('primary = "#6aa9d8"', 'primray = "#6aa9d8"', "object contains unknown field `primray`"),
        ("[text]", "[text", "cannot be read"),
    ],
)
def test_a_broken_file_is_refused_in_one_sentence(user_themes: Path, old: str, new: str, says: str) -> None:
    path = copy_of_default(user_themes, "mine", old, new)
    with pytest.raises(ThemeError) as refused:
        load_themes()
    message = str(refused.value)
    assert str(path) in message
    assert says in message
    assert "\n" not in message


def test_an_unknown_name_offers_the_nearest() -> None:
    with pytest.raises(ThemeError, match=r"unknown theme 'sanctum-drak': did you mean sanctum-dark\?"):
        find_theme("sanctum-drak", load_themes())
    with pytest.raises(ThemeError, match="valid: sanctum-dark, colour-blind"):
        find_theme("zzz", load_themes())
