"""Charts of the workspace: one quantity of several runs on common axes, and scores against parameters."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast

from rich.cells import cell_len
from textual.binding import BindingType
from textual.geometry import Size
from textual.widget import Widget

from esper.common.formatting import strip_control
from esper.common.plots.chart import Chart, Curve, Look, XAxis
from esper.common.plots.labels import Label, labels_width
from esper.common.plots.scatter import ScatterPoint, pareto_front
from esper.common.score_scale import ScoreScale, common_scale
from esper.recordings.history.curves import POPULATION, split_name
from esper.recordings.history.measures import LAST_PARAMETERS, LAST_SCORE
from esper.recordings.history.quantities import quantity_of
from esper.recordings.history.run_groups import GroupCurve
from esper.recordings.history.run_info import RunInfo
from esper.sanctum.keys import bindings_of
from esper.sanctum.symbols import ellipsise
from esper.sanctum.view import ViewState
from esper.sanctum.widgets.chart_panel import ChartPanel
from esper.sanctum.widgets.curve_chart import CurveGroup, group_of, sort_groups
from esper.sanctum.widgets.panel import Line
from esper.sanctum.widgets.scatter_chart import ScatterChart
from esper.sanctum.widgets.workspace_panel import WorkspacePanel
from esper.sanctum.workspace import ShownGroup, Workspace

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_BOUND_GROUPS = 4
"""Maximum number of groups whose intervals are drawn: that of the highlighted run as a band, the others dotted."""
_MAX_LABEL_FRACTION, _MAX_LABEL_COLS = 0.35, 28
"""Maximum fraction of the width for labels beside the curves, and maximum width of one label."""
_MAX_LEGEND_ROWS, _MAX_LEGEND_COLS = 4, 60
"""Maximum number of lines of the legend, and maximum width of a name in it."""


def shown_curves(names: Iterable[str]) -> list[str]:
    """Return the curves that have a chart, in the order of the charts.

    Of the curves over all envs only the median has one, because the curves of other runs lie beside it.
    """
    kept: dict[CurveGroup, list[str]] = {}
    for name in names:
        owner = split_name(name)[1]
        if owner not in POPULATION or owner == "median":
            kept.setdefault(group_of(name), []).append(name)
    finals = [group for group in kept if group.quantity.startswith("final ")]
    scores = [group.quantity.removeprefix("final ") for group in finals]
    first = [*finals, *(group for group in kept if group.quantity in {*scores, "return"} and not group.owner)]
    others = sort_groups([group for group in kept if group not in first], "")
    return [name for group in (*first, *others) for name in kept[group]]


@dataclass(frozen=True)
class OverlayPlot(Chart):
    """Curves of groups of runs, which have points at different positions."""

    def readout(self, x: float | None = None) -> str:
        """Return the values at a position, between two points on the line that connects them."""
        named = [curve for curve in self.curves if curve.name]
        values = [_value_at(curve, math.inf if x is None else x) for curve in named]
        texts = [
            f"{curve.name} {self.quantity.format(value)}"
            for curve, value in zip(named, values, strict=True)
            if value is not None
        ]
        if x is None:
            return "  ".join(texts)
        return f"{self.x_axis.name} {self.x_axis.format(x)}: {'  '.join(texts)}"


def _value_at(curve: Curve, x: float) -> float | None:
    """Return the value at a position inside the curve; at infinity the last value; None outside."""
    import numpy as np

    if not len(curve.xs) or not curve.xs[0] <= x:
        return None
    if math.isinf(x):
        return float(cast("float", curve.values[-1]))
    return None if x > curve.xs[-1] else float(np.interp(x, curve.xs, cast("Sequence[float]", curve.values)))


class WorkspaceChart(ChartPanel):
    """Base class of the charts of the workspace."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings_of("screen.move_focus(-1)", "curves.up"),
        *bindings_of("screen.move_focus(1)", "curves.down"),
        *bindings_of("screen.page(-1)", "curves.page-up"),
        *bindings_of("screen.page(1)", "curves.page"),
    ]

    def __init__(self, view: ViewState, workspace: Workspace) -> None:
        super().__init__(view)
        self.workspace = workspace

    @property
    def is_ready(self) -> bool:
        """True: the chart does not depend on the run of the view."""
        return True

    def cache_key(self) -> Hashable:
        """Return the versions of the groups and of their curves, the main group, and the choices of the user."""
        main = self.workspace.main_group
        return self.workspace.groups_version, self.workspace.curves_version, main and main.mark, self.chart_key

    @property
    def title_text(self) -> str:
        """Text in which the search for a chart looks."""
        raise NotImplementedError

    def message(self, text: str) -> list[Line]:
        """Return a line in place of the content that is missing."""
        return [self.line(f" {text}", "dim")]


