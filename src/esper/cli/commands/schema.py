"""`schema`: the lines of a recording as JSON Schema."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Sequence
from typing import Any, get_args

import msgspec

from esper.cli.options import EXIT_OK, Parser
from esper.telemetry import event_parts
from esper.telemetry import events as ev
from esper.telemetry.codec import NON_FINITE_STRINGS
from esper.telemetry.state import Keyframe, Record


def run(arguments: Sequence[str]) -> int:
    """Print it."""
    parser = Parser(
        prog="esper-sanctum schema",
        description="Print the JSON Schema of the events: every line of a recording conforms to it. Numbers that are "
        'not finite are the strings "NaN", "Infinity" and "-Infinity"; what was not measured is absent.',
    )
    parser.parse_args(arguments)
    print(msgspec.json.format(msgspec.json.encode(json_schema()), indent=2).decode())
    return EXIT_OK


_COMMON_FIELDS = {
    "type": "What kind of record this is.",
    "round": "Number of the round, from 1.",
    "step": "Number of the step in its round, from 1.",
    "env": "Number of the env, from 0.",
    "slot": "Name of the slot.",
}
"""Fields that mean the same wherever they stand."""
_NOT_FINITE = {
    "enum": list(NON_FINITE_STRINGS),
    "description": "A number that was measured and is not finite. One that was not measured is absent.",
}


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of one line of a recording: any event, or the Keyframe with which a segment opens."""
    schema = msgspec.json.schema(Record)
    described = _descriptions()
    for name, definition in schema["$defs"].items():
        for field, value in definition["properties"].items():
            value["description"] = described[name].get(field) or _COMMON_FIELDS[field]
    _allow_not_finite(schema)
    schema["$defs"]["NotFinite"] = _NOT_FINITE
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"A line of a recording of esper-sanctum, schema {ev.SCHEMA_VERSION}",
        "description": inspect.cleandoc(ev.__doc__ or ""),
        **schema,
    }


def _descriptions() -> dict[str, dict[str, str]]:
    """By struct and field, the text that stands below the field in the source: Python does not keep it."""
    sources = (ev, event_parts, Keyframe)
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
    """Wherever a number may stand, so may the words for one that is not finite."""
    if isinstance(node, dict):
        if node.get("type") == "number":
            del node["type"]
            node["anyOf"] = [{"type": "number"}, {"$ref": "#/$defs/NotFinite"}]
            return
        for value in node.values():
            _allow_not_finite(value)
    elif isinstance(node, list):
        for value in node:
            _allow_not_finite(value)
