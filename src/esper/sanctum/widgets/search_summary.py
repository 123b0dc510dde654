"""The state of a growth in a few lines: used budget, outcomes, best candidate and answer; the answer at its end."""

from __future__ import annotations

from collections.abc import Hashable
from textwrap import wrap

from textual.geometry import Size

from esper.common.formatting import strip_control
from esper.recordings.candidates.candidates import BARE_HOST
from esper.recordings.candidates.report import best_candidate, fit_label, format_ratio, format_with_unit
from esper.recordings.state.search_state import SearchState
from esper.sanctum.widgets.panel import Line, Panel

_MAX_ANSWER_LINES = 5
_SHORT_ROWS = 34
"""Height of the terminal below which the panel has one line, or the lines of the answer."""


class SearchSummary(Panel):
    """Outcomes of the trials and the best candidate so far; at the end, the answer. Empty for another run."""

    PANEL_TITLE = "growth"
    METRICS = ("candidates",)

    def cache_key(self) -> Hashable:
        """Return a key that changes with the search, and with the used budget."""
        search = self.state.search
        return search and (search.revision, search.describe_progress(self.state.seconds_trained))

    def preferred_height(self) -> int:
        """Return the number of lines."""
        return max(len(self._texts(max(self.size.width, 1))), 1)

    def draw_lines(self, size: Size) -> list[Line]:
        """Draw the lines."""
        search = self.state.search
        if search is not None:
            self.panel_subtitle = search.describe_counts() if search.answer is not None else None
        role = "bright" if search is not None and search.answer is not None else "normal"
        return [self.line(f" {text}", role) for text in self._texts(size.width)]

    def _texts(self, width: int) -> list[str]:
        search, is_short = self.state.search, self.screen.size.height < _SHORT_ROWS
        if search is None:
            return ["this run is not a growth: it has no candidates"] if self.state.started else []
        if search.answer is not None:
            text = strip_control(search.answer)
            return wrap(text, max(width - 1, 20), max_lines=_MAX_ANSWER_LINES, placeholder=" …")
        if is_short:
            return [_best_line(search, width - 1)]
        progress = f"{search.describe_progress(self.state.seconds_trained)}; {search.describe_counts()}"
        return [progress, *wrap(search.describe_best(), max(width - 1, 20), max_lines=2, placeholder=" …")]


def _best_line(search: SearchState, width: int) -> str:
    """Return the best candidate and the bare host in one line, with as much of the name as fits."""
    best, host = best_candidate(search.candidates, search.info.objective), search.find(BARE_HOST)
    if best is None:
        return "no trial is done yet"
    figures = f"best {format_with_unit(best)}, {format_ratio(best)}: "
    own = f"; your network {format_with_unit(host)}" if host is not None and host is not best else ""
    return f"{figures}{fit_label(best, width - len(figures) - len(own))}{own}"
