"""`schema`: prints the JSON Schema of a line of a recording, or of the output of a command."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from types import ModuleType
from typing import Any, cast

import msgspec

from esper.cli.options import EXIT_OK, Parser
from esper.cli.streams import print_json
from esper.common.configuration.config import ConfigError
from esper.common.configuration.docstrings import field_docstrings
from esper.common.formatting import suggest
from esper.recordings import events as ev
from esper.recordings.candidates import candidates
from esper.recordings.effects import report
from esper.recordings.events.codec import NON_FINITE_STRINGS
from esper.recordings.history import group_summary, run_info, summary
from esper.recordings.history.group_summary import GroupSummary
from esper.recordings.history.run_info import RunInfo
from esper.recordings.history.summary import RunSummary
from esper.recordings.state import search_state, state

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_OUTPUTS: dict[str, tuple[Any, ModuleType, str]] = {
    "show": (RunSummary, summary, "Output of `esper-sanctum show --json`"),
    "compare": (list[RunSummary], summary, "Output of `esper-sanctum compare --json`"),
    "compare-groups": (list[GroupSummary], group_summary, "Output of `esper-sanctum compare --group-by --json`"),
    "runs": (list[RunInfo], run_info, "Output of `esper-sanctum runs --json`"),
    "whatif": (report.Report, report, "Output of `esper-sanctum whatif --json`"),
}
"""Type of the output of each command, the module that describes it, and its title."""
EVENTS = "events"
_COMMON_FIELDS = {
    "type": "Type of the record.",
    "answer": "Kind of the answer.",
    "round": "Number of the round, from 1.",
    "step": "Number of the step in its round, from 1.",
    "env": "Index of the env, from 0.",
    "slot": "Name of the slot.",
    "run": "Name of the run.",
    "path": "Path of the run.",
    "task": "Task that the hosts learn.",
    "policy": "Policy that decides what grows.",
    "seed": "Random seed.",
    "host_parameters": "Parameters of the bare host.",
    "versions": "Versions of esper-sanctum, Python and torch.",
    "config": "Resolved configuration.",
    "score": "Validation score.",
    "best": "Best validation score.",
    "pauses": "Number of pauses.",
    "planted": "Number of planted seeds.",
    "fossilized": "Number of fossilized seeds.",
    "culled": "Number of culled seeds.",
}
"""Descriptions of fields that mean the same wherever they occur."""
_NOT_FINITE = {
    "enum": list(NON_FINITE_STRINGS),
    "description": "A number that was measured and is not finite. A number that was not measured is absent.",
}


def run(arguments: Sequence[str]) -> int:
    """Print the schema."""
    parser = Parser(
        prog="esper-sanctum schema",
        description="Print the JSON Schema to which every line of a recording conforms, or the output of a command",
        epilog='Numbers that are not finite are the strings "NaN", "Infinity" and "-Infinity"; values that were not '
        "measured are absent.",
    )
    choices = (EVENTS, *_OUTPUTS)
    parser.add_argument(
        "--of",
        default=EVENTS,
        metavar="WHAT",
        help=f"{EVENTS}, or a command with --json: {', '.join(_OUTPUTS)} (default: {EVENTS})",
    )
    options = parser.parse_args(arguments)
    if options.of not in choices:
        raise ConfigError(f"--of {options.of!r} has no schema; {suggest(options.of, choices)}")
    schema = json_schema() if options.of == EVENTS else output_schema(options.of)
    print_json(msgspec.json.format(msgspec.json.encode(schema), indent=2))
    return EXIT_OK


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of one line of a recording: an event, or the keyframe that starts a segment."""
    return {
        "$schema": _DIALECT,
        "title": f"Line of an esper-sanctum recording, schema {ev.SCHEMA_VERSION}",
        "description": inspect.cleandoc(ev.__doc__ or ""),
        **_schema_of(state.Record, candidates, ev, search_state, state),
    }


def output_schema(command: str) -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of the output of a command with `--json`."""
    kind, module, title = _OUTPUTS[command]
    return {"$schema": _DIALECT, "title": title, **_schema_of(kind, candidates, ev, search_state, module)}


def _schema_of(kind: Any, *modules: ModuleType) -> dict[str, Any]:
    """Return the schema of a type, with descriptions of the fields of its structs, which the modules contain."""
    schema = msgspec.json.schema(kind)
    structs = {name: struct for module in modules for name, struct in vars(module).items()}
    for name, definition in schema["$defs"].items():
        if "properties" not in definition:  # a named tuple is an array
            definition["description"] = ", ".join(structs[name]._fields).replace("_", " ")
            continue
        texts = field_docstrings(structs[name])
        for field, value in definition["properties"].items():
            value["description"] = texts.get(field) or _COMMON_FIELDS[field]
    _allow_not_finite(schema)
    schema["$defs"]["NotFinite"] = _NOT_FINITE
    return schema


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
