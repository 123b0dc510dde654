"""Scatter plots: the front, and the same points as a chart and as SVG."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.common.plots.chart import percent
from esper.common.plots.scatter import Scatter, ScatterPoint, pareto_front
from esper.common.plots.svg import SvgScatter

POINTS = [
    ScatterPoint(1.0, 0.4, "host", is_on_front=True, label="c", title="bare <host>"),
    ScatterPoint(2.0, 0.3, "trial"),
    ScatterPoint(2.0, 0.9, is_on_front=True, label="a", title="grown", x_ends=(1.5, 2.5), y_ends=(0.6, 1.0)),
    ScatterPoint(4.0, 0.8, label="b", title="larger"),
    ScatterPoint(3.0, math.nan, label="d"),
]


@given(st.lists(st.tuples(st.floats(1, 9), st.floats(0, 1) | st.just(math.nan)), max_size=20))
def test_front_holds_exactly_the_points_that_none_beats(points: list[tuple[float, float]]) -> None:
    front = pareto_front(points, lambda point: point)
    assert front == sorted(front)
    for ratio, score in points:
        beaten = math.isnan(score) or any(
            other != (ratio, score) and other[0] <= ratio and other[1] >= score for other in points
        )
        assert ((ratio, score) in front) is not beaten


def plot(*points: ScatterPoint, width: int = 60, height: int = 14) -> list[str]:
    chart = Scatter(points, percent("accuracy")).chart()
    assert chart is not None
    return chart.text(width, height)


def test_front_holds_each_value_up_to_the_next_point() -> None:
    assert Scatter(POINTS, percent("accuracy")).front == [(1.0, 0.4), (2.0, 0.9), (4.0, 0.9)]
    lines = plot(*POINTS)
    [host] = [line for line in lines if "c◆" in line]
    [best] = [line for line in lines if "a●" in line]
    assert set(host[host.index("◆") + 1 : best.index("a")]) <= set("⠁⠂⠄⡀")  # level until the next point of the front


def test_chart_has_every_finite_point_with_its_label() -> None:
    text = "\n".join(plot(*POINTS))
    assert all(point in text for point in ("c◆", "a●", "b○", "·"))
    assert "d" not in text
    assert text.splitlines()[-1].split() == ["×1", "×1.5", "×2", "×3", "×4"]


def test_chart_without_finite_points_is_absent() -> None:
    for points in ([], [ScatterPoint(1.0, math.nan)], [ScatterPoint(0.0, 0.5), ScatterPoint(math.inf, 0.5)]):
        assert Scatter(points, percent("accuracy")).chart() is None


def test_labels_of_close_points_do_not_cover_each_other() -> None:
    close = [ScatterPoint(2.0, 0.5, label=label) for label in "ab"]
    assert any("b○a" in line for line in plot(*close))
    beside_trial = plot(ScatterPoint(1.98, 0.5, "trial"), ScatterPoint(2.0, 0.5, label="a"))
    assert any("a○" in line for line in beside_trial)


@pytest.mark.parametrize("has_legend", [True, False])
def test_picture_has_points_intervals_front_and_legend(has_legend: bool) -> None:
    picture = SvgScatter(Scatter(POINTS, percent("accuracy")), heading="a & b", has_legend=has_legend)
    root = ElementTree.fromstring(picture.svg)
    groups = [found for found in root if found.tag.endswith("}g")]
    titles = [str(group[0].text or "") for group in groups]
    assert titles == ["bare <host>", "", "grown", "larger"]
    lines = [part.get("d", "") for part in groups[2] if part.tag.endswith("path")]
    assert [re.sub(r"[\d. ]+", "", line) for line in lines] == ["MH", "MV"]
    texts = [found.text for found in root if found.tag.endswith("}text")]
    assert {"a & b", "accuracy %", "parameters, × host"} <= set(texts)
    assert ("a  grown" in texts) == has_legend
    [front] = [found for found in root if found.get("stroke-dasharray")]
    assert front.get("d", "").count("H") == 3
