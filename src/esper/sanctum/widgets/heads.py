"""Panels about the policy heads: gradient norm and entropy now, and gradient norms over the rounds."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

from textual.geometry import Size

from esper.plots.axis import finite_range, round_axis_length
from esper.plots.chart import Chart, Curve, Look, Quantity, XAxis, percent
from esper.plots.sparkline import sparkline
from esper.plots.stacked_chart import StackedChart
from esper.sanctum.symbols import compact_cell, head_label, number_cell
from esper.sanctum.widgets.chart_panel import ChartPanel
from esper.sanctum.widgets.panel import Line, Panel
from esper.telemetry.events import RunStarted
from esper.telemetry.state import HeadState

_LONG_LABEL_MIN_COLS = 50
"""Minimum width of a chart for head names that are spelled out."""
_HEAD_COLS = 28
"""Columns of name, gradient norm, entropy and gaps of a head."""
_BAR_MIN_COLS = 6
"""Minimum number of columns for a sparkline and a bar beside them; with fewer, only a sparkline."""


def no_update_message(started: RunStarted) -> str:
    """Return the text that a panel shows before the first policy update."""
    if started.policy == "ppo":
        return "no policy update yet"
    rules = "random legal actions" if started.policy == "random" else "fixed rules"
    return f"{started.policy}: {rules}, nothing to train"


class HeadList(Panel):
    """One line per head: gradient norm, its sparkline over the last updates, entropy as a bar and as a number."""

    METRICS = ("heads", "update")

    PANEL_TITLE = "gradient norm, entropy"

    def cache_key(self) -> Hashable:
        """Return the number of the last policy update's event, and whether the run has started."""
        return self.state.started is None, (self.state.update.seq if self.state.update else 0)

    def preferred_height(self) -> int:
        """Return one line per head."""
        return max(len(self.state.heads), 1)

    def draw_lines(self, size: Size) -> list[Line]:
        """Draw one line per head; in a panel of one line, draw all heads on it. Before the first update a message."""
        self.panel_subtitle = None
        if self.state.started is None or not self.state.heads:
            return self.message(no_update_message(self.state.started)) if self.state.started else []
        self.panel_subtitle = self._update_summary(size.width)
        if size.height == 1 and len(self.state.heads) > 1:
            return [self._draw_compact(size.width)]
        return [self._draw_head(name, head, size.width) for name, head in self.state.heads.items()]

    def _draw_head(self, name: str, head: HeadState, width: int) -> Line:
        room = width - _HEAD_COLS
        has_bar = room >= _BAR_MIN_COLS
        sparkline_width = room * 3 // 5 if has_bar else max(room + 1, 0)
        line = self.line(" ").append_fitted(head_label(name), 13, "dim")
        line.append_cell(number_cell(head.grad_norm[-1], 2, 3)).append(" ")
        recent = head.grad_norm[-sparkline_width:]
        limits = finite_range(recent)
        line.append(sparkline(recent, 0.0, limits[1] if limits else 1.0).ljust(sparkline_width), "spark").append(" ")
        entropy = head.entropy[-1]
        if has_bar:
            line.append_bar(entropy, room - sparkline_width, "spark").append(" ")
        return line.append_cell(number_cell(entropy, 2, 2))

    def _draw_compact(self, width: int) -> Line:
        """Draw all gradient norms on one line, with the longest names and gaps that fit."""
        line = self.line()
        for short, gap, digits in ((False, "  ", 2), (False, " ", 2), (True, "  ", 2), (True, " ", 2), (True, " ", 1)):
            line = self.line(" gradient norm", "head")
            for name, head in self.state.heads.items():
                line.append(gap).append(head_label(name, short=short), "dim").append(" ")
                line.append_cell(compact_cell(head.grad_norm[-1], digits, tight=True))
            if line.width <= width:
                break
        return line

    def _update_summary(self, width: int) -> str | None:
        """Return explained variance, KL divergence and clipped fraction of the last update, as many as fit.

        None before the first update.
        """
        update = self.state.update
        if update is None:
            return None
        values = (
            ("explained variance", update.explained_variance),
            ("KL", update.kl),
            ("clipped fraction", update.clip_fraction),
        )
        texts = [f"{label} {compact_cell(value, 2).text}" for label, value in values]
        while len(texts) > 1 and len("  ".join(texts)) > width - 6:
            texts.pop()
        return "  ".join(texts)


