import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.cli.overlay_plot import LabelledCurve, curve_mark, overlay_lines
from esper.common.plots.axis import label_ticks, linear_axis, next_nice
from esper.common.plots.chart import Chart, ChartMark, Curve, Look, Quantity, XAxis, percent
from esper.common.plots.dots import Canvas, dot_columns, moving_mean
from esper.common.plots.labels import spread_rows
from esper.common.plots.sparkline import sample_to_width, sparkline
from esper.common.plots.stacked_chart import AreaPainter, StackedChart

POINTS = st.lists(st.none() | st.just(math.nan) | st.floats(-5, 5), min_size=1, max_size=80)


def draw_curve(values: list[float | None], width: int, height: int) -> list[str]:
    """The lines of a canvas with a curve from 0 to 1."""
    canvas = Canvas(width, height)
    canvas.draw(dot_columns(range(len(values)), values, (0, len(values) - 1), (0, 1), width, height))
    return [text for text, _ in canvas.rows()]


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
    rows = draw_curve([0.0, 1.0], width=4, height=2)
    assert rows[0].strip()
    assert rows[1].strip()
    assert rows[0][0] == " "
    assert rows[1][-1] == " "


def test_curve_has_gaps_at_missing_values() -> None:
    whole = "".join(draw_curve([0.5, 0.5, 0.5], width=9, height=1))
    broken = "".join(draw_curve([0.5, None, 0.5], width=9, height=1))
    assert " " not in whole
    assert broken.strip()
    assert broken[4] == " "


@given(st.lists(st.lists(st.floats(-5, 5), max_size=12), min_size=1, max_size=26), st.integers(30, 140))
def test_overlaid_curves_have_their_letters_within_the_width(curves: list[list[float]], width: int) -> None:
    overlaid = [LabelledCurve("x", range(len(values)), values) for values in curves]
    lines = list(overlay_lines(Quantity("return"), overlaid, width))
    legend = " ".join(line for line in lines if "  x" in line)
    plot = "".join(line for line in lines if "  x" not in line)
    assert max(map(len, lines)) <= max(width, 29)
    for index, values in enumerate(curves):
        assert (f"{curve_mark(index)}  x: –" in legend) == (not values)
        assert not values or len(values) < 3 or curve_mark(index) in plot


def test_letters_of_curves_continue_after_z() -> None:
    assert [curve_mark(index) for index in (0, 25, 26, 51, 52, 701, 702)] == ["A", "Z", "AA", "AZ", "BA", "ZZ", "AAA"]


def test_chart_labels_both_ends_of_its_axis() -> None:
    chart = Chart(
        quantity=percent("accuracy"), x_axis=XAxis("step", 1, 25), curves=[Curve("a", range(1, 3), [0.03, 0.98])]
    )
    lines = chart.text(60, 8)
    assert len(lines) == 8
    assert lines[0].startswith("  100 ┤")
    assert lines[6].startswith("    0 ┤")
    assert lines[7].split() == ["1", "5", "10", "15", "20", "25"]


@given(POINTS, st.integers(1, 30), st.integers(1, 8))
def test_curve_passes_through_its_points_without_a_break(values: list[float | None], width: int, height: int) -> None:
    last = max(len(values) - 1, 1)
    columns, low, high = (
        part.tolist() for part in dot_columns(range(len(values)), values, (0, last), (-5, 5), width, height)
    )
    ranges = {column: (bottom, top) for column, bottom, top in zip(columns, low, high, strict=True)}
    placed: list[tuple[int, int] | None] = []
    for x, value in enumerate(values):
        if value is None or math.isnan(value):
            placed.append(None)
            continue
        column, dot = round(x / last * (width * 2 - 1)), round((value + 5) / 10 * (height * 4 - 1))
        bottom, top = ranges[column]
        assert bottom - 1 <= dot <= top + 1  # numpy and Python may round a half differently
        placed.append((column, dot))
    for before, after in pairwise(placed):
        if before is not None and after is not None:
            for column in range(before[0], after[0]):
                (bottom, top), (next_bottom, next_top) = ranges[column], ranges[column + 1]
                assert next_bottom <= top + 1
                assert bottom <= next_top + 1
    if len(values) > 2 and all(point is None for point in placed):
        assert not ranges


def test_curve_outside_the_window_is_cut_at_its_edges() -> None:
    dots = dot_columns([0.0, 10.0], [0.0, 10.0], (4.0, 6.0), (0.0, 10.0), 10, 10)
    assert dots.columns.tolist() == list(range(20))
    assert dots.low[0] == round(0.4 * 39)
    assert dots.high[-1] == round(0.6 * 39)


