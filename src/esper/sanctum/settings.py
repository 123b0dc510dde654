"""Settings of a run for the dashboard: first those that differ from the defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import msgspec

from esper.common.configuration.config import Config, default_config
from esper.common.configuration.fields import list_fields
from esper.common.formatting import format_config_value, strip_control
from esper.recordings.history.summary import flat_config

CHANGED, OF_TASK, DEFAULTS = "differ from the defaults", "settings of the task", "defaults"
"""Headings of the groups of settings, in their order."""


class ShownSetting(NamedTuple):
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


def list_settings(config: Mapping[str, Any], recipe: Mapping[str, str], *, is_growth: bool) -> list[ShownSetting]:
    """Return all settings of a run, ordered by group.

    The recording does not have the defaults of a task: its slots and training settings are a group of their own.

    Args:
        config: Recorded configuration, flat, as `flat_config` returns it.
        recipe: Optimizers and schedule of the task in words, keyed by field.
        is_growth: Compare it with the defaults of `grow`, instead of those of training.
    """
    defaults = flat_config(msgspec.json.decode(msgspec.json.encode(default_config(is_growth=is_growth))))
    descriptions = {field.key: field.description for field in list_fields(Config)}
    settings: list[ShownSetting] = []
    for key, recorded in config.items():
        # A live run has tuples where its recording has lists.
        value = [*cast("tuple[object, ...]", recorded)] if isinstance(recorded, tuple) else recorded
        default, group, shown_default = defaults.get(key), DEFAULTS, ""
        if (key == "slots" or key.startswith("training.")) and default in (None, []):
            group = OF_TASK
        elif value not in (None, default) and not (key == "rounds" and is_growth):  # those follow from the budget
            group, shown_default = CHANGED, format_config_value(default)
        text = strip_control(format_config_value(value))
        settings.append(ShownSetting(group, key, text, shown_default, descriptions.get(key, "")))
    for field, words in recipe.items():
        settings.append(ShownSetting(OF_TASK, field.replace("_", "-"), strip_control(words), "", ""))
    return sorted(settings, key=lambda setting: (CHANGED, OF_TASK, DEFAULTS).index(setting.group))
