"""Base class of a panel that does not follow every step while the run goes on."""

from __future__ import annotations

import time
from collections.abc import Hashable

from esper.sanctum.view import ViewState
from esper.sanctum.widgets.panel import Panel

REDRAW_INTERVAL_S = 2.0
"""Minimum seconds between two drawings of the steps while the run goes on."""


class PacedPanel(Panel):
    """A panel that is drawn at most once per interval while the run goes on, however many steps it makes."""

    def __init__(self, view: ViewState, *, id: str | None = None) -> None:
        super().__init__(view, id=id)
        self._drawn: tuple[Hashable, Hashable] = (None, None)
        """Key of the round, and of the steps, that `paced` returned last."""
        self._next_draw = 0.0
        """Monotonic time before which further steps are not drawn while the run goes on."""
        self._is_waiting = False
        """True if a timer will draw steps that were left out."""

    def cache_key(self) -> Hashable:
        """Return a key that changes with every event, once per interval while the run goes on."""
        return self.paced(self.state.seq)

    def paced(self, steps: Hashable) -> Hashable:
        """Return a key that changes with the round, and with `steps` once per interval while the run goes on.

        A step in every tick would otherwise draw the panel five times per second.

        Args:
            steps: Everything else that the panel depends on, and that changes with every step.
        """
        now, view = time.monotonic(), self.view
        reached = (self.state.round, self.state.started is None, view.selected_env, view.state_version), steps
        if reached != self._drawn:
            if reached[0] != self._drawn[0] or now >= self._next_draw or not self._goes_on:
                self._drawn, self._next_draw = reached, now + REDRAW_INTERVAL_S
            elif not self._is_waiting:
                self._is_waiting = True
                self.set_timer(self._next_draw - now, self._draw_rest)
        return self._drawn

    @property
    def _goes_on(self) -> bool:
        """True if the shown run advances by itself."""
        source = self.view.source
        return source.playback.playing if source.playback else source.live_state.status == "running"

    def _draw_rest(self) -> None:
        self._is_waiting = False
        self.update()
