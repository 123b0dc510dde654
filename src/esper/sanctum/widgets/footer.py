"""The last line: the keys that mean something now."""

from __future__ import annotations

from collections.abc import Hashable

from textual.events import Click
from textual.geometry import Size

from esper.control import RequestKind
from esper.sanctum.bindings import APP_CATEGORIES, KEYS, KeyBinding, KeyCategory, is_available
from esper.sanctum.requests import pause_cause
from esper.sanctum.source import run_has_ended
from esper.sanctum.symbols import key_name
from esper.sanctum.view import ViewState
from esper.sanctum.widgets.panel import Line, Panel

_WHILE_PAUSED = {"pause": "go on"}
"""Other names of keys while the run is paused."""
_WHILE_ATTACHED = {"quit": "detach"}
"""And where the run is in another process."""


class Footer(Panel):
    """Generated from the table of keys. A click on a key is that key."""

    DEFAULT_CSS = """
    Footer { height: 1; padding: 0 1; }
    """

    def __init__(self, view: ViewState, *categories: KeyCategory) -> None:
        super().__init__(view)
        self._categories = categories
        self._places: list[tuple[range, KeyBinding]] = []

    def cache_key(self) -> Hashable:
        """Whether the run is paused, whether its past is shown, and the dashboard's own figures."""
        source = self.view.source
        return (
            run_has_ended(source),
            source.live_state.status,
            source.live_state.cause,
            self._past,
            self.view.frame_stats.text,
        )

    def draw_lines(self, size: Size) -> list[Line]:
        """As many keys as fit; help and quit always."""
        live = self.view.source.live
        keys = [
            key
            for key in KEYS
            if key.category in (*APP_CATEGORIES, *self._categories) and self._is_shown(key, live=live)
        ]
        keys.sort(key=lambda key: (key.category is KeyCategory.VIEW, key.action != "rejoin"))
        labels = {key: key_name(key.label, self.view.charset) for key in keys}
        while len(keys) > 2 and sum(len(labels[key]) + len(self._caption(key)) + 3 for key in keys) - 2 > size.width:
            keys.pop(-3)
        line = self.line()
        self._places = []
        for key in keys:
            start = line.width
            line.append(labels[key], "key").append(f" {self._caption(key)}", "dim")
            self._places.append((range(start, line.width), key))
            line.append("  ")
        stats = self.view.frame_stats.text
        if stats and line.width + len(stats) <= size.width:
            line.pad_to(size.width - len(stats)).append(stats, "faint")
        return [line]

    def _is_shown(self, key: KeyBinding, *, live: bool) -> bool:
        source = self.view.source
        cause = source.live_state.cause
        nobody = run_has_ended(source) or (source.requests is not None and source.requests.disabled_reason)
        vain = set(RequestKind) if nobody else pause_cause(cause).refused_requests if cause else ()
        if source.live and key.action in {kind.value for kind in vain}:
            return False
        also = {"step": source.live_state.status == "paused", "stop": source.attached, "rejoin": self._past}
        return is_available(key, live=live) and (key.footer or also.get(key.action, False))

    @property
    def _past(self) -> bool:
        """Whether the past of a live run is shown; its keys act on the present all the same."""
        return self.view.source.live and self.view.source.playback is not None

    def _caption(self, key: KeyBinding) -> str:
        paused = _WHILE_PAUSED if self.view.source.live_state.status == "paused" else {}
        attached = _WHILE_ATTACHED if self.view.source.attached else {}
        return {**paused, **attached}.get(key.action, key.name)

    def on_click(self, event: Click) -> None:
        """Do what the key under the pointer does."""
        offset = event.get_content_offset(self)
        for places, key in self._places:
            if offset is not None and offset.x in places:
                self.app.simulate_key(key.keys.partition(",")[0])