class OverlayChart(WorkspaceChart):
    """One quantity of the shown groups of runs."""

    METRICS = ("overlay",)
    HAS_RUN_AXES = True

    def __init__(self, view: ViewState, workspace: Workspace, curve: str) -> None:
        super().__init__(view, workspace)
        self.curve = curve

    @property
    def title_text(self) -> str:
        """Name of the quantity; of several curves of a quantity, with its owner."""
        quantity, owner = split_name(self.curve)
        group = group_of(self.curve)
        if owner == "median":
            return f"median {group.title}"
        if not group.owner or owner in {"policy", "mean", "sum", "total"}:
            return group.title
        return f"{owner}" if quantity == "planted" else f"{quantity} of {owner.removeprefix('head ')}"

    def enlarged(self) -> ChartPanel:
        """Return another panel with the same curves."""
        return OverlayChart(self.view, self.workspace, self.curve)

    def empty_message(self) -> str:
        """Return why there is no chart."""
        if self.workspace.library.fraction_read < 1:
            return "reading the recordings"
        return "only the baseline has this curve" if self.workspace.shows_difference else "no value yet"

    def chart(self) -> Chart | None:
        """Return the chart; None without a point."""
        axis = self.charts.run_axis
        found = self.workspace.curves(self.curve, axis)
        if not found:
            return None
        main = self.workspace.main_group
        found.sort(key=lambda item: item[0] is not main)  # its curve is drawn above the others
        with_names = self._has_room_for_names([group for group, _ in found])
        curves = [self._curve(group, curve, with_names=with_names) for group, curve in found]
        limits = _interval_limits([curve for _, curve in found])
        bounds = [item for item in found if item[0] is not main] if len(found) <= MAX_BOUND_GROUPS else []
        for group, curve in bounds:
            if _has_interval(curve):
                curves += [_bound(curve.xs, ys, limits, group.role, dotted=True) for ys in (curve.low, curve.high)]
        main_curve = next((curve for group, curve in found if group is main and _has_interval(curve)), None)
        band = None
        if main_curve is not None:
            ends = (main_curve.low, main_curve.high)
            lower, upper = (_bound(main_curve.xs, ys, limits, "band") for ys in ends)
            band = lower, upper
        shows_difference = self.workspace.shows_difference and self.workspace.baseline is not None
        runs = self.workspace.runs_with(self.curve)
        scores, scale = (
            {run.score_name for run in runs if run.score_name},
            common_scale(run.score_scale for run in runs),
        )
        quantity = quantity_of(split_name(self.curve)[0], self.title_text, scores, scale)
        if shows_difference:
            unit = "pp" if quantity.unit == "%" else quantity.unit
            quantity = quantity._replace(name=f"Δ {quantity.name}", unit=unit, low=None, high=None)
        title = f"{axis}, mean of a round" if self.workspace.is_averaged(self.curve, axis) else axis
        first, last = self.workspace.x_limits(axis)
        name = "run step" if axis == "step" else axis
        steps = 1 if axis == "round" else 0  # points are means of rounds
        return OverlayPlot(
            quantity=quantity,
            x_axis=XAxis(name, first, max(first, last), title, axis == "time", steps_per_round=steps),
            curves=curves,
            band=band,
            include=0.0 if shows_difference else None,
            has_labels=len(found) > 1,
            look=Look(is_logarithmic=split_name(self.curve)[0] == "loss scale" and not shows_difference),
        )

    def _curve(self, group: ShownGroup, curve: GroupCurve, *, with_names: bool) -> Curve:
        name = f"{group.letter} {ellipsise(group.label, _MAX_LABEL_COLS)}".strip()
        short = name if with_names else group.letter or name
        xs = cast("Sequence[float]", curve.xs)  # an array has all that is used of a sequence
        return Curve(group.letter or self._kind(group), xs, curve.mean, group.role, label=short)

    def _kind(self, group: ShownGroup) -> str:
        """Return the name of the values of the only group."""
        if len(group.group.runs) > 1:
            return "mean"
        return "median" if split_name(self.curve)[1] == "median" else "value"

    def _has_room_for_names(self, groups: Sequence[ShownGroup]) -> bool:
        labels = [Label(0, f"A {ellipsise(group.label, _MAX_LABEL_COLS)}", "dim") for group in groups]
        width, height = self.size
        return labels_width(labels, height - 1) <= width * _MAX_LABEL_FRACTION


def _has_interval(curve: GroupCurve) -> bool:
    import numpy as np

    return bool(np.isfinite(curve.low).any())


def _interval_limits(curves: Sequence[GroupCurve]) -> tuple[float, float]:
    """Return the range of values in which intervals are drawn: that of the means, and as much below and above it.

    The interval of two runs is thirteen times as wide as their standard error. The y axis would show nothing else.
    """
    import numpy as np

    means = np.concatenate([curve.mean for curve in curves])
    low, high = float(means.min()), float(means.max())
    return (2 * low - high, 2 * high - low) if high > low else (-math.inf, math.inf)


