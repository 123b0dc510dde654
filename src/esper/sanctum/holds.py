"""Runs that are held by a fault: what leads on, and which keys do not."""

from __future__ import annotations

from typing import NamedTuple

from esper.control import Kind


class Hold(NamedTuple):
    """What a cause of `Paused` means for who looks on."""

    what: str
    """What has happened: for people."""
    way: str
    """What leads on: for people."""
    vain: frozenset[Kind]
    """What the engine would refuse."""


HOLDS: dict[str, Hold] = {
    "fault": Hold(
        "A step has failed, or run out of memory. The beginning of its round is saved.",
        "The step is half done: r goes back to a checkpoint, q ends the run.",
        frozenset({Kind.PAUSE, Kind.RESUME, Kind.STEP, Kind.CHECKPOINT}),
    ),
    "unsaved": Hold(
        "A step has failed, or run out of memory, and the beginning of its round cannot be saved.",
        "Make room: c tries again. r goes back to an older checkpoint; q tries again, or leaves without one.",
        frozenset({Kind.PAUSE, Kind.RESUME, Kind.STEP}),
    ),
    "recording": Hold(
        "Events cannot be written: the disk is full, or the run's directory is gone. They wait in memory.",
        "Once that is mended, the run goes on by itself; q ends it.",
        frozenset({Kind.PAUSE, Kind.RESUME, Kind.STEP}),
    ),
    "checkpoint": Hold(
        "The checkpoint that was to end the run cannot be written.",
        "q tries again, or leaves without one; p goes on.",
        frozenset(),
    ),
}
"""By cause."""
_UNKNOWN = Hold("The run is held.", "A newer version of the program recorded why: see the reason.", frozenset())


def hold_of(cause: str) -> Hold:
    """What a cause means."""
    return HOLDS.get(cause, _UNKNOWN)
