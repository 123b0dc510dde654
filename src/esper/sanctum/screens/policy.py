"""The policy: what its heads learn, how its learning goes, what it decides."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal

from esper.sanctum.bindings import Category, bindings
from esper.sanctum.screens.base import RunScreen
from esper.sanctum.widgets.decisions import Decisions
from esper.sanctum.widgets.head_courses import HeadNorms, HeadShares
from esper.sanctum.widgets.learning import Learning


class Policy(RunScreen):
    """Heads above; learning, and what comes of it, below."""

    AUTO_FOCUS = ""
    CATEGORIES = (Category.POLICY,)
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Category.POLICY)]

    def body(self) -> ComposeResult:
        """Two rows of two panels."""
        with Horizontal(id="heads"):
            yield HeadNorms(self.view)
            yield HeadShares(self.view)
        with Horizontal(id="update"):
            yield Learning(self.view)
            yield Decisions(self.view)

    def action_next_figure(self) -> None:
        """Show the next figure of the updates first."""
        self.query_one(Learning).shift()

    def action_move(self, envs: int) -> None:
        """Look at the decisions of a neighbour."""
        self.view.move(envs)
        self.update()
