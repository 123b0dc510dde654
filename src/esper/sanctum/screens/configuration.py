"""Dialog with the configuration of the run: first the settings that differ from the defaults."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, NamedTuple

import msgspec
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Input, Static

from esper.config import Config
from esper.config_fields import list_fields
from esper.formatting import format_config_value, strip_control
from esper.history.summary import flat_config
from esper.sanctum.screens.dialogs import Dialog
from esper.sanctum.symbols import ellipsise
from esper.sanctum.view import ViewState
from esper.telemetry.events import RunStarted

_DIALOG_COLS, _FRAME_COLS = 120, 7
"""Width of the dialog, as in sanctum.tcss, and the columns of border, padding and scrollbar."""
_KEY_COLS, _VALUE_COLS = 27, 11
"""Width of a key, and minimum width of a value, without the gap after it."""
_MIN_DESCRIPTION_COLS = 20
"""Minimum room for a description."""
CHANGED, OF_TASK, DEFAULTS = "differ from the defaults", "settings of the task", "defaults"
"""Headings of the groups of settings, in their order."""


class Setting(NamedTuple):
    """A key of the configuration."""

    group: str
    """Heading of its group."""
    key: str
    value: str
    default: str
    """Its default if the value differs; else empty."""
    description: str

    def contains(self, text: str) -> bool:
        """Return True if the text occurs in the setting, in upper or lower case."""
        return text.lower() in f"{self.key} {self.value} {self.description}".lower()


def list_settings(started: RunStarted) -> list[Setting]:
    """Return all settings of a run, ordered by group.

    The recording does not have the defaults of a task: its slots and training settings are a group of their own.
    """
    defaults = flat_config(msgspec.json.decode(msgspec.json.encode(Config())))
    descriptions = {field.key: field.description for field in list_fields(Config)}
    settings: list[Setting] = []
    for key, value in flat_config(started.config).items():
        default, group, shown_default = defaults.get(key), DEFAULTS, ""
        if (key == "slots" or key.startswith("training.")) and default in (None, []):
            group = OF_TASK
        elif value not in (None, default):
            group, shown_default = CHANGED, format_config_value(default)
        text = strip_control(format_config_value(value))
        settings.append(Setting(group, key, text, shown_default, descriptions.get(key, "")))
    return sorted(settings, key=lambda setting: (CHANGED, OF_TASK, DEFAULTS).index(setting.group))


class ConfigurationDialog(Dialog[None]):
    """All settings of the run. Typing shows only those that contain the text.

    Args:
        view: State that the panels share. The run has started.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "scroll(-1)"),
        Binding("down", "scroll(1)"),
        Binding("pageup", "scroll(-10)"),
        Binding("pagedown", "scroll(10)"),
    ]

    def __init__(self, view: ViewState) -> None:
        super().__init__()
        self._palette = view.palette
        started = view.source.state.started
        assert started is not None
        self._settings = list_settings(started)

    def compose(self) -> ComposeResult:
        """Yield the heading, the search box and the settings."""
        num_changed = sum(setting.group == CHANGED for setting in self._settings)
        with Vertical(id="dialog"):
            yield Static(f"Configuration: {num_changed} of {len(self._settings)} settings {CHANGED}", id="question")
            yield Input(placeholder="type to search", compact=True)
            with VerticalScroll(can_focus=False):
                yield Static(id="settings")
            yield Static("↑ ↓ scroll   Esc back", id="hint")

    def on_resize(self) -> None:
        """Write the settings in the new width."""
        self._write(self.query_one(Input).value)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Show only settings that contain the text."""
        self._write(event.value)

    def action_scroll(self, lines: int) -> None:
        """Scroll the settings."""
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)

    def _write(self, text: str) -> None:
        found = [setting for setting in self._settings if setting.contains(text.strip())]
        columns = min(self.size.width, _DIALOG_COLS) - _FRAME_COLS
        page = Text("\n").join(self._lines(found, columns))
        self.query_one("#settings", Static).update(page if found else "no setting contains this text")

    def _lines(self, settings: list[Setting], columns: int) -> Iterator[Text]:
        group = ""
        default_cols = max((len(setting.default) for setting in self._settings), default=0)
        for setting in settings:
            if setting.group != group:
                group = setting.group
                yield Text(group, self._palette["title"])
            is_changed = setting.group == CHANGED
            line = Text("  ").append(f"{setting.key:<{_KEY_COLS}} ", self._palette["head"])
            line.append(f"{setting.value:<{_VALUE_COLS}} ", self._palette["bright" if is_changed else "normal"])
            if is_changed:
                line.append(f"default {setting.default:<{default_cols}} ", self._palette["normal"])
            room = columns - line.cell_len
            if room >= _MIN_DESCRIPTION_COLS:
                line.append(ellipsise(setting.description, room), self._palette["dim"])
            yield line
