"""Keys of the user: reads `keys.toml`, and gives the actions of the table `KEYS` other keys.

preset = "vim"                    # or "arrows"
run.pause = "f5"                  # an action by its id
view.screenshot = ["f12", "S"]    # several keys
follow = "F"                      # all actions of this name
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import cast

import platformdirs
from textual.keys import (
    Keys,
    _character_to_key,  # pyright: ignore[reportPrivateUsage] (as Textual names the keys of a keymap)
    format_key,
)

from esper.common.configuration.config import ConfigError
from esper.common.configuration.files import read_toml
from esper.common.formatting import suggest
from esper.sanctum.keys import ACTIONS_WITHOUT_RUN, APP_CATEGORIES, KEYS, KeyBinding, KeyCategory

PRESETS: dict[str, dict[str, str]] = {
    "arrows": {
        key.id: arrow
        for key in KEYS
        for arrow, _, letter in [key.keys.partition(",")]
        if letter and arrow in {"up", "down", "left", "right"}
    },
    "vim": {
        "time.step-back": "left,h",
        "time.step": "right,l",
        "time.round-back": "shift+left,H",
        "time.round": "shift+right,L",
        "time.go-to": "colon",
        "timeline.start": "home,g",
        "timeline.end": "end,G",
        "rows.page-up": "pageup,ctrl+u",
        "rows.page-down": "pagedown,ctrl+d",
        "rows.first": "home,g",
        "rows.last": "end,G",
        "curves.page-up": "pageup,ctrl+u",
        "curves.page": "pagedown,ctrl+d",
    },
}
"""Keys that differ from those of the table `KEYS`. Keyed by preset and by the id of the action."""

_SCREENS: tuple[tuple[KeyCategory, ...], ...] = (
    (KeyCategory.OVERVIEW, KeyCategory.ROWS, KeyCategory.ENVS, KeyCategory.TABLE),
    (KeyCategory.OVERVIEW, KeyCategory.MAP),
    (KeyCategory.GROWTH, KeyCategory.ROWS, KeyCategory.ENVS),
    (KeyCategory.CANDIDATES, KeyCategory.ROWS),
    (KeyCategory.DETAIL,),
    (KeyCategory.POLICY,),
    (KeyCategory.DEVICES,),
    (KeyCategory.LOG, KeyCategory.ROWS),
    (KeyCategory.CURVES,),
)
"""Categories whose keys apply on the same screen, besides those of `_EVERYWHERE`."""
_WORKSPACE_SCREENS = (
    {KeyCategory.WORKSPACE, KeyCategory.ROWS, KeyCategory.RUNS},
    {KeyCategory.WORKSPACE, KeyCategory.CHART},
)
"""The same for the workspace, where only a few keys of the app apply."""
_EVERYWHERE = (*APP_CATEGORIES, KeyCategory.ANOMALIES, KeyCategory.TIMELINE)
_MODIFIERS = frozenset({"alt", "ctrl", "shift"})
_NAMED_KEYS = [key.value for key in Keys if key.value.isalnum() and key not in {Keys.Return, Keys.Tab}]
"""Names of the keys without a character, such as `f5`. Tab moves the focus."""


def keys_file() -> Path:
    """Return the path of the user's file, which need not exist."""
    return platformdirs.user_config_path("esper-sanctum") / "keys.toml"


def load_keys() -> tuple[KeyBinding, ...]:
    """Return the table `KEYS` with the keys of the user's file.

    Raises:
        ConfigError: The file cannot be read, has an unknown action or key, or gives two actions the same key.
    """
    file = keys_file()
    if not file.exists():
        return KEYS
    table = read_toml(file, str(file))
    preset = table.pop("preset", None)
    if preset is not None and str(preset) not in PRESETS:
        raise ConfigError(f"unknown preset {preset!r} in {file}; {suggest(str(preset), PRESETS)}")
    keys = apply_keys({} if preset is None else PRESETS[preset], dict(_read_actions(table, file)))
    for first, second, shared in find_conflicts(keys):
        raise ConfigError(
            f"{file} gives the key {shared!r} to two actions, {first.id} and {second.id}; give one of them another key"
        )
    return keys


