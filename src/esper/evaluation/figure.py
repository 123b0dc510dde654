"""Figures of an evaluation: test score against parameters, with the Pareto front, as a file and as text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from esper.config import ConfigError
from esper.evaluation.comparison import EvaluationReport, PolicyResult
from esper.formatting import install_command, suggest
from esper.intervals import IntervalEstimate
from esper.scatter import ScatterPoint, draw_scatter, pareto_front

FIGURE_FORMATS = (".svg", ".pdf", ".png")
"""Endings of the files that can be written."""
_MAX_SIDE_LABEL = 30
"""Characters of the longest name in a legend beside the plot; with a longer one, the legend is below it."""
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def front_policies(results: Sequence[PolicyResult]) -> set[str]:
    """Return the policies that no other one dominates (`pareto_front`), equal ones included. Means are compared."""
    places = {_place(result) for result in pareto_front(results, _place)}
    return {result.policy for result in results if _place(result) in places}


def _place(result: PolicyResult) -> tuple[float, float]:
    return result.parameter_ratio.mean, result.test_score.mean


def check_figure(path: Path) -> None:
    """Check, before anything is evaluated, that a figure can be written.

    Raises:
        ConfigError: The file has another ending, its directory does not exist, or matplotlib is not installed.
    """
    if path.suffix not in FIGURE_FORMATS:
        raise ConfigError(f"--figure {path}: {path.suffix!r} is not a format; {suggest(path.suffix, FIGURE_FORMATS)}")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"--figure {path}: the directory {path.parent} does not exist")
    if find_spec("matplotlib") is None:
        raise ConfigError(f"--figure needs matplotlib: run `{install_command('figures')}` in the checkout")


def write_figure(report: EvaluationReport, path: Path) -> None:
    """Write the figure to a file whose format follows from its ending. Raises OSError."""
    # Imported by name, because the types of matplotlib are incomplete; slow to import.
    mpl: Any = import_module("matplotlib")
    figures: Any = import_module("matplotlib.figure")
    ticker: Any = import_module("matplotlib.ticker")
    front = front_policies(report.policies)
    with mpl.rc_context({"svg.hashsalt": "esper-sanctum", "font.size": 9}):
        figure = figures.Figure(figsize=(9.0, 4.5), layout="constrained")
        axes = figure.add_subplot()
        for letter, result in zip(_LETTERS, report.policies, strict=False):
            x, y = result.parameter_ratio, result.test_score
            is_best = result.policy in front
            axes.errorbar(
                x.mean,
                100 * y.mean,
                xerr=[[x.mean - x.low], [x.high - x.mean]],
                yerr=[[100 * (y.mean - y.low)], [100 * (y.high - y.mean)]],
                fmt="o",
                color="#0b6e4f" if is_best else "#888888",
                mfc="#0b6e4f" if is_best else "white",
                lw=1,
                label=f"{letter}  {_label(result.policy)}",
            )
            axes.annotate(letter, (x.mean, 100 * y.mean), xytext=(4, 4), textcoords="offset points")
        has_long_labels = any(len(_label(result.policy)) > _MAX_SIDE_LABEL for result in report.policies)
        if has_long_labels:  # beside the plot, they would leave no room for it
            figure.set_figheight(4.5 + 0.2 * math.ceil(len(report.policies) / 2))
            figure.legend(loc="outside lower left", ncols=2, frameon=False, fontsize=8)
        else:
            figure.legend(loc="outside right upper", frameon=False)
        best = sorted((r for r in report.policies if r.policy in front), key=lambda r: r.parameter_ratio.mean)
        points = [(result.parameter_ratio.mean, 100 * result.test_score.mean) for result in best]
        axes.step(*zip(*points, strict=True), where="post", color="#0b6e4f", lw=0.8, ls=":")
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
        axes.xaxis.set_major_formatter("×{x:g}")
        axes.xaxis.set_minor_locator(ticker.NullLocator())
        axes.set_xlabel("parameters, relative to the bare host")
        axes.set_ylabel(f"test {report.score_name}, %")
        axes.set_title(
            f"{report.task}: {report.episodes} held-out episodes, random seed {report.seed}; "
            f"{report.level:.0%} intervals; filled: Pareto front",
            fontsize=9,
        )
        axes.grid(visible=True, alpha=0.25)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def draw_text(report: EvaluationReport, width: int, height: int) -> list[str]:
    """Draw the figure as text. Policies on the Pareto front are ●, others ○; a letter before the mark names them.

    Args:
        width: Number of columns, at least 40.
        height: Number of lines of the plot, without axis and legend.

    Returns:
        Lines of the plot and of its legend.
    """
    front = front_policies(report.policies)
    marks = {result.policy: "●" if result.policy in front else "○" for result in report.policies}
    named = list(zip(_LETTERS, report.policies, strict=False))
    points = [
        ScatterPoint(
            x=result.parameter_ratio.mean,
            y=100 * result.test_score.mean,
            mark=marks[result.policy],
            letter=letter,
            x_ends=_ends(result.parameter_ratio),
            y_ends=(100 * result.test_score.low, 100 * result.test_score.high),
        )
        for letter, result in named
    ]
    legend = [f"  {letter} {marks[result.policy]} {_label(result.policy)}" for letter, result in named]
    heading = f"test {report.score_name}, %, against parameters"
    return [f"{heading}; ● no other policy is as good with fewer", *draw_scatter(points, width, height), *legend]


def _ends(value: IntervalEstimate) -> tuple[float, float]:
    return value.low, value.high


def _label(policy: str) -> str:
    return policy.removeprefix("plan:")
