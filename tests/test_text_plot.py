import math
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from esper.sanctum.theme import DEFAULT_THEME, load_themes
from esper.sanctum.widgets.chart import Chart, spread_rows
from esper.text_plot import Axis, align_ticks, draw_curve, label_ticks, next_nice, sample_to_width, sparkline


def test_sparkline_distinguishes_gap_zero_and_nan() -> None:
    assert sparkline([0.0, None, math.nan, 0.5, 1.0, 7.0], 0.0, 1.0) == "▁ ×▅██"


def test_timeline_samples_keep_their_columns() -> None:
    values = [float(value) for value in range(25)]
    whole = sample_to_width(values, 25, 10)
    for count in range(1, 26):
        part = sample_to_width(values[:count], 25, 10)
        finished = count * 10 // 25
        assert part[:finished] == whole[:finished]
        assert all(place is None for place in part[finished + 1 :])
    assert sample_to_width([1.0, 2.0], 4, 8) == [1.0, 1.0, 2.0, 2.0, None, None, None, None]


def test_curve_rises_from_corner_to_corner() -> None:
    rows = draw_curve([0.0, 1.0], 2, 0.0, 1.0, width=4, height=2)
    assert rows[0].strip()
    assert rows[1].strip()
    assert rows[0][0] == " "
    assert rows[1][-1] == " "


def test_curve_has_gaps_at_missing_values() -> None:
    whole = "".join(draw_curve([0.5, 0.5, 0.5], 3, 0.0, 1.0, width=9, height=1))
    broken = "".join(draw_curve([0.5, None, 0.5], 3, 0.0, 1.0, width=9, height=1))
    assert " " not in whole
    assert broken.strip()
    assert broken[4] == " "


def test_chart_labels_both_ends_of_its_axis() -> None:
    palette = load_themes()[DEFAULT_THEME]
    chart = Chart(values=[0.1] * 25, x_length=25, low=0.0, high=1.0, ticks=[(0.0, "0"), (1.0, "100")])
    lines = ["".join(segment.text for segment in line.row(60)) for line in chart.lines(palette, 60, 8)]
    assert len(lines) == 8
    assert lines[0].startswith("  100 ┤")
    assert lines[6].startswith("    0 ┤")
    assert lines[7].split() == ["1", "5", "10", "15", "20", "25"]


def test_axis_ends_at_round_numbers() -> None:
    assert [next_nice(value) for value in (0.0031, 0.2, 0.21, 3.0)] == [0.005, 0.2, 0.5, 5.0]


def test_plot_without_space_is_empty() -> None:
    assert sample_to_width([1.0, 2.0], 25, 0) == []


@given(st.integers(2, 60), st.integers(1, 12), st.floats(-1e3, 1e3), st.floats(1e-3, 1e6))
def test_axis_ticks_are_evenly_spaced(rows: int, steps: int, low: float, step: float) -> None:
    axis = Axis(low, low + steps * step, [(low + index * step, str(index)) for index in range(steps + 1)])
    chart = Chart(values=[], x_length=2, low=axis.low, high=axis.high, ticks=axis.ticks)
    low_, high, ticks = align_ticks(axis, rows)
    assert (low_, ticks[0], ticks[-1]) == (axis.low, axis.ticks[0], axis.ticks[-1])
    assert high >= axis.high
    seen = [chart.row(value, rows + 1) for value, _ in ticks]
    assert len({before - after for before, after in pairwise(seen)}) == 1
    assert (seen[0], seen[-1] >= 0) == (rows - 1, True)


def test_axis_with_uneven_ticks_is_unchanged() -> None:
    axis = Axis(0.0, 1.0, [(0.0, "1"), (0.3, "2"), (0.7, "5"), (1.0, "10")])
    assert align_ticks(axis, 9) == axis


def test_axis_labels_agree_on_leading_zero() -> None:
    assert [label for _, label in label_ticks([0.0, 0.25, 0.5, 1.0])] == ["0", "0.25", "0.5", "1"]
    assert [label for _, label in label_ticks([-0.025, 0.0, 0.5, 1.5])] == ["−.025", "0", ".5", "1.5"]


@given(st.lists(st.integers(0, 20), min_size=1, max_size=12), st.integers(21, 30))
def test_labels_keep_order_and_rows(preferred: list[int], rows: int) -> None:
    preferred = sorted(preferred)
    placed = spread_rows(preferred, rows)
    assert all(before < after for before, after in pairwise(placed))
    assert 0 <= placed[0] <= placed[-1] < rows
    if len(set(preferred)) == len(preferred):
        assert placed == preferred
