"""The env table: a row per env, steady under the cursor, drawn again only where an env changed."""

from __future__ import annotations

from collections.abc import Hashable

from textual.geometry import Size
from textual.strip import Strip

from esper.sanctum.widgets import env_row
from esper.sanctum.widgets.env_rows import EnvRows
from esper.sanctum.widgets.panel import Line

_FRAME = 2
"""Lines that are no env: the heading and the medians."""


class EnvTable(EnvRows):
    """A heading, the envs, their medians."""

    METRICS = ("accuracy", "reward", "stage", "gradient norm", "loss scale")

    HEADING = "envs"

    def on_mount(self) -> None:
        """Nothing is drawn yet."""
        self._rows: dict[int, tuple[Hashable, Strip]] = {}

    def key(self) -> Hashable:
        """The state, and where the cursor is."""
        return self.state.seq, self.view.env

    def wanted_height(self) -> int:
        """Every env, the frame and a rule."""
        return len(self.state.envs) + _FRAME + 1

    def draw(self, size: Size) -> list[Line] | list[Strip]:
        """Heading, the rows in sight, a rule where there is room, medians."""
        width, height = size
        started, envs = self.state.started, self.state.envs
        if started is None:
            return self._starting(width, height)
        palette = self.view.palette
        layout = env_row.fit(width - 1, started)
        room = max(height - _FRAME, 1)
        shown = [envs[index] for index in self.page(room)]
        self.border_subtitle = f"{self._top + 1}–{self._top + len(shown)} of {len(envs)}"
        worst = {a.found.env: a.found.severity for a in reversed(self.state.active_anomalies())}
        strips = [env_row.heading(palette, layout, started.slots).strip(width)]
        for env in shown:
            severity, here = worst.get(env.env), env.env == self.view.env
            key = (env.revision, severity, here, layout, width, palette.name, self.view.generation)
            known = self._rows.get(env.env)
            if known is None or known[0] != key:
                line = env_row.row(palette, layout, started, env, severity=severity, here=here)
                known = key, line.strip(width)
                self._rows[env.env] = known
            strips.append(known[1])
        if height > len(envs) + _FRAME:
            strips.append(self.line().add("─" * (width - 1), "faint").strip(width))
        elif len(shown) < len(envs):
            self.mark_more(strips, width)
        strips.append(env_row.middle(palette, layout, started, envs).strip(width))
        return strips

    def _starting(self, width: int, height: int) -> list[Line]:
        text = "starting: loading torch…" if self.view.source.live else "the recording has no run yet"
        return [self.line()] * ((height - 1) // 2) + [self.line().add(text.center(width), "normal")]
