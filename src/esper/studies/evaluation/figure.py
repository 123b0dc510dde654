"""Figures of an evaluation: test score against parameters, with the Pareto front, as a file and as text."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from string import ascii_lowercase
from typing import Any

from esper.common.configuration.config import ConfigError
from esper.common.formatting import install_command, suggest
from esper.common.plots.chart import score_quantity
from esper.common.plots.scatter import Scatter, ScatterPoint, pareto_front
from esper.common.plots.svg import SvgScatter
from esper.studies.evaluation.comparison import EvaluationReport, PolicyResult

FIGURE_FORMATS = (".svg", ".pdf", ".png")
"""Endings of the files that can be written."""


def front_policies(results: Sequence[PolicyResult]) -> set[str]:
    """Return the policies that no other one dominates (`pareto_front`), equal ones included. Means are compared."""
    places = {_place(result) for result in pareto_front(results, _place)}
    return {result.policy for result in results if _place(result) in places}


def _place(result: PolicyResult) -> tuple[float, float]:
    return result.parameter_ratio.mean, result.test_score.mean


def _scatter_of(report: EvaluationReport) -> Scatter:
    """Return the policies as points, named by letters."""
    front = front_policies(report.policies)
    points = [
        ScatterPoint(
            *_place(result),
            is_on_front=result.policy in front,
            label=letter,
            title=result.policy.removeprefix("plan:"),
            x_ends=(result.parameter_ratio.low, result.parameter_ratio.high),
            y_ends=(result.test_score.low, result.test_score.high),
        )
        for letter, result in zip(ascii_lowercase, report.policies, strict=False)
    ]
    return Scatter(
        points, score_quantity(f"test {report.score_name}", report.score_scale), "parameters, relative to the bare host"
    )


def check_figure(path: Path) -> None:
    """Check, before anything is evaluated, that a figure can be written.

    Raises:
        ConfigError: The file has another ending, its directory does not exist, or matplotlib is needed but missing.
    """
    if path.suffix not in FIGURE_FORMATS:
        raise ConfigError(f"--figure {path}: {path.suffix!r} is not a format; {suggest(path.suffix, FIGURE_FORMATS)}")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"--figure {path}: the directory {path.parent} does not exist")
    if path.suffix != ".svg" and find_spec("matplotlib") is None:
        raise ConfigError(
            f"--figure {path}: {path.suffix} needs matplotlib; run `{install_command('figures')}` in the checkout, "
            "or write .svg"
        )


def write_figure(report: EvaluationReport, path: Path) -> None:
    """Write the figure to a file whose format follows from its ending. Raises OSError."""
    scatter = _scatter_of(report)
    heading = (
        f"{report.task}: {report.episodes} held-out episodes, random seed {report.seed}; "
        f"{report.level:.0%} intervals; filled: Pareto front"
    )
    if path.suffix == ".svg":
        path.write_text(SvgScatter(scatter, heading=heading, has_legend=True).svg, encoding="utf-8")
    else:
        _write_with_matplotlib(scatter, heading, path)


def _write_with_matplotlib(scatter: Scatter, heading: str, path: Path) -> None:
    """Write a figure as PDF or PNG, for which the package has no renderer."""
    # Imported by name, because the types of matplotlib are incomplete; slow to import.
    mpl: Any = import_module("matplotlib")
    figures: Any = import_module("matplotlib.figure")
    ticker: Any = import_module("matplotlib.ticker")
    with mpl.rc_context({"font.size": 9}):
        # The legend is below the plot, because long names beside it would leave the plot no room.
        figure = figures.Figure(figsize=(9.0, 4.5 + 0.1 * len(scatter.points)), layout="constrained")
        axes = figure.add_subplot()
        for point in scatter.points:
            x, y = point.x, point.y * scatter.quantity.factor
            left, right = point.x_ends or (point.x, point.x)
            low, high = (end * scatter.quantity.factor for end in point.y_ends or (point.y, point.y))
            colour = "#0b6e4f" if point.is_on_front else "#888888"
            axes.errorbar(
                x,
                y,
                xerr=[[x - left], [right - x]],
                yerr=[[y - low], [high - y]],
                fmt="o",
                color=colour,
                mfc=colour if point.is_on_front else "white",
                lw=1,
                label=f"{point.label}  {point.title}",
            )
            axes.annotate(point.label, (x, y), xytext=(4, 4), textcoords="offset points")
        figure.legend(loc="outside lower left", ncols=2, frameon=False, fontsize=8)
        front = [(x, y * scatter.quantity.factor) for x, y in scatter.front]
        axes.step(*zip(*front, strict=True), where="post", color="#0b6e4f", lw=0.8, ls=":")
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
        axes.xaxis.set_major_formatter("×{x:g}")
        axes.xaxis.set_minor_locator(ticker.NullLocator())
        axes.set_xlabel(scatter.x_label)
        axes.set_ylabel(scatter.quantity.label)
        axes.set_title(heading, fontsize=9)
        axes.grid(visible=True, alpha=0.25)
        figure.savefig(path)


def draw_text(report: EvaluationReport, width: int, height: int) -> list[str]:
    """Draw the figure as text. Policies on the Pareto front are ●, others ○; a letter before the mark names them.

    Args:
        width: Number of columns, at least 40.
        height: Number of lines of the plot, without axis and legend.

    Returns:
        Lines of the plot and of its legend.
    """
    scatter = _scatter_of(report)
    chart = scatter.chart()
    legend = [f"  {point.label} {point.glyph} {point.title}" for point in scatter.points]
    heading = f"{scatter.quantity.label} by parameters, ×host; ● no other policy is as good with fewer"
    return [heading, *(chart.text(width, height + 1) if chart is not None else []), *legend]
