"""Definitions of the curves that a RunState keeps: those of the policy, by round, and of the memories, by sample.

They are kept over the whole run, so that a screen shows them at once, however long the recording is.
`recordings/history/curves.py` yields the same curves, and all others, from the events.
"""

from __future__ import annotations

from collections.abc import Iterator

from esper.recordings import events as ev

POLICY_OWNER = "policy"
"""Owner of the curves of a policy update, as in `entropy/policy`."""
UPDATE_QUANTITIES = {
    "episode_return": "mean return",
    "learning_rate": "learning rate",
    "entropy": "entropy",
    "kl": "KL",
    "clip_fraction": "clip fraction",
    "explained_variance": "explained variance",
    "within_step_explained_variance": "explained variance within a step",
    "policy_loss": "policy loss",
    "value_loss": "value loss",
    "grad_norm": "gradient norm",
}
"""Quantities of PolicyUpdated, keyed by field."""
HEAD_QUANTITIES = {"grad_norm": "gradient norm", "entropy": "entropy"}
"""Quantities of HeadReading, keyed by field."""
MEMORY_QUANTITIES = {"allocated": "memory allocated", "reserved": "memory reserved", "used": "memory used"}
"""Quantities of DeviceSampled about a memory, in bytes, keyed by field."""


def head_curve(quantity: str, head: str) -> str:
    """Return the name of the curve of a policy head."""
    return f"{quantity}/head {head}"


def update_values(event: ev.PolicyUpdated) -> Iterator[tuple[str, float | None]]:
    """Yield the name of each curve of a policy update, and its value; None if it was not measured."""
    for field, quantity in UPDATE_QUANTITIES.items():
        yield f"{quantity}/{POLICY_OWNER}", getattr(event, field)
    for head, reading in event.heads.items():
        for field, quantity in HEAD_QUANTITIES.items():
            yield head_curve(quantity, head), getattr(reading, field)


def memory_values(event: ev.DeviceSampled) -> Iterator[tuple[str, float | None]]:
    """Yield the name of each curve of the memory of a device, and its bytes; None if they were not measured."""
    for field, quantity in MEMORY_QUANTITIES.items():
        size = getattr(event, field)
        yield f"{quantity}/{event.device}", None if size is None else float(size)