def _bound(
    xs: NDArray[np.float64], ys: NDArray[np.float64], limits: tuple[float, float], role: str, *, dotted: bool = False
) -> Curve:
    """Return an end of an interval. Outside the limits, a dotted one is not drawn, and a band ends at them."""
    import numpy as np

    within = np.where((ys >= limits[0]) & (ys <= limits[1]), ys, np.nan) if dotted else np.clip(ys, *limits)
    return Curve("", cast("Sequence[float]", xs), cast("Sequence[float]", within), role, dotted)


class GroupLegend(WorkspacePanel):
    """Letters and names of the groups of selected runs, in a few lines."""

    def __init__(self, view: ViewState, workspace: Workspace) -> None:
        super().__init__(view, workspace)
        self._height = 0

    def cache_key(self) -> Hashable:
        """Return the version of the workspace."""
        return self.workspace.version

    def update(self) -> None:
        """Draw the legend, with as many lines as it needs."""
        parent = self.parent
        height = len(self._entries(parent.size.width)) if isinstance(parent, Widget) else 0
        if height != self._height:  # not `height: auto`: a panel without lines has no size, and is not updated
            self._height = height
            self.styles.height = height
        super().update()

    def on_resize(self) -> None:
        """Draw in the new size."""
        self.update()

    def draw_lines(self, size: Size) -> list[Line]:
        """Draw the groups, several in a line."""
        return self._entries(size.width)

    def _entries(self, width: int) -> list[Line]:
        workspace = self.workspace
        groups = workspace.groups if workspace.num_selected else []
        lines: list[Line] = []
        for number, group in enumerate(groups):
            name = ellipsise(group.label, _MAX_LEGEND_COLS)
            columns = len(group.letter) + 1 + cell_len(name)
            if not lines or lines[-1].width + columns + 2 > width:
                if len(lines) == _MAX_LEGEND_ROWS:
                    rest = f"  {len(groups) - number} more"
                    lines[-1].append(rest if lines[-1].width + len(rest) <= width else " …", "dim")
                    break
                lines.append(self.line(" "))
            line = lines[-1].append("  " if lines[-1].width > 1 else "")
            line.append(f"{group.letter} ", group.role).append(name, "normal")
        return lines


class RunScatterChart(WorkspaceChart, ScatterChart):
    """Final score and parameters of the shown runs, beside the other listed runs of the task, and their front."""

    METRICS = ("run front",)
    ORIGIN = None

    @property
    def title_text(self) -> str:
        """Text in which the search for a chart looks."""
        return "final score by parameters"

    def cache_key(self) -> Hashable:
        """Return the version of the workspace, because the highlighted run has a mark."""
        return self.workspace.version, self.chart_key

    def enlarged(self) -> ChartPanel:
        """Return another panel with the same points."""
        return RunScatterChart(self.view, self.workspace)

    @property
    def score_name(self) -> str:
        """Final score, by the name that the shown runs have in common."""
        names = {run.score_name for run in self.workspace.shown if run.score_name}
        return f"final {strip_control(next(iter(names))) if len(names) == 1 else 'score'}"

    @property
    def score_scale(self) -> ScoreScale:
        """Scale that the shown runs have in common."""
        return common_scale(run.score_scale for run in self.workspace.shown)

    def empty_message(self) -> str:
        """Return why there is no chart."""
        return "no finished round yet"

    def points(self) -> list[ScatterPoint]:
        """Return other runs, the groups with their letters, the first group last, then the highlighted run."""
        shown, highlighted = self.workspace.shown, self.workspace.highlighted
        tasks = {run.task for run in shown}
        others = [run for run in self.workspace.listed if run.task in tasks and run not in shown]
        places = filter(None, map(_place, (*shown, *others)))
        on_front = set(pareto_front(places, lambda place: (place[0], self.score_scale.gain(place[1]))))
        points = [
            ScatterPoint(*place, is_on_front=place in on_front, label=letter, role=role)
            for run, letter, role in (*((run, "", "dim") for run in others), *self._in_groups())
            if (place := _place(run)) is not None
        ]
        if highlighted is not None and (place := _place(highlighted)) is not None:
            points.append(ScatterPoint(*place, "selected"))
        return points

    def _in_groups(self) -> Iterator[tuple[RunInfo, str, str]]:
        """Yield the runs of the groups with letter and role of their group."""
        for group in reversed(self.workspace.groups):
            for run in group.group.runs:
                yield run, group.letter, group.role


def _place(run: RunInfo) -> tuple[float, float] | None:
    """Return parameters (×host) and final score of a run; None before the first finished round."""
    parameters, score = LAST_PARAMETERS.of(run), LAST_SCORE.of(run)
    return None if parameters is None or score is None else (parameters, score)
