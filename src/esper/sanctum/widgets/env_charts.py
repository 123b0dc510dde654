"""The courses of one env over its episode: accuracy and reward."""

from __future__ import annotations

from collections.abc import Hashable

from textual.geometry import Size

from esper.sanctum.symbols import number, percent, plain
from esper.sanctum.widgets.accuracy import percent_ticks
from esper.sanctum.widgets.chart import Chart
from esper.sanctum.widgets.panel import Line, Panel
from esper.sanctum.widgets.plot import round_up, span_of
from esper.telemetry.state import HISTORY, EnvState


class EnvPanel(Panel):
    """A panel about the env under the cursor."""

    @property
    def env(self) -> EnvState | None:
        """That env; None before the run has started."""
        envs = self.state.envs
        return envs[self.view.selected_env] if self.view.selected_env < len(envs) else None

    @property
    def ghost(self) -> EnvState | None:
        """The same env of the run that goes along, in the same round; None where there is none."""
        ghost = self.view.ghost
        here = ghost is not None and ghost.round == self.state.round and self.view.selected_env < len(ghost.envs)
        return ghost.envs[self.view.selected_env] if ghost is not None and here else None

    def key(self) -> Hashable:
        """Which env, and its revision; and that of its ghost."""
        env, ghost = self.env, self.ghost
        return None if env is None else (env.env, env.revision, ghost and ghost.revision)

    def draw(self, size: Size) -> list[Line]:
        """Nothing before the run has started."""
        return [] if self.env is None else self.draw_env(self.env, size)

    def draw_env(self, env: EnvState, size: Size) -> list[Line]:
        """The lines for an env."""
        raise NotImplementedError

    def axis(self, values: list[float]) -> tuple[int, int]:
        """Length of the axis of steps, and the number of its first step. Of a long episode the last steps are kept."""
        assert self.state.started is not None
        steps = self.state.started.steps
        done = self.env.stepped.step if self.env and self.env.stepped else len(values)
        return min(steps, HISTORY), max(done - HISTORY, 0) + 1


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
