"""Dialog with the configuration of the run: first the settings that differ from the defaults."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from esper.recordings.history.summary import flat_config
from esper.sanctum.screens.search import SearchDialog
from esper.sanctum.settings import CHANGED, ShownSetting, list_settings
from esper.sanctum.symbols import ellipsise
from esper.sanctum.view import ViewState

_DIALOG_COLS, _FRAME_COLS = 120, 7
"""Width of the dialog, as in sanctum.tcss, and the columns of border, padding and scrollbar."""
_KEY_COLS, _VALUE_COLS = 27, 11
"""Width of a key, and minimum width of a value, without the gap after it."""
_MIN_DESCRIPTION_COLS = 20
"""Minimum room for a description."""


class ConfigurationDialog(SearchDialog):
    """All settings of the run. Typing shows only those that contain the text.

    Args:
        view: State that the panels share. The run has started.
    """

    def __init__(self, view: ViewState) -> None:
        super().__init__()
        self._palette = view.palette
        started = view.source.state.started
        assert started is not None
        self._settings = list_settings(
            flat_config(started.config), started.recipe, is_growth=started.search is not None
        )
        num_changed = sum(setting.group == CHANGED for setting in self._settings)
        self.heading = f"Configuration: {num_changed} of {len(self._settings)} settings {CHANGED}"

    def page(self, text: str) -> Text:
        """Return the settings that contain a text."""
        found = [setting for setting in self._settings if setting.contains(text)]
        columns = min(self.size.width, _DIALOG_COLS) - _FRAME_COLS
        return Text("\n").join(self._lines(found, columns)) if found else Text("no setting contains this text")

    def _lines(self, settings: list[ShownSetting], columns: int) -> Iterator[Text]:
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
