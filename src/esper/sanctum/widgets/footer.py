"""Footer: the bottom line with the keys that apply now."""

from __future__ import annotations

from collections.abc import Hashable

from textual.events import Click
from textual.geometry import Size

from esper.common.control import RequestKind
from esper.sanctum.keys import APP_CATEGORIES, KeyBinding, KeyCategory
from esper.sanctum.requests import pause_cause
from esper.sanctum.source import run_has_ended
from esper.sanctum.symbols import key_name
from esper.sanctum.view import ViewState
from esper.sanctum.widgets.panel import Line, Panel

_DROPPED_FIRST = (
    "next_theme",
    "replay_round(1)",
    "order",
    "metric",
    "replay_step(1)",
    "map",
    "why",
    "filter",
    "without",
    "select_decision(1)",
    "select_decision(-1)",
    "travel",
    "go_to",
    "mark(1)",
)
"""Actions that the footer leaves out first if there is no room for all keys."""
_NEVER_DROPPED = frozenset({"back", "anomalies", "legend", "explain", "quit"})
_SCREENS_WITH_STAGES = frozenset({KeyCategory.TABLE, KeyCategory.MAP, KeyCategory.GROWTH})
"""Categories of the screens that show stages only as letters."""
_CAPTIONS_WHILE_PAUSED = {RequestKind.PAUSE.value: "resume"}
"""Captions that replace those of `KEYS` while the run is paused, and after it has crashed. Keyed by action."""
_CAPTIONS_WHILE_ATTACHED = {"quit": "detach"}
"""Captions that replace those of `KEYS` while the run is in another process. Keyed by action."""


class Footer(Panel):
    """Keys of the app and of the open screen, from the table of keys. A click on a key presses it."""

    def __init__(self, view: ViewState, *categories: KeyCategory) -> None:
        super().__init__(view)
        self.categories = categories
        """Categories of the keys of the open screen."""
        self._key_ranges: list[tuple[range, KeyBinding]] = []
        """Columns that each key occupies, for clicks."""

    def cache_key(self) -> Hashable:
        """Return categories, status of the run, pause cause, the view, whether there are anomalies, and statistics."""
        source = self.view.source
        return (
            self.categories,
            self._has_body,
            self.view.status,
            source.live_state.cause,
            self._shows_past,
            bool(self.state.anomalies),
            self._selected_env_has_anomaly,
            self.view.can_leave,
            self.view.frame_stats.text,
        )

    def draw_lines(self, size: Size) -> list[Line]:
        """Draw as many keys as fit, always including the ones to go back, to get help and to quit."""
        keys = [key for key in self._applicable_keys() if self._is_shown(key)]
        keys.sort(key=lambda key: (key.category is KeyCategory.VIEW, key.action != "rejoin"))
        labels = {key: key_name(key.label, self.view.charset) for key in keys}
        while (
            len(keys) > len(_NEVER_DROPPED)
            and sum(len(labels[key]) + len(self._caption(key)) + 3 for key in keys) - 2 > size.width
        ):
            keys.remove(_least_needed(keys))
        line = self.line()
        self._key_ranges = []
        for key in keys:
            start = line.width
            line.append(labels[key], "key").append(f" {self._caption(key)}", "dim")
            self._key_ranges.append((range(start, line.width), key))
            line.append("  ")
        stats = self.view.frame_stats.text
        if stats and line.width + len(stats) <= size.width:
            line.pad_to(size.width - len(stats)).append(stats, "faint")
        return [line]

    def _applicable_keys(self) -> list[KeyBinding]:
        """Return the keys of the open screen, if its body is shown, and those of the app that it does not bind."""
        bound = {name for key in self.view.keys if key.category in self.categories for name in key.keys.split(",")}
        return [
            key
            for key in self.view.keys
            if (key.category in self.categories and self._has_body)
            or (key.category in APP_CATEGORIES and (key.priority or not bound.issuperset(key.keys.split(","))))
        ]

    @property
    def _has_body(self) -> bool:
        """False if the terminal is too small for the body of the screen."""
        return self.screen.query_one("#body").display

    def _is_shown(self, key: KeyBinding) -> bool:
        source = self.view.source
        if key.action == RequestKind.PAUSE.value and self.view.status.name == "crashed":
            return self.view.status.can_resume and (source.requests is None or source.requests.disabled_reason is None)
        cause = source.live_state.cause
        no_requests = run_has_ended(source) or (source.requests is not None and source.requests.disabled_reason)
        refused = set(RequestKind) if no_requests else pause_cause(cause).refused_requests if cause else ()
        if source.live and key.category is KeyCategory.RUN and key.action in {kind.value for kind in refused}:
            return False
        shown_if = {
            "step": source.live_state.status == "paused",
            "stop": source.attached,
            "rejoin": self._shows_past,
            "back": True,
            "go_to": source.playback is not None,
            "anomalies": bool(self.state.anomalies),
            "next_steps": source.live and run_has_ended(source),
            "why": self._selected_env_has_anomaly,
            "leave_run": self.view.can_leave,
            "legend": not _SCREENS_WITH_STAGES.isdisjoint(self.categories),
        }
        return self.view.is_available(key) and (key.footer or shown_if.get(key.action, False))

    @property
    def _selected_env_has_anomaly(self) -> bool:
        """True if the selected env has an active anomaly, whose root cause can be shown."""
        return any(anomaly.found.env == self.view.selected_env for anomaly in self.state.active_anomalies())

    @property
    def _shows_past(self) -> bool:
        """True if the past of a live run is shown. Keys that control the run still act on the present."""
        return self.view.source.live and self.view.source.playback is not None

    def _caption(self, key: KeyBinding) -> str:
        can_continue = self.view.status.name in {"paused", "held", "crashed"}
        paused = _CAPTIONS_WHILE_PAUSED if can_continue else {}
        attached = _CAPTIONS_WHILE_ATTACHED if self.view.source.attached else {}
        return {**paused, **attached}.get(key.action, key.name)

    def on_click(self, event: Click) -> None:
        """Press the clicked key."""
        offset = event.get_content_offset(self)
        for columns, key in self._key_ranges:
            if offset is not None and offset.x in columns:
                self.app.simulate_key(key.keys.partition(",")[0])


def _least_needed(keys: list[KeyBinding]) -> KeyBinding:
    """Return the key that the footer leaves out next."""
    for action in _DROPPED_FIRST:
        for key in keys:
            if key.action == action:
                return key
    return next(key for key in reversed(keys) if key.action not in _NEVER_DROPPED)
