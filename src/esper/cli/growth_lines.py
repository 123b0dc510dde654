"""Output of a growth: the line of a round, and table, chart and answer at its end."""

from __future__ import annotations

from esper.recordings.candidates.report import format_report
from esper.recordings.state.search_state import SearchState
from esper.recordings.state.state import RunState

MIN_PLOT_COLUMNS, MAX_PLOT_COLUMNS = 40, 80
"""Minimum and maximum width of the chart."""


def format_growth_round(state: RunState, number: int) -> str:
    """Return the results of a growth so far as one line, after a round: used budget, best candidate, bare host."""
    search = state.search
    assert search is not None
    return f"round {number}: {search.describe_progress(state.seconds_trained)}; {search.describe_best()}"


def format_growth(search: SearchState, score_name: str, *, width: int | None = None) -> str:
    """Return table, chart and answer of a growth as text; a sentence if no trial has started.

    Args:
        search: Candidates and answer.
        score_name: Name of the task's score.
        width: Number of columns of the terminal; None for a file, whose lines may have any length.
    """
    if not search.candidates:
        return "no trial has started"
    plot_width = max(min(width or MAX_PLOT_COLUMNS, MAX_PLOT_COLUMNS), MIN_PLOT_COLUMNS)
    return format_report(search.standings(), score_name, search.answer, width=width, plot_width=plot_width)
