"""The configuration of a run as TOML text, with a comment for each key."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence

import msgspec

from esper.config import Config
from esper.config_fields import list_fields, table_description


def to_toml(config: Config) -> str:
    """Return TOML that `resolve` reads back as the same configuration, with a comment for each key.

    Keys without a value, which TOML cannot express, are left out.
    """
    return "".join(_toml_lines(config))


def _toml_lines(config: Config) -> Iterator[str]:
    builtins, table = msgspec.to_builtins(config), ""
    for field in list_fields(Config):
        if field.table != table:
            table = field.table
            yield f"\n{_comment(table_description(Config, table))}[{table}]\n"
        value = (builtins[table] if table else builtins)[field.name]
        if value is not None:
            yield _comment(field.details)
            yield f"{field.name} = {_toml_value(value)}\n"


def _comment(text: str) -> str:
    return textwrap.fill(text, 100, initial_indent="# ", subsequent_indent="# ") + "\n"


def _toml_value(value: str | float | Sequence[str]) -> str:
    match value:
        case str():
            # A string of JSON is one of TOML, but for DEL, which TOML wants escaped.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case list() | tuple():
            return f"[{', '.join(map(_toml_value, value))}]"
        case _:
            return repr(value)