def test_cell_belongs_to_first_layer_and_shows_all_dots() -> None:
    canvas = Canvas(1, 1, layers=2)
    canvas.draw(dot_columns([0.0], [0.0], (0.0, 1.0), (0.0, 1.0), 1, 1), layer=1)
    canvas.draw(dot_columns([1.0], [1.0], (0.0, 1.0), (0.0, 1.0), 1, 1), layer=0)
    assert canvas.rows() == [(chr(0x2800 + 0x40 + 0x08), [0])]


@given(POINTS, st.integers(1, 12))
def test_moving_mean_is_that_of_measured_values(values: list[float | None], count: int) -> None:
    for index, mean in enumerate(moving_mean(values, count)):
        value = values[index]
        if value is None or math.isnan(value):
            assert mean is value
            continue
        measured = [v for v in values[max(index + 1 - count, 0) : index + 1] if v is not None and not math.isnan(v)]
        assert mean is not None
        assert math.isclose(mean, sum(measured) / len(measured), abs_tol=1e-9)
    numbers, means = (
        np.array([math.nan if value is None else value for value in sequence])
        for sequence in (values, moving_mean(values, count))
    )
    assert repr(list(moving_mean(numbers, count))) == repr(list(means))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.integers(3, 20))
def test_axis_of_accuracy_stays_within_0_and_100(values: list[float], height: int) -> None:
    chart = Chart(quantity=percent("accuracy"), x_axis=XAxis("round", 1, 20), curves=[Curve("a", range(1, 21), values)])
    frame = chart.frame(60, height)
    assert frame is not None
    assert -1e-9 <= frame.axis.low < frame.axis.high <= 1 + 1e-6
    assert frame.axis.low <= min(values) + 1e-9
    assert frame.axis.high >= max(values) - 1e-9


def test_readout_names_position_median_quartiles_and_bounds() -> None:
    xs = range(1, 4)
    chart = Chart(
        quantity=percent("accuracy"),
        x_axis=XAxis("round", 1, 3),
        curves=[Curve("median", xs, [0.5, 0.931, None]), Curve("min", xs, [0.1, 0.825, 0.3])],
        band=(Curve("", xs, [0.4, 0.882, 0.5]), Curve("", xs, [0.6, 0.942, 0.6])),
    )
    assert chart.readout(2) == "round 2: median 93.1  quartiles 88.2 to 94.2  min 82.5"
    assert chart.readout() == "median –  quartiles 50.0 to 60.0  min 30.0"
    assert "median 71.5" in chart.smoothed(5).readout(2)


def test_band_cursor_and_marks_are_drawn_in_their_columns() -> None:
    xs = range(11)
    chart = Chart(
        quantity=Quantity("loss"),
        x_axis=XAxis("step", 0, 10),
        curves=[Curve("loss", xs, [5.0] * 11)],
        band=(Curve("", xs, [2.0] * 11), Curve("", xs, [8.0] * 11)),
        marks=[ChartMark(0, 5.0, "g", "germinated"), ChartMark(10, None, "!", "error")],
        include=0.0,
        look=Look(cursor=5),
    )
    lines = chart.text(48, 12)
    frame = chart.frame(48, 12)
    assert frame is not None
    column = 7 + frame.column(5)
    assert [line[column] for line in lines[:-1]].count("│") == 10
    assert lines[frame.row(5.0)][7] == "g"
    assert lines[10][7 + frame.column(10)] == "!"
    rows = [index for index, line in enumerate(lines) if "░" in line]
    assert (min(rows), max(rows)) == (frame.row(8.0), frame.row(2.0))


def test_logarithmic_axis_needs_a_positive_value() -> None:
    chart = Chart(
        quantity=Quantity("loss"), x_axis=XAxis("step", 0, 2), curves=[Curve("loss", range(3), [100.0, 0.0, 0.01])]
    )
    frame = chart.with_look(Look(is_logarithmic=True)).frame(60, 12)
    assert frame is not None
    assert (frame.row(2.0), frame.row(-2.0)) == (0, 10)
    assert [label for _, label in frame.axis.ticks] == ["0.01", "0.1", "1", "10", "100"]
    negative = Chart(quantity=Quantity("x"), x_axis=XAxis("step", 0, 1), curves=[Curve("x", range(2), [-1.0, -2.0])])
    assert not negative.with_look(Look(is_logarithmic=True)).look.is_logarithmic


def test_axis_ends_at_round_numbers() -> None:
    assert [next_nice(value) for value in (0.0031, 0.2, 0.21, 3.0)] == [0.005, 0.2, 0.5, 5.0]


def test_plot_without_space_is_empty() -> None:
    assert sample_to_width([1.0, 2.0], 25, 0) == []


