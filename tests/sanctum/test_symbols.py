import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.common.formatting import format_clock, format_duration, ordinal, strip_control
from esper.sanctum.symbols import compact_cell, ellipsise, number_cell, percent_cell, scale_cell, shorten_name


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.8123, "  0.812"),
        (4.314, "  4.31 "),
        (12.34, " 12.3  "),
        (123.4, "123    "),
        (-4.314, " −4.31 "),
        (0.00004, "  4e-5 "),
        (12345.0, "  1e4  "),
    ],
)
def test_numbers_have_three_digits_and_align_the_point(value: float, text: str) -> None:
    assert number_cell(value, 3, 3).text == text


@given(st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True)))
def test_numbers_keep_width_and_point_position(value: float | None) -> None:
    for before, after, fixed in ((3, 1, True), (3, 2, False), (2, 3, False), (4, 3, False)):
        text = number_cell(value, before, after, fixed=fixed).text
        if value is None or not math.isfinite(value) or 0.01 <= abs(value) < 10:
            assert len(text) == before + 1 + after
        if "." in text:
            assert text.index(".") == before


def test_numbers_distinguish_missing_zero_and_nan() -> None:
    for write in (lambda value: number_cell(value, 3, 2), percent_cell, compact_cell):
        cells = [write(value) for value in (None, 0.0, math.nan)]
        assert [cell.text.strip() for cell in cells] == ["–", "0", "NaN"]
        assert len({cell.role for cell in cells}) == 3
    assert [scale_cell(value).text.strip() for value in (None, 32768.0, 3000.0, math.nan)] == [
        "–",
        "2^15",
        "2^11.6",
        "NaN",
    ]
    assert scale_cell(0.0).role == "bad"


def test_signed_numbers_show_plus_and_minus() -> None:
    assert number_cell(0.25, 2, 3, signed=True).text == "+0.250"
    assert number_cell(-0.25, 2, 3, signed=True).text == "−0.250"
    assert number_cell(0.0, 2, 3, signed=True).text.strip() == "0"


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0.83646, 4, "0.836"),
        (-0.83654, 4, "−0.837"),
        (2.77548, 4, "2.78"),
        (164.46, 4, "164"),
        (7346.4, 4, "7346"),
        (7346.4, 3, "7350"),
        (0.0001249996, 2, "0.0001"),
        (0.0124996, 2, "0.012"),
        (9.996, 3, "10"),
    ],
)
def test_compact_cell_rounds_once(value: float, digits: int, text: str) -> None:
    """A number that was first rounded to 0.8365 would then become 0.837."""
    assert compact_cell(value, digits).text == text


def test_compact_cell_omits_trailing_zeros() -> None:
    assert [compact_cell(value).text for value in (0.0083, 0.5, 24.0, 117.6, 100.0)] == [
        "0.0083",
        "0.5",
        "24",
        "118",
        "100",
    ]
    assert [compact_cell(value, tight=True).text for value in (0.5, 0.0, 10.5, -0.5)] == [".5", "0", "10.5", "−0.5"]


def test_duration_formats_seconds_to_days() -> None:
    assert [format_duration(value) for value in (None, 38.2, 116, 840, 7500, 273600)] == [
        "–", "38s", "1m56s", "14m", "2h05m", "3d04h",
    ]  # fmt: skip
    assert format_clock(4360) == "01:12:40"


def test_ordinal_has_the_right_ending() -> None:
    numbers = (1, 2, 3, 4, 11, 12, 13, 21, 43, 101, 111)
    endings = ("st", "nd", "rd", "th", "th", "th", "th", "st", "rd", "st", "th")
    assert [ordinal(number) for number in numbers] == [f"{n}{end}" for n, end in zip(numbers, endings, strict=True)]


def test_control_characters_in_text_are_replaced() -> None:
    assert strip_control("a\x1b[2Jb\nc\td") == "a [2Jb c d"
    assert ellipsise("abcdef", 4) == "abc…"


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        ("αc .091", 5, "αc …"),
        ("αc .091", 7, "αc .091"),
        ("at 12:34:56 it fell", 9, "at …"),
        ("only 0.0e+00 in it", 9, "only …"),
        ("only 0.0e+00 in it", 10, "only …"),
        ("loss −43.5 pp", 8, "loss …"),
        ("loss −43.5 pp", 11, "loss −43.5…"),
        ("scale 2^−43", 9, "scale …"),
        ("deep_1x1", 7, "deep_1…"),
        ("漢字漢字", 5, "漢字…"),
        ("漢字漢字", 4, "漢 …"),
        ("ab", 0, ""),
    ],
)
def test_shortened_text_never_ends_within_a_figure(text: str, width: int, expected: str) -> None:
    assert ellipsise(text, width) == expected


def test_shortened_names_stay_different() -> None:
    assert ellipsise("node1/cuda:10", 6, keep_end=True) == "…da:10"
    names = ("conv_heavy", "conv_light", "depthwise", "norm", "a_rather_long_name")
    assert [shorten_name(name, 6) for name in names] == ["…heavy", "…light", "depth…", "norm", "…name"]


def test_value_of_known_scale_keeps_its_decimals() -> None:
    assert number_cell(3e-4, 2, 3, signed=True, fixed=True).text == "+0.000"
    assert number_cell(-0.0321, 2, 3, signed=True, fixed=True).text == "−0.032"
    assert number_cell(5e-4, 1, 1, fixed=True).text == "0.0"
    assert number_cell(0.0, 1, 1, fixed=True).text == "0  "


def test_compact_cell_rounds_to_significant_digits() -> None:
    assert compact_cell(0.02441, 2).text == "0.024"
    assert compact_cell(0.9312, 2).text == "0.93"
    assert compact_cell(-0.3421, 2).text == "−0.34"
    assert compact_cell(float("nan"), 2).text.strip() == "NaN"
