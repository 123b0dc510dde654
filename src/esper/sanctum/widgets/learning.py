"""How the policy's learning goes: a small chart for each figure of its updates."""

from __future__ import annotations

from collections.abc import Hashable

from textual.geometry import Size

from esper.sanctum.symbols import brief
from esper.sanctum.widgets.chart import Chart
from esper.sanctum.widgets.heads import no_update
from esper.sanctum.widgets.panel import Line, Panel
from esper.text_plot import axis_of, extent_of_rounds

FIGURES: dict[str, tuple[str, float | None]] = {
    "episode_return": ("mean return", None),
    "entropy": ("entropy", 0.0),
    "kl": ("KL, nats", 0.0),
    "clip_fraction": ("clipped share", 0.0),
    "explained_variance": ("explained variance", None),
    "value_loss": ("value loss", 0.0),
    "policy_loss": ("policy loss", None),
    "grad_norm": ("gradient norm", 0.0),
}
"""By field of PolicyUpdated: its name on the screen, and the value that its axis shows in any case."""
_WIDTH, _HEIGHT = 30, 7
"""Least size of a chart with its title."""


class Learning(Panel):
    """As many charts as fit, the first of them chosen by `shift`."""

    METRICS = ("update",)

    HEADING = "learning ─ by round"

    def on_mount(self) -> None:
        """Begin with the return."""
        self._first = 0

    def key(self) -> Hashable:
        """Changes with every update of the policy, and with the choice of the first chart."""
        return self.state.started is None, (self.state.update.seq if self.state.update else 0), self._first

    def shift(self) -> None:
        """Begin with the next figure."""
        self._first = (self._first + 1) % len(FIGURES)
        self.update()

    def draw(self, size: Size) -> list[Line]:
        """The charts side by side, in rows."""
        if self.state.started is None:
            return []
        if not self.state.learning:
            return [self.line().add(f" {no_update(self.state.started)}", "dim")]
        columns, rows = max(size.width // _WIDTH, 1), max(size.height // _HEIGHT, 1)
        columns = min(columns, -(-len(FIGURES) // rows))
        rows = min(rows, -(-len(FIGURES) // columns))
        names = list(FIGURES)
        shown = (names[self._first :] + names[: self._first])[: columns * rows]
        self.note = f"{len(shown)} of {len(names)} ─ o next" if len(shown) < len(names) else None
        width, height = size.width // columns, size.height // rows
        lines: list[Line] = []
        for row in range(0, len(shown), columns):
            band = [self.line() for _ in range(height)]
            for place, name in enumerate(shown[row : row + columns]):
                for line, part in zip(band, self._chart(name, width - 1, height), strict=False):
                    line.to(place * width).join(part)
            lines += band
        return lines

    def _chart(self, name: str, width: int, height: int) -> list[Line]:
        assert self.state.started is not None
        course = self.state.learning[name]
        values = course.values
        label, least = FIGURES[name]
        axis = axis_of(values, height - 2, least=least)
        title = self.line().add(f"  {label} ", "dim").cell(brief(course.last), "bright")
        chart = Chart(
            values=values,
            extent=extent_of_rounds(len(values), -(-self.state.started.rounds // course.every)),
            each=course.every,
            low=axis.low,
            high=axis.high,
            ticks=axis.ticks,
        )
        return [title, *chart.lines(self.view.palette, width, height - 1)]
