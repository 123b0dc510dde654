"""Charts of one env over its episode: accuracy and reward."""

from __future__ import annotations

from textual.geometry import Size

from esper.formatting import plain
from esper.sanctum.symbols import number, percent
from esper.sanctum.widgets.accuracy import percent_ticks
from esper.sanctum.widgets.chart import Chart
from esper.sanctum.widgets.env_panel import EnvPanel
from esper.sanctum.widgets.panel import Line
from esper.telemetry.state import EnvState
from esper.text_plot import round_up, span_of


class EnvAccuracy(EnvPanel):
    """Validation accuracy by step of this episode; that of the run that goes along as a ghost."""

    METRICS = ("accuracy",)

    def draw_env(self, env: EnvState, size: Size) -> list[Line]:
        """The chart; name and lane of the env stand in the border."""
        self.heading = f"env {env.env:02d} on {plain(env.lane)} ─ accuracy %"
        best, ever = max(env.accuracy, default=None), env.best_accuracy
        self.note = f"best {percent(best).text.strip()}"
        if ever != best:
            self.note += f"  ever {percent(ever).text.strip()}"
        extent, first = self.axis(env.accuracy)
        ghost = self.ghost
        if ghost is not None and ghost.accuracy:
            self.note += f"  ghost {percent(ghost.accuracy[-1]).text.strip()}"
        chart = Chart(
            values=env.accuracy,
            extent=extent,
            first=first,
            low=0.0,
            high=1.0,
            ticks=percent_ticks(size.height),
            others=[(ghost.accuracy, "dim")] if ghost is not None else [],
        )
        return chart.lines(self.view.palette, *size)


class EnvRewards(EnvPanel):
    """Reward by step of this episode."""

    METRICS = ("reward",)

    HEADING = "reward"

    def draw_env(self, env: EnvState, size: Size) -> list[Line]:
        """The chart, its axis a round number around zero; the return so far in the border."""
        total = number(env.episode_return, 3, 3, signed=True).text.strip()
        self.note = f"return {total}" if env.rewards else None
        least, greatest = span_of(env.rewards) or (0.0, 0.0)
        high = round_up(greatest) if greatest > 0 else 0.0
        low = -round_up(-least) if least < 0 else 0.0
        if high == low:
            high = 1.0
        ticks = [(value, f"{value:g}".replace("-", "−")) for value in sorted({low, 0.0, high})]
        extent, first = self.axis(env.rewards)
        chart = Chart(values=env.rewards, extent=extent, first=first, low=low, high=high, ticks=ticks)
        return chart.lines(self.view.palette, *size)
