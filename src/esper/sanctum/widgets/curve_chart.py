"""Chart of a recorded quantity over the whole run."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple, cast

from textual.binding import BindingType

from esper.common.formatting import strip_control
from esper.common.plots.axis import next_nice
from esper.common.plots.chart import Chart, Curve, Look, XAxis
from esper.common.plots.labels import Label, labels_width
from esper.recordings.history.curves import POPULATION, split_name
from esper.recordings.history.quantities import quantity_of
from esper.sanctum.explanations import METRIC_HELP
from esper.sanctum.keys import bindings_of
from esper.sanctum.view import ViewState
from esper.sanctum.widgets.chart_panel import ChartPanel
from esper.sanctum.widgets.env_columns import PIN_GLYPH

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_MAX_LABEL_FRACTION = 0.3
"""Maximum fraction of the width for labels beside the curves."""
_UNITS_PER_AXIS = 20
"""Approximate number of units of an x axis. It ends at a whole unit, so that it is rarely drawn again."""
NUM_SERIES = 8
"""Number of roles of curves that share a chart."""
_METRICS = {
    "entropy": "heads",
    "mean return": "return",
    "predicted return": "return",
    "KL": "update",
    "clip fraction": "update",
    "explained variance": "update",
    "explained variance within a step": "update",
    "CUDA graphs": "graphs",
    "memory allocated": "memory",
    "memory reserved": "memory",
    "memory used": "memory",
    "planted": "planted blueprints",
}
"""Metrics that explain quantities, if their names differ, and they are no scores."""
_QUANTITIES_BY_ROUND = ("return", "fossilized seeds", "culled seeds", "planted")
"""Quantities of finished episodes, besides the final score."""


class CurveGroup(NamedTuple):
    """Curves that one chart shows."""

    quantity: str
    owner: str
    """Empty for the envs; else `policy`, `devices`, `run` or, of plantings, the slot."""

    @property
    def title(self) -> str:
        """Name of the chart."""
        if self.quantity == "planted":
            return f"planted in {self.owner}"
        return f"{self.quantity} of the policy" if self == CurveGroup("gradient norm", "policy") else self.quantity


def group_of(curve: str) -> CurveGroup:
    """Return the group to which a curve belongs."""
    quantity, owner = split_name(curve)
    if owner in POPULATION:
        return CurveGroup(quantity, "")
    if quantity == "planted":
        return CurveGroup(quantity, owner.partition(" in ")[2])
    if owner == "policy" or owner.startswith("head "):
        return CurveGroup(quantity, "policy")
    return CurveGroup(quantity, "run" if owner in {"mean", "sum"} or quantity == "step time" else "devices")


class CurveChart(ChartPanel):
    """Curves of a quantity: of the policy, the devices or the run, or over all envs with the selected env."""

    BINDINGS: ClassVar[list[BindingType]] = [  # also on the whole screen, besides the keys of all charts
        *bindings_of("screen.move(-1)", "curves.previous-env"),
        *bindings_of("screen.move(1)", "curves.next-env"),
    ]
    METRICS = ("curves",)
    HAS_RUN_AXES = True

    def __init__(self, view: ViewState, group: CurveGroup) -> None:
        super().__init__(view)
        self.group = group
        self.names: list[str] = []
        """Names of the curves, without that of the selected env."""
        self.is_pinned = False

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metric of the quantity, if it is explained, and curves."""
        name, score = self.group.quantity, self.state.score_name
        is_score = name in {score, f"train {score}", f"final {score}"}
        name = "score" if is_score else "reward" if name.startswith("reward part ") else _METRICS.get(name, name)
        return (name, *self.METRICS) if name in METRIC_HELP else self.METRICS

    def cache_key(self) -> Hashable:
        """Return a key that changes with the points, the ends of the x axis and the selected env."""
        env = self._env_curve if not self.group.owner else ""
        points = self.view.curves.key(*self.names, env)
        return self.state.started is None, points, self._x_limits(), env, self.is_pinned, self.chart_key

    def name_in_title(self) -> str:
        """Return the title, with a mark if the chart is pinned."""
        name = self.group.quantity
        is_by_round = name in _QUANTITIES_BY_ROUND or name == f"final {self.state.score_name}"
        title = super().name_in_title() + (self.growth_note if is_by_round else "")
        return f"{PIN_GLYPH} {title}" if self.is_pinned else title

    def enlarged(self) -> ChartPanel:
        """Return another panel with the same curves."""
        chart = CurveChart(self.view, self.group)
        chart.names = self.names
        return chart

    @property
    def _env_curve(self) -> str:
        """Name of the curve of the selected env."""
        return f"{self.group.quantity}/env {self.view.selected_env:02d}"

    def _x_limits(self) -> tuple[float, float]:
        """Return the ends of the x axis, which are those of all charts."""
        import numpy as np

        first, last = self.view.curves.step_range
        unit = max(int(next_nice(last / _UNITS_PER_AXIS)), 1)
        end = min(-(-last // unit) * unit, max(self.state.steps_total, last))
        start, end = self._x_values(np.array([first, end], np.uint32)).tolist()
        return start, end

    def chart(self) -> Chart | None:
        """Return the chart; None without a point."""
        if not self.names:
            return None
        curves = self._named_curves() if self.group.owner else self._population_curves()
        return Chart(
            quantity=quantity_of(
                self.group.quantity, self.group.title, {self.state.score_name}, self.state.score_scale
            ),
            x_axis=self._x_axis(),
            curves=curves,
            band=None if self.group.owner else (self._quartile("lower"), self._quartile("upper")),
            has_labels=bool(self.group.owner) and self._has_room_for_labels(curves),
            look=Look(is_logarithmic=self.group.quantity == "loss scale"),
        )

    def _has_room_for_labels(self, curves: Sequence[Curve]) -> bool:
        labels = [Label(0, curve.name, curve.role) for curve in curves]
        width, height = self.size
        return len(curves) > 1 and labels_width(labels, height - 1) <= width * _MAX_LABEL_FRACTION

    def _quartile(self, which: str) -> Curve:
        return self._curve(f"{self.group.quantity}/{which} quartile", "", "band")

    def _population_curves(self) -> list[Curve]:
        """Return median, the selected env, minimum and maximum."""
        quantity = self.group.quantity
        env = self._curve(self._env_curve, split_name(self._env_curve)[1], "series1")
        return [
            self._curve(f"{quantity}/median", "median", "curve"),
            *([env] if len(env.xs) else []),
            self._curve(f"{quantity}/min", "min", "dim", dotted=True),
            self._curve(f"{quantity}/max", "max", "dim", dotted=True),
        ]

    def _named_curves(self) -> list[Curve]:
        """Return a curve per owner."""
        if len(self.names) == 1:
            return [self._curve(self.names[0], _short_name(self.names[0]), "curve")]
        return [
            self._curve(name, _short_name(name), f"series{index % NUM_SERIES}") for index, name in enumerate(self.names)
        ]

    def _curve(self, name: str, label: str, role: str, *, dotted: bool = False) -> Curve:
        steps, values = self.view.curves.curve(name)
        xs = cast("Sequence[float]", self._x_values(steps))  # an array has all that is used of a sequence
        return Curve(strip_control(label), xs, values, role, dotted)

    def _x_values(self, steps: NDArray[np.uint32]) -> NDArray[np.float64]:
        return self.view.curves.x_values(steps, self.charts.run_axis)

    def _x_axis(self) -> XAxis:
        axis, started = self.charts.run_axis, self.state.started
        name = "run step" if axis == "step" else axis  # charts of one round have an axis "step", too
        length = started.steps if started is not None and axis == "round" else 0
        return XAxis(name, *self._x_limits(), axis, axis == "time", steps_per_round=length)


def _short_name(curve: str) -> str:
    owner = split_name(curve)[1].removeprefix("head ")
    return owner.partition(" in ")[0]


def sort_groups(groups: Iterable[CurveGroup], score_name: str) -> list[CurveGroup]:
    """Return groups in the order in which they are shown: scores, other quantities of envs, policy, run, devices."""
    owners, scores = ("", "policy", "run"), (score_name, f"final {score_name}", f"train {score_name}")
    of_slots = len(owners)

    def place(group: CurveGroup) -> tuple[int, int]:
        owner = owners.index(group.owner) if group.owner in owners else of_slots + (group.owner == "devices")
        return owner, scores.index(group.quantity) if group.quantity in scores else len(scores)

    return sorted(groups, key=place)