def apply_keys(*changes: Mapping[str, str]) -> tuple[KeyBinding, ...]:
    """Return the table `KEYS` with other keys, keyed by the id of the action. Later changes take precedence."""
    keys = {id_: text for change in changes for id_, text in change.items()}
    return tuple(replace(key, keys=keys.get(key.id, key.keys)) for key in KEYS)


def find_conflicts(keys: Iterable[KeyBinding]) -> Iterator[tuple[KeyBinding, KeyBinding, str]]:
    """Yield each two actions that share a key on one screen, and the key.

    In the table `KEYS`, a focused widget takes a few keys from the app, such as `end`. The same two actions may share
    other keys too.
    """
    keys = tuple(keys)
    defaults = {key.id: key.keys.split(",") for key in KEYS}
    for first, second in combinations(keys, 2):
        shared = [name for name in first.keys.split(",") if name in second.keys.split(",")]
        if shared and _apply_together(first, second) and set(defaults[first.id]).isdisjoint(defaults[second.id]):
            yield first, second, shared[0]


def _apply_together(first: KeyBinding, second: KeyBinding) -> bool:
    categories = {first.category, second.category}
    if any(categories <= {*_EVERYWHERE, *screen} for screen in _SCREENS):
        return True
    of_app = [key for key in (first, second) if key.category in APP_CATEGORIES]
    has_no_run = all(key.action in ACTIONS_WITHOUT_RUN for key in of_app)
    return has_no_run and any(categories <= {*APP_CATEGORIES, *screen} for screen in _WORKSPACE_SCREENS)


def _read_actions(table: Mapping[str, object], file: Path) -> Iterator[tuple[str, str]]:
    """Yield the id and the keys of each action of a file; a name stands for all actions that have it."""
    values: dict[str, object] = {}
    for name, value in sorted(table.items(), key=lambda item: isinstance(item[1], dict)):  # ids override names
        if isinstance(value, dict):
            values |= {f"{name}.{action}": keys for action, keys in cast("dict[str, object]", value).items()}
        else:
            values[name] = value
    for name, value in values.items():
        ids = [key.id for key in KEYS if name in {key.id, key.id.partition(".")[2]}]
        if not ids:
            known = [key.id for key in KEYS]
            hint = suggest(name, [*known, *(id_.partition(".")[2] for id_ in known)], listed=known)
            raise ConfigError(f"unknown action {name!r} in {file}; {hint}")
        keys = _read_keys(value, name, file)
        yield from ((id_, keys) for id_ in ids)


def _read_keys(value: object, action: str, file: Path) -> str:
    names = cast("Sequence[object]", value) if isinstance(value, list) else [value]
    if not names or not all(isinstance(name, str) for name in names):
        raise ConfigError(f'{action} in {file} needs a key such as "f5", or a list of keys, not {value!r}')
    return ",".join(_read_key(cast("str", name), action, file) for name in names)


def _read_key(text: str, action: str, file: Path) -> str:
    """Return Textual's name of a key, written as a character or a name, with or without modifiers: `ctrl+F5`."""
    *modifiers, name = [text] if len(text) == 1 else text.split("+")
    modifiers = sorted({modifier.lower() for modifier in modifiers})
    if modifiers == ["shift"] and len(name) == 1:
        modifiers, name = [], name.upper()
    if len(name) == 1 and name.isprintable():
        name = _character_to_key(name.lower() if modifiers else name)
    else:
        name = name.lower()
    if not _MODIFIERS.issuperset(modifiers) or not (
        len(name) == 1 or name in _NAMED_KEYS or len(format_key(name)) == 1
    ):
        raise ConfigError(f"unknown key {text!r} for {action} in {file}; {suggest(text, _NAMED_KEYS)}")
    return "+".join((*modifiers, name))