class HeadChart(ChartPanel):
    """Base class of a chart of the gradient norms of the heads by round."""

    METRICS = ("heads",)

    def cache_key(self) -> Hashable:
        """Return the number of the last policy update's event, and whether the run has started."""
        return self.state.started is None, (self.state.update.seq if self.state.update else 0), self.chart_key

    def empty_message(self) -> str:
        """Return why there is no chart."""
        assert self.state.started is not None
        return no_update_message(self.state.started)

    def summary(self, chart: Chart) -> str:  # noqa: ARG002 (the latest values are in the labels)
        """Return nothing: the latest values are in the labels."""
        return ""

    def chart(self) -> Chart | None:
        """Return the chart; None before the first update."""
        if not self.state.heads or self.state.started is None:
            return None
        rounds = next(iter(self.state.heads.values())).course.rounds
        norms = {name: head.course.values for name, head in self.state.heads.items()}
        x_axis = XAxis("round", 1, round_axis_length(rounds[-1], self.state.started.rounds))
        return self.chart_of(norms, rounds, x_axis)

    def chart_of(self, norms: dict[str, list[float | None]], rounds: list[int], x_axis: XAxis) -> Chart:
        """Return the chart.

        Args:
            norms: Gradient norms of each head, all of the same length; None for an update without any.
            rounds: Round of each norm.
            x_axis: Axis of the rounds.
        """
        raise NotImplementedError

    def label_of(self, head: str) -> str:
        """Return the name of a head, short if the panel is narrow."""
        return head_label(head, short=self.size.width < _LONG_LABEL_MIN_COLS)


class HeadNormChart(HeadChart):
    """Chart with one curve per head on a logarithmic axis."""

    PANEL_TITLE = "gradient norm by head ─ by round"

    def chart_of(self, norms: dict[str, list[float | None]], rounds: list[int], x_axis: XAxis) -> Chart:
        """Return the chart."""
        return Chart(
            quantity=Quantity("gradient norm", low=0.0),
            x_axis=x_axis,
            curves=[
                Curve(self.label_of(name), rounds, values, f"series{index % 8}")
                for index, (name, values) in enumerate(norms.items())
            ],
            look=Look(is_logarithmic=True),
            has_labels=True,
        )


class HeadFractionChart(HeadChart):
    """Stacked areas of the fractions of the heads in the sum of their gradient norms."""

    PANEL_TITLE = "gradient norm by head ─ % of total"

    def chart_of(self, norms: dict[str, list[float | None]], rounds: list[int], x_axis: XAxis) -> Chart:
        """Return the chart."""
        nothing = [None] * len(norms)
        points = [fractions(values) or nothing for values in zip(*norms.values(), strict=True)]
        colours = [index % 8 for index in range(len(norms))]
        return StackedChart(
            quantity=percent("fraction"),
            x_axis=x_axis,
            curves=[
                Curve(
                    self.label_of(name),
                    rounds,
                    [point[index] for point in points],
                    f"series{colour}",
                )
                for index, (name, colour) in enumerate(zip(norms, colours, strict=True))
            ],
            areas=[f"area{colour}" for colour in colours],
            letters=[head_label(name, short=True)[0] for name in norms],
            has_labels=True,
        )


def fractions(norms: Sequence[float | None]) -> list[float] | None:
    """Return each value divided by the sum of all; None counts as 0.

    Returns:
        The fractions; NaN if the sum is not finite, None if it is 0.
    """
    total = sum(value or 0.0 for value in norms)
    if not math.isfinite(total):
        return [math.nan] * len(norms)
    return [(value or 0.0) / total for value in norms] if total > 0 else None
