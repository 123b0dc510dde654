"""Plans: the same ops at the same steps in every episode, written as text. Importing this module does not import torch.

    conv_light@early:0 depthwise@mid:1,tempo=5,alpha=0.7,style=linear_gate cull@mid:20

Each word is the blueprint of a new seed, or `cull`; its slot; the step, counted from 0; and options of the new seed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from esper.config import ConfigError
from esper.formatting import suggest

PLAN = "plan"
"""Policy that follows a plan."""
PREFIX = f"{PLAN}:"
"""Start of a policy reference that contains a plan, such as `plan:conv_light@early:0`."""
EXAMPLE = "conv_light@early:0 depthwise@mid:1"
CULL = "cull"
OPTIONS = ("tempo", "alpha", "style")
"""Options of a new seed: length of its first ramp in epochs, target of alpha, and curve and blend of the ramp."""
_WORD = re.compile(r"(?P<name>[^@:,\s]+)@(?P<slot>[^@:,\s]+):(?P<step>\d{1,9})(?P<options>(?:,[^=,\s]+=[^=,\s]+)*)")


class PlannedOp(NamedTuple):
    """One op of a plan."""

    name: str
    """Blueprint of a new seed, or `cull`."""
    slot: str
    step: int
    """Number of completed steps of the episode."""
    options: dict[str, str]
    """Options of a new seed that are given, keyed by name."""
    word: str
    """Text of the op, for messages."""
    position: int
    """Number of its first character in the plan, from 1."""

    def error(self, problem: str) -> ConfigError:
        """Return the error for this op: one sentence with its position."""
        return ConfigError(f"--plan: {self.word!r} at character {self.position}: {problem}")


def parse_plan(text: str, steps: int) -> list[PlannedOp]:
    """Return the ops of a plan, in the order of their steps.

    Raises:
        ConfigError: The plan is empty, a word is not an op, two ops have the same step, or an op can never be legal.
    """
    plan = [_parse_word(found[0], found.start() + 1) for found in re.finditer(r"\S+", text)]
    if not plan:
        raise ConfigError(
            f'--policy {PLAN} needs a plan, for example --plan "{EXAMPLE}"; --policies takes it as "{PREFIX}{EXAMPLE}"'
        )
    plan.sort(key=lambda op: op.step)
    planted: dict[str, bool] = {}
    for before, op in zip([None, *plan], plan, strict=False):
        if op.step >= steps:
            raise op.error(f"the episode has {steps} steps, 0 to {steps - 1}")
        if before is not None and before.step == op.step:
            raise op.error(f"{before.word!r} is planned for the same step; an env takes one op per step")
        if (op.name == CULL) != planted.get(op.slot, False):
            problem = "no seed is planned there before" if op.name == CULL else "the seed before it is never culled"
            raise op.error(problem)
        planted[op.slot] = op.name != CULL
    return plan


def _parse_word(word: str, position: int) -> PlannedOp:
    found = _WORD.fullmatch(word)
    op = PlannedOp(word, "", 0, {}, word, position)
    if found is None:
        raise op.error("expected BLUEPRINT@SLOT:STEP, such as conv_light@early:0, or cull@SLOT:STEP")
    pairs = [pair.split("=") for pair in found["options"].split(",")[1:]]
    for name, _ in pairs:
        if name not in OPTIONS:
            raise op.error(f"{name!r} is not an option; {suggest(name, OPTIONS)}")
    if pairs and found["name"] == CULL:
        raise op.error("cull has no options")
    return op._replace(name=found["name"], slot=found["slot"], step=int(found["step"]), options=dict(pairs))


def split_plan(reference: str) -> tuple[str, str]:
    """Return the name and the plan of a policy reference: `plan:conv_light@early:0` is the policy `plan` with it."""
    return (PLAN, reference.removeprefix(PREFIX)) if reference.startswith(PREFIX) else (reference, "")


def check_names(plan: Sequence[PlannedOp], blueprints_by_slot: dict[str, Sequence[str]]) -> None:
    """Check the slots and blueprints of a plan.

    Args:
        blueprints_by_slot: Blueprints that each slot offers, keyed by its name.

    Raises:
        ConfigError: A slot does not exist, or it does not offer the blueprint.
    """
    for op in plan:
        if op.slot not in blueprints_by_slot:
            raise op.error(f"{op.slot!r} is not a slot; {suggest(op.slot, blueprints_by_slot)}")
        offered = blueprints_by_slot[op.slot]
        if op.name not in (CULL, *offered):
            raise op.error(f"{op.name!r} is not a blueprint of the slot {op.slot}; {suggest(op.name, offered)}")