@given(st.lists(st.floats(-1e6, 1e6), max_size=9), st.integers(2, 60))
def test_axis_contains_its_values_and_its_ticks_are_evenly_spaced(values: list[float], height: int) -> None:
    low, high, ticks = linear_axis(values, height)
    assert all(low - 1e-6 <= value <= high + 1e-6 for value in values)
    steps = [after - before for (before, _), (after, _) in pairwise(ticks)]
    assert ticks
    assert not steps or max(steps) - min(steps) <= 1e-6 * (high - low)


def test_axis_labels_agree_on_leading_zero() -> None:
    assert [label for _, label in label_ticks([0.0, 0.25, 0.5, 1.0])] == ["0", "0.25", "0.5", "1"]
    assert [label for _, label in label_ticks([-0.025, 0.0, 0.5, 1.5])] == ["−.025", "0", ".5", "1.5"]


def test_labels_of_a_narrow_axis_differ() -> None:
    assert [label for _, label in label_ticks([78.12, 78.13, 78.14])] == ["78.12", "78.13", "78.14"]


@given(st.lists(st.integers(0, 20), min_size=1, max_size=12), st.integers(21, 30))
def test_labels_keep_order_and_rows(preferred: list[int], rows: int) -> None:
    preferred = sorted(preferred)
    placed = spread_rows(preferred, rows)
    assert all(before < after for before, after in pairwise(placed))
    assert 0 <= placed[0] <= placed[-1] < rows
    if len(set(preferred)) == len(preferred):
        assert placed == preferred


def test_stacked_areas_fill_the_plot_in_proportion_and_carry_letters() -> None:
    xs = range(1, 11)
    chart = StackedChart(
        quantity=percent("stages"),
        x_axis=XAxis("step", 1, 10),
        curves=[Curve("empty", xs, [*[0.25] * 9, None], "series0"), Curve("grown", xs, [*[0.75] * 9, None], "series1")],
        areas=["area0", "area1"],
        letters=["e", "g"],
        has_labels=True,
    )
    frame = chart.frame(60, 9)
    assert frame is not None
    grounds = [{span.ground for span in line} for line in chart.lines_in(frame)[:-1]]
    assert ["area1" in row for row in grounds] == [True] * 6 + [False] * 2
    assert ["area0" in row for row in grounds] == [False] * 6 + [True] * 2
    texts = chart.text(60, 9)
    assert texts[0].count("g") > 5
    assert "grown  75%" in "".join(texts)
    assert chart.readout(3) == "step 3: empty 25.0  grown 75.0"


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6).filter(lambda values: sum(values) > 1e-3), st.integers(2, 20))
def test_stacked_cells_of_a_column_are_rounded_fractions(values: list[float], height: int) -> None:
    point = tuple(value / sum(values) for value in values)
    roles = [f"area{index}" for index in range(len(point))]
    painter = AreaPainter(roles, ["x"] * len(point))
    filled = dict.fromkeys(roles, 0)
    for level in range(height):
        cell = painter.cell(point, level, height, False)
        lower = "▁▂▃▄▅▆▇█".find(cell.text) + 1
        if lower:
            filled[cell.role] += lower
        filled[cell.ground] += 8 - lower
    assert sum(filled.values()) == height * 8
    for role, fraction in zip(roles, point, strict=True):
        if height * 8 * fraction > 16:  # a cell has at most two areas
            assert abs(filled[role] - fraction * height * 8) <= 8


@pytest.mark.parametrize(
    ("first", "last", "labels"),
    [(1, 3, ["1", "2", "3"]), (0.05, 2.4, ["1", "2"]), (0.1, 1.4, ["0.1", "1.4"]), (1.2, 1.8, ["1.2", "1.8"])],
)
def test_labels_of_the_x_axis_show_its_scale(first: float, last: float, labels: list[str]) -> None:
    chart = Chart(
        quantity=Quantity("loss"), x_axis=XAxis("round", first, last), curves=[Curve("loss", [first, last], [1.0, 2.0])]
    )
    assert chart.text(60, 12)[-1].split() == labels


@pytest.mark.parametrize(
    ("first", "last", "labels"),
    [(1, 3, ["1", "2", "3"]), (0.05, 8, [*"12345678"]), (0.05, 1.4, ["1"]), (0.05, 0.4, ["1"]), (1.05, 1.8, ["2"])],
)
def test_labels_of_an_axis_of_rounds_are_whole(first: float, last: float, labels: list[str]) -> None:
    axis = XAxis("round", first, last, steps_per_round=20)
    chart = Chart(quantity=Quantity("loss"), x_axis=axis, curves=[Curve("loss", [first, last], [1.0, 2.0])])
    assert chart.text(120, 12)[-1].split() == labels


def test_position_on_an_axis_of_rounds_has_its_step() -> None:
    axis = XAxis("round", 1, 3, steps_per_round=20)
    assert [axis.format(steps / 20) for steps in (1, 19, 20, 21, 60)] == ["1:1", "1:19", "1", "2:1", "3"]
