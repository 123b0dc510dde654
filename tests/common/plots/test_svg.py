"""Line plots as SVG."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from xml.etree import ElementTree

import pytest

from esper.common.plots.svg import BOTTOM, COLOURS, HEIGHT, LEFT, TEXT_COLOUR, SvgPlot

Curves = Mapping[str, Sequence[tuple[float, float]]]


def paths_of(curves: Curves) -> list[str]:
    """Return the path of each curve; that of the legend follows each."""
    root = ElementTree.fromstring(SvgPlot(curves, "step").svg)
    dashed = [found for found in root.iter() if found.get("stroke-dasharray")]
    return [str(found.get("d")) for found in dashed[::2]]


def points_of(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"[ML]([\d.]+) ([\d.]+)", path)]


def test_curve_is_interrupted_where_it_is_not_finite() -> None:
    [path, none] = paths_of({"a": [(1, 0.0), (2, 1.0), (3, math.nan), (4, 0.5)], "none": []})
    assert (path.count("M"), path.count("L"), none) == (2, 1, "")
    places = points_of(path)
    assert [x for x, _ in places] == sorted(x for x, _ in places)
    assert places[0][1] > places[2][1] > places[1][1]  # the y axis of a picture points down


def test_single_point_is_a_short_line() -> None:
    """A run has one point per curve after its first round, and a path without a segment draws nothing."""
    [path] = paths_of({"a": [(25, 0.5)]})
    assert re.fullmatch(r"M[\d.]+ [\d.]+h4", path)


@pytest.mark.parametrize("points", [[(1, 0.0), (2, 0.0)], [(0, 0.0)], [(1, -3.0), (2, -3.0)], [(1, math.inf)], []])
def test_curve_without_a_range_is_drawn(points: list[tuple[float, float]]) -> None:
    [path] = paths_of({"a": points})
    finite = [value for _, value in points if math.isfinite(value)]
    assert len(points_of(path)) == len(finite)
    if set(finite) == {0.0}:
        assert all(y == HEIGHT - BOTTOM for _, y in points_of(path))


def test_names_are_escaped_and_have_a_line_each() -> None:
    names = ["<script>", "a & b", "x" * 200]
    root = ElementTree.fromstring(SvgPlot({name: [(1, 0.5)] for name in names}, "<x>").svg)
    texts = {found.text: found for found in root.iter() if found.tag.endswith("text")}
    assert {*names, "<x>"} <= texts.keys()
    legend = [texts[name] for name in names]
    assert {found.get("x") for found in legend} == {str(LEFT + 40)}
    assert len({found.get("y") for found in legend}) == len(names)
    height = int(str(root.get("viewBox")).split()[-1])
    assert all(HEIGHT <= int(str(found.get("y"))) < height for found in legend)


@pytest.mark.parametrize("background", ["#ffffff", "#111111"])
def test_colours_are_readable_on_light_and_dark(background: str) -> None:
    """3:1 is what WCAG 2.1 asks of graphics; #111111 is the dark background of JupyterLab."""
    for colour in COLOURS:
        assert contrast(colour, background) >= 3
    assert contrast("#" + "".join(2 * digit for digit in TEXT_COLOUR[1:]), background) >= 4


def contrast(*colours: str) -> float:
    """Return the contrast ratio of two colours as WCAG defines it, 1 to 21."""
    luminances: list[float] = []
    for colour in colours:
        channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        luminances.append(sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True)))
    return (max(luminances) + 0.05) / (min(luminances) + 0.05)
