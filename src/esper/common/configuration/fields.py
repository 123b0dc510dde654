"""Description of every configuration key, read from the docstrings and annotations of the configuration's fields.

Help texts, ranges and TOML comments are generated from these descriptions, so none of them is written twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

import msgspec
from msgspec import Meta

from esper.common.configuration.docstrings import field_docstrings


@dataclass(frozen=True, kw_only=True)
class ConfigField:
    """One key of the configuration."""

    section: type[msgspec.Struct]
    """Struct that has the field."""
    key: str
    """Dotted name, e.g. `ppo.learning-rate`; without a dot for keys outside the tables."""
    unit: str
    """Plural unit, e.g. `steps`; empty for plain numbers and text."""
    range: str
    """Valid values of a number, e.g. `>0, <=1`; empty if there is no limit."""
    choices: dict[str, str]
    """Words, each with its explanation; empty for other types."""
    default: Any

    @property
    def table(self) -> str:
        """Name of the TOML table, empty for keys outside the tables."""
        return self.key.rpartition(".")[0]

    @property
    def table_description(self) -> str:
        """Docstring of the table, on one line."""
        return " ".join((self.section.__doc__ or "").split())

    @property
    def name(self) -> str:
        """Key inside its table."""
        return self.key.rpartition(".")[2]

    @property
    def description(self) -> str:
        """Noun phrase or imperative, for help and comments, on one line."""
        return " ".join(field_docstrings(self.section)[self.name.replace("-", "_")].split())

    @property
    def details(self) -> str:
        """Description with the explanation of every choice, the unit and the range."""
        choices = "; ".join(f"{choice} ({meaning})" for choice, meaning in self.choices.items())
        limits = f"[{', '.join(filter(None, (self.unit, self.range)))}]" if self.unit or self.range else ""
        return " ".join(filter(None, (f"{self.description}:" if choices else self.description, choices, limits)))


def list_fields(section: type[msgspec.Struct], prefix: str = "") -> Iterator[ConfigField]:
    """Yield the fields of a configuration struct and of the tables inside it, in order.

    Args:
        section: Struct class; a field whose type is a struct is a table.
        prefix: Start of the keys, ending in a dot.
    """
    hints = get_type_hints(section, include_extras=True)
    for field in msgspec.structs.fields(section):
        hint, key = hints[field.name], f"{prefix}{field.encode_name}"
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            yield from list_fields(hint, f"{key}.")
            continue
        metas = list(_metas(hint))
        extra = {name: value for meta in metas for name, value in (meta.extra or {}).items()}
        yield ConfigField(
            section=section,
            key=key,
            unit=extra.get("unit", ""),
            range=_range(metas),
            choices=extra.get("choices", {}),
            default=field.default,
        )


def _metas(hint: Any) -> Iterator[Meta]:
    """Yield the annotations of a type, and of a member of a union inside it."""
    for argument in get_args(hint):
        if isinstance(argument, Meta):
            yield argument
        else:
            yield from _metas(argument)


def _range(metas: list[Meta]) -> str:
    limits = {
        name: value for meta in metas for name in ("gt", "ge", "lt", "le") if (value := getattr(meta, name)) is not None
    }
    if {"ge", "le"} <= limits.keys():
        return f"{limits['ge']:,} to {limits['le']:,}"
    signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
    return ", ".join(f"{signs[name]}{value:,}" for name, value in limits.items())
