"""Panels about the policy heads: gradient norm and entropy now, and gradient norms over the rounds."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

from textual.geometry import Size

from esper.common.plots.axis import finite_range
from esper.common.plots.chart import Chart, Curve, percent
from esper.common.plots.sparkline import sparkline
from esper.common.plots.stacked_chart import StackedChart
from esper.recordings.events import HeadReading
from esper.sanctum.symbols import compact_cell, head_label, number_cell
from esper.sanctum.widgets.curve_chart import NUM_SERIES
from esper.sanctum.widgets.panel import Line, Panel
from esper.sanctum.widgets.policy_chart import PolicyChart, head_series, no_update_message

GRADIENT_NORM = "gradient norm"
_HEAD_COLS = 28
"""Columns of name, gradient norm, entropy and gaps of a head."""
_BAR_MIN_COLS = 6
"""Minimum number of columns for a sparkline and a bar beside them; with fewer, only a sparkline."""


class HeadList(Panel):
    """One line per head: gradient norm, a sparkline of the end of its curve, entropy as a bar and as a number."""

    METRICS = ("heads", "update")

    PANEL_TITLE = "gradient norm, entropy"

    def cache_key(self) -> Hashable:
        """Return the number of the last policy update's event, and whether the run has started."""
        return self.state.started is None, (self.state.update.seq if self.state.update else 0)

    @property
    def _heads(self) -> dict[str, HeadReading]:
        """Readings of the last update, keyed by head; none before the first update."""
        return self.state.update.heads if self.state.update is not None else {}

    def preferred_height(self) -> int:
        """Return one line per head."""
        return max(len(self._heads), 1)

    def draw_lines(self, size: Size) -> list[Line]:
        """Draw one line per head; in a panel of one line, draw all heads on it. Before the first update a message."""
        self.panel_subtitle = None
        if self.state.started is None or not self._heads:
            return self.message(no_update_message(self.state.started)) if self.state.started else []
        self.panel_subtitle = self._update_summary(size.width)
        if size.height == 1 and len(self._heads) > 1:
            return [self._draw_compact(size.width)]
        norms = head_series(self.state, GRADIENT_NORM)
        return [self._draw_head(name, head, norms[name].values, size.width) for name, head in self._heads.items()]

    def _draw_head(self, name: str, head: HeadReading, norms: list[float | None], width: int) -> Line:
        room = width - _HEAD_COLS
        has_bar = room >= _BAR_MIN_COLS
        sparkline_width = room * 3 // 5 if has_bar else max(room + 1, 0)
        line = self.line(" ").append_fitted(head_label(name), 13, "dim")
        line.append_cell(number_cell(head.grad_norm, 2, 3)).append(" ")
        recent = norms[-sparkline_width:]
        limits = finite_range(recent)
        line.append(sparkline(recent, 0.0, limits[1] if limits else 1.0).ljust(sparkline_width), "spark").append(" ")
        if has_bar:
            line.append_bar(head.entropy, room - sparkline_width, "spark").append(" ")
        return line.append_cell(number_cell(head.entropy, 2, 2))

    def _draw_compact(self, width: int) -> Line:
        """Draw all gradient norms on one line, with the longest names and gaps that fit."""
        line = self.line()
        for short, gap, digits in ((False, "  ", 2), (False, " ", 2), (True, "  ", 2), (True, " ", 2), (True, " ", 1)):
            line = self.line(" gradient norm", "head")
            for name, head in self._heads.items():
                line.append(gap).append(head_label(name, short=short), "dim").append(" ")
                line.append_cell(compact_cell(head.grad_norm, digits, tight=True))
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


class HeadFractionChart(PolicyChart):
    """Stacked areas of the fractions of the heads in the sum of their gradient norms."""

    METRICS = ("heads",)
    PANEL_TITLE = "gradient norm by head ─ % of total"

    def chart(self) -> Chart | None:
        """Return the chart; None before the first update."""
        series = head_series(self.state, GRADIENT_NORM)
        if not series:
            return None
        rounds = next(iter(series.values())).numbers
        norms = {head: course.values for head, course in series.items()}
        nothing = [None] * len(norms)
        points = [fractions(values) or nothing for values in zip(*norms.values(), strict=True)]
        colours = [index % NUM_SERIES for index in range(len(norms))]
        curves = [
            Curve(self.label_of(name), rounds, [point[index] for point in points], f"series{colour}")
            for index, (name, colour) in enumerate(zip(norms, colours, strict=True))
        ]
        return StackedChart(
            quantity=percent("fraction"),
            x_axis=self.round_axis(curves),
            curves=curves,
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
