"""`esper-sanctum schema`: what the lines of a recording hold, as JSON Schema."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from esper.commands.options import DONE, Parser
from esper.telemetry.schema import json_schema


def run(arguments: Sequence[str]) -> int:
    """Print it."""
    parser = Parser(
        prog="esper-sanctum schema",
        description="Print the JSON Schema of the events: every line of a recording conforms to it. Numbers that are "
        'not finite are the strings "NaN", "Infinity" and "-Infinity"; what was not measured is absent.',
    )
    parser.parse_args(arguments)
    print(msgspec.json.format(msgspec.json.encode(json_schema()), indent=2).decode())
    return DONE
