"""`schema`: prints the JSON Schema of a line of a recording."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Sequence
from typing import Any, cast, get_args

import msgspec

from esper.cli.options import EXIT_OK, Parser
from esper.telemetry import anomalies, event_parts
from esper.telemetry import events as ev
from esper.telemetry.codec import NON_FINITE_STRINGS
from esper.telemetry.state import Keyframe, Record

_COMMON_FIELDS = {
    "type": "Type of the record.",
    "round": "Number of the round, from 1.",
    "step": "Number of the step in its round, from 1.",
    "env": "Index of the env, from 0.",
    "slot": "Name of the slot.",
}
"""Descriptions of fields that mean the same in every record."""
_NOT_FINITE = {
    "enum": list(NON_FINITE_STRINGS),
    "description": "A number that was measured and is not finite. A number that was not measured is absent.",
}


def run(arguments: Sequence[str]) -> int:
    """Print the schema."""
    parser = Parser(
        prog="esper-sanctum schema",
        description="Print the JSON Schema to which every line of a recording conforms",
        epilog='Numbers that are not finite are the strings "NaN", "Infinity" and "-Infinity"; values that were not '
        "measured are absent.",
    )
    parser.parse_args(arguments)
    print(msgspec.json.format(msgspec.json.encode(json_schema()), indent=2).decode())
    return EXIT_OK


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of one line of a recording: an event, or the keyframe that starts a segment."""
    schema = msgspec.json.schema(Record)
    described = _descriptions()
    for name, definition in schema["$defs"].items():
        for field, value in definition["properties"].items():
            value["description"] = described[name].get(field) or _COMMON_FIELDS[field]
    _allow_not_finite(schema)
    schema["$defs"]["NotFinite"] = _NOT_FINITE
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Line of an esper-sanctum recording, schema {ev.SCHEMA_VERSION}",
        "description": inspect.cleandoc(ev.__doc__ or ""),
        **schema,
    }


def _descriptions() -> dict[str, dict[str, str]]:
    """Return the docstring of each field, keyed by struct and field. Read from the source: Python discards them."""
    sources = (ev, anomalies, event_parts, Keyframe)
    classes = [node for source in sources for node in ast.parse(inspect.getsource(source)).body]
    documented = {node.name: dict(_field_texts(node)) for node in classes if isinstance(node, ast.ClassDef)}
    for kind in (*get_args(ev.AnyEvent), Keyframe):
        bases = (documented.get(base.__name__, {}) for base in reversed(kind.__mro__))
        documented[kind.__name__] = {field: text for base in bases for field, text in base.items()}
    return documented


def _field_texts(body: ast.ClassDef) -> Iterator[tuple[str, str]]:
    name = None
    for node in body.body:
        match node:
            case ast.AnnAssign(target=ast.Name(id=name)):
                pass
            case ast.Expr(value=ast.Constant(value=str(text))) if name is not None:
                yield name, inspect.cleandoc(text)
            case _:
                name = None


def _allow_not_finite(node: Any) -> None:
    """Extend every number in a schema, in place, by the strings for non-finite numbers."""
    if isinstance(node, dict):
        schema = cast("dict[str, Any]", node)
        if schema.get("type") == "number":
            del schema["type"]
            schema["anyOf"] = [{"type": "number"}, {"$ref": "#/$defs/NotFinite"}]
            return
        for value in schema.values():
            _allow_not_finite(value)
    elif isinstance(node, list):
        for value in cast("list[Any]", node):
            _allow_not_finite(value)
