"""Chart of a quantity of the policy updates, by round."""

from __future__ import annotations

from collections.abc import Hashable

from esper.common.plots.axis import round_axis_length
from esper.common.plots.chart import Chart, Curve, Look, XAxis
from esper.recordings.events import RunStarted
from esper.recordings.history.quantities import quantity_of
from esper.recordings.state.curves import POLICY_OWNER, head_curve
from esper.recordings.state.series import DownsampledSeries
from esper.recordings.state.state import RunState
from esper.sanctum.symbols import head_label
from esper.sanctum.view import ViewState
from esper.sanctum.widgets.chart_panel import ChartPanel
from esper.sanctum.widgets.curve_chart import NUM_SERIES

_LONG_LABEL_MIN_COLS = 50
"""Minimum width of a chart for head names that are spelled out."""


def no_update_message(started: RunStarted) -> str:
    """Return the text that a panel shows before the first policy update."""
    if started.policy == "ppo":
        return "no policy update yet"
    rules = "random legal actions" if started.policy == "random" else "fixed rules"
    return f"{started.policy}: {rules}, nothing to train"


def head_series(state: RunState, quantity: str) -> dict[str, DownsampledSeries]:
    """Return the curve of a quantity of each head of the last update; none before the first update."""
    heads = state.update.heads if state.update is not None else ()
    return {head: state.curves[head_curve(quantity, head)] for head in heads}


class PolicyChart(ChartPanel):
    """A quantity over the whole run: of the policy with that of a ghost run, or of each head.

    The curves are those that the state keeps, so that they are shown at once, however long the recording is.

    Args:
        by_head: Show a curve per head, on a logarithmic axis.
    """

    METRICS = ("update", "heads")

    def __init__(self, view: ViewState, quantity: str, *, by_head: bool = False, id: str | None = None) -> None:
        super().__init__(view, id=id)
        self._quantity = quantity
        self._by_head = by_head

    def cache_key(self) -> Hashable:
        """Return a key that changes with every policy update."""
        updates = [state.update.seq if state and state.update else 0 for state in (self.state, self.view.ghost)]
        return self.state.started is None, *updates, self.chart_key

    def enlarged(self) -> ChartPanel:
        """Return another panel with the same curves."""
        return type(self)(self.view, self._quantity, by_head=self._by_head)

    @property
    def _title(self) -> str:
        return f"{self._quantity} by head" if self._by_head else self._quantity

    def name_in_title(self) -> str:
        """Return the names of the quantity and of the x axis."""
        if self._by_head and not self.PANEL_TITLE:
            return f"{self._title} ─ by round"  # narrow panels have no room for "logarithmic"
        return super().name_in_title() or self._title

    def empty_message(self) -> str:
        """Return why there is no chart."""
        assert self.state.started is not None
        return no_update_message(self.state.started)

    def summary(self, chart: Chart) -> str:
        """Return the latest value; nothing if each head has it in its label."""
        return "" if self._by_head else super().summary(chart)

    def chart(self) -> Chart | None:
        """Return the chart; None before the first update."""
        if self.state.update is None:
            return None
        quantity = quantity_of(self._quantity, self._title, (), self.state.score_scale)
        curves = self._head_curves() if self._by_head else self._policy_curves()
        return Chart(
            quantity=quantity,
            x_axis=self.round_axis(curves),
            curves=curves,
            include=None if self._by_head else quantity.low,
            look=Look(is_logarithmic=self._by_head),
            has_labels=self._by_head,
        )

    def round_axis(self, curves: list[Curve]) -> XAxis:
        """Return the x axis of curves by round."""
        started = self.state.started
        last = max((int(curve.xs[-1]) for curve in curves), default=1)
        return XAxis("round", 1, round_axis_length(last, started.rounds if started else 0))

    def _policy_curves(self) -> list[Curve]:
        name = f"{self._quantity}/{POLICY_OWNER}"
        states = {"latest": self.state, "ghost": self.view.ghost}
        known = {label: state.curves[name] for label, state in states.items() if state and name in state.curves}
        return [
            Curve(label, series.numbers, series.values, "curve" if label == "latest" else "dim")
            for label, series in known.items()
        ]

    def _head_curves(self) -> list[Curve]:
        return [
            Curve(self.label_of(head), series.numbers, series.values, f"series{index % NUM_SERIES}")
            for index, (head, series) in enumerate(head_series(self.state, self._quantity).items())
        ]

    def label_of(self, head: str) -> str:
        """Return the name of a head, short if the panel is narrow."""
        return head_label(head, short=self.size.width < _LONG_LABEL_MIN_COLS)
