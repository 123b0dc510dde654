"""One env from close by."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal

from esper.sanctum.bindings import Category, bindings
from esper.sanctum.screens.base import RunScreen
from esper.sanctum.widgets.env_charts import EnvAccuracy, EnvRewards
from esper.sanctum.widgets.env_moves import EnvMoves
from esper.sanctum.widgets.env_slots import EnvSlots
from esper.sanctum.widgets.env_step import EnvReward, EnvStep


class EnvDetail(RunScreen):
    """The env under the cursor: its courses, its slots, its last step, its lifecycle."""

    AUTO_FOCUS = ""
    CATEGORIES = (Category.DETAIL,)
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(Category.DETAIL)]

    def body(self) -> ComposeResult:
        """Courses, slots, and the last step beside the lifecycle."""
        with Horizontal(id="courses"):
            yield EnvAccuracy(self.view)
            yield EnvRewards(self.view)
        yield EnvSlots(self.view)
        with Horizontal(id="facts"):
            yield EnvStep(self.view)
            yield EnvReward(self.view)
            yield EnvMoves(self.view)

    def action_move(self, envs: int) -> None:
        """Go to a neighbour."""
        self.view.move(envs)
        self.update()

    def action_back(self) -> None:
        """Back to where we came from."""
        self.dismiss()
