"""Chart of a growth: score against parameters of its candidates, and the front."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator

from esper.candidates_report import (
    FRONT_MARK,
    HOST_MARK,
    OTHER_MARK,
    TRIAL_MARK,
    Standing,
    fit_label,
    format_ratio,
    format_score,
    place_of,
)
from esper.formatting import strip_control
from esper.sanctum.widgets.chart import TICKS_HEIGHT, Chart, ChartMark, Curve, XAxis, percent
from esper.sanctum.widgets.chart_panel import ChartPanel
from esper.text_plot import multiples_axis

_LABEL_COLS = 28
"""Maximum width of the name of a candidate in the border."""
_ROLES = {TRIAL_MARK: "dim", OTHER_MARK: "series1", FRONT_MARK: "curve", HOST_MARK: "bright"}
"""Role of each mark, in the order in which they are drawn: later ones cover earlier ones."""


class FrontChart(ChartPanel):
    """Candidates by parameters and score: letters as in the table, trials as dots, and the front as a dotted line."""

    METRICS = ("candidates",)

    def cache_key(self) -> Hashable:
        """Return a key that changes with the search and with the selected candidate."""
        search = self.state.search
        return search and search.revision, self.view.selected_candidate, self.chart_key

    def name_in_title(self) -> str:
        """Return the title."""
        return f"front ─ {strip_control(self.state.score_name)} % by parameters, ×host"

    def empty_message(self) -> str:
        """Return why there is no chart."""
        return "no trial has ended yet"

    def summary(self, chart: Chart) -> str:  # noqa: ARG002 (the summary is about the selected candidate)
        """Return the selected candidate, by default the best one."""
        selected = self.view.selected_standing
        if selected is None:
            return ""
        one = selected.candidate
        return f"{fit_label(one, _LABEL_COLS)}  {format_score(one)} at {format_ratio(one)}"

    def chart(self) -> Chart | None:
        """Return the chart; None before the first result."""
        found = ((one, place_of(one.candidate)) for one in self.view.standings)
        placed = [(one, (math.log10(at[0]), at[1])) for one, at in found if at is not None]
        if not placed:
            return None
        axis = multiples_axis([1.0, *(10**x for _, (x, _) in placed)], TICKS_HEIGHT)
        order = list(_ROLES)
        placed.sort(key=lambda pair: (pair[0].name == self.view.selected_candidate, order.index(pair[0].mark)))
        front = sorted(at for one, at in placed if one.is_on_front)
        corners = [*front, (max(x for _, (x, _) in placed), front[-1][1])] if front else []
        curves = [Curve("front", [x for x, _ in corners], [y for _, y in corners], "dim", dotted=True)]
        curves += [curve for one, (x, _) in placed for curve in _interval(one, x)]
        return Chart(
            quantity=percent(strip_control(self.state.score_name)),
            x_axis=XAxis("parameters", axis.low, axis.high, has_multiples=True),
            curves=curves,
            marks=[self._mark(one, at) for one, at in placed],
        )

    def _mark(self, one: Standing, at: tuple[float, float]) -> ChartMark:
        """Return the mark of a candidate: a diamond for the bare host, its letter, or a dot."""
        glyph = HOST_MARK if one.mark == HOST_MARK else one.letter or one.mark
        is_selected = one.name == self.view.selected_candidate
        return ChartMark(*at, glyph, "key" if is_selected else _ROLES[one.mark])


def _interval(one: Standing, x: float) -> Iterator[Curve]:
    """Yield the interval of a candidate as a vertical line; nothing if it has none."""
    interval = one.candidate.score_interval
    if interval is not None:
        yield Curve("", [x, x], [interval.low, interval.high], "dim")
