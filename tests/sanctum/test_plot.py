import math

from esper.sanctum.theme import DEFAULT, load_themes
from esper.sanctum.widgets.chart import Chart
from esper.sanctum.widgets.plot import curve, places, round_up, sparkline


def test_a_sparkline_tells_gap_zero_and_nan_apart() -> None:
    assert sparkline([0.0, None, math.nan, 0.5, 1.0, 7.0], 0.0, 1.0) == "▁ ×▅██"


def test_places_of_a_timeline_do_not_move() -> None:
    values = [float(value) for value in range(25)]
    whole = places(values, 25, 10)
    for count in range(1, 26):
        part = places(values[:count], 25, 10)
        finished = count * 10 // 25
        assert part[:finished] == whole[:finished]
        assert all(place is None for place in part[finished + 1 :])
    assert places([1.0, 2.0], 4, 8) == [1.0, 1.0, 2.0, 2.0, None, None, None, None]


def test_a_curve_rises_from_corner_to_corner() -> None:
    rows = curve([0.0, 1.0], 2, 0.0, 1.0, width=4, height=2)
    assert rows[0].strip()
    assert rows[1].strip()
    assert rows[0][0] == " "
    assert rows[1][-1] == " "


def test_a_curve_is_broken_where_nothing_was_measured() -> None:
    whole = "".join(curve([0.5, 0.5, 0.5], 3, 0.0, 1.0, width=9, height=1))
    broken = "".join(curve([0.5, None, 0.5], 3, 0.0, 1.0, width=9, height=1))
    assert " " not in whole
    assert broken.strip()
    assert broken[4] == " "


def test_a_chart_labels_its_ends() -> None:
    palette = load_themes()[DEFAULT]
    chart = Chart(values=[0.1] * 25, extent=25, low=0.0, high=1.0, ticks=[(0.0, "0"), (1.0, "100")])
    lines = [line.strip(60).text for line in chart.lines(palette, 60, 8)]
    assert len(lines) == 8
    assert lines[0].startswith("  100 ┤")
    assert lines[6].startswith("    0 ┤")
    assert lines[7].split() == ["1", "5", "10", "15", "20", "25"]


def test_axes_end_at_round_numbers() -> None:
    assert [round_up(value) for value in (0.0031, 0.2, 0.21, 3.0)] == [0.005, 0.2, 0.5, 5.0]


def test_where_there_is_no_place_nothing_is_shown() -> None:
    assert places([1.0, 2.0], 25, 0) == []
