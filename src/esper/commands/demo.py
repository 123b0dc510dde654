"""`esper-sanctum demo`: the recorded run that ships with the package, replayed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from esper.commands.options import Parser
from esper.commands.replay import parse_replay, replay
from esper.recording.segments import ReadError


def run(arguments: Sequence[str]) -> int:
    """Show it."""
    parser = Parser(prog="esper-sanctum demo", description="Replay the recorded run that ships with the package.")
    chosen = parse_replay(parser, arguments)
    return replay(find_demo(), chosen)


def find_demo() -> Path:
    """Where it is: an installed package has it inside, a checkout at its root. Raises ReadError if it is at neither."""
    package = Path(__file__).resolve().parents[1]
    places = (package / "demo", package.parents[1] / "telemetry" / "demo")
    for place in places:
        if place.is_dir():
            return place
    raise ReadError(f"the demo is missing: there is no directory {places[0]}; install the package again")
