"""The candidates screen of a growth: answer, table of the candidates, and front of score against parameters."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Container, Vertical

from esper.sanctum.keys import KeyCategory
from esper.sanctum.screens.base import RunScreen
from esper.sanctum.widgets.candidate_table import CandidateDetail, CandidateTable
from esper.sanctum.widgets.front_chart import FrontChart
from esper.sanctum.widgets.search_summary import SearchSummary


class CandidatesScreen(RunScreen):
    """The state of the growth at the top, the table below it, and the front below or beside the table."""

    AUTO_FOCUS = "CandidateTable"
    CATEGORIES = (KeyCategory.ROWS, KeyCategory.CANDIDATES)

    def body(self) -> ComposeResult:
        """Yield the summary, the table with the selected candidate, and the chart."""
        yield SearchSummary(self.view)
        with Container(id="candidates"):
            with Vertical(id="candidate-rows"):
                yield CandidateTable(self.view)
                yield CandidateDetail(self.view)
            yield FrontChart(self.view)
