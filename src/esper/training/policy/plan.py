"""Plans: the same decisions at the same steps in every episode. Importing this module does not import torch.

    1:conv_light@early 2:depthwise@mid,tempo=5,alpha=0.7,style=linear_gate 21:cull@mid

Each word is a decision, as in `esper.common.decisions`; a plan only plants and culls seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from esper.common.configuration.config import ConfigError
from esper.common.decisions import CULL, GERMINATE, PlannedDecision, parse_decision
from esper.common.formatting import suggest

PLAN = "plan"
"""Policy that follows a plan."""
PREFIX = f"{PLAN}:"
"""Start of a policy reference that contains a plan, such as `plan:1:conv_light@early`."""
EXAMPLE = "1:conv_light@early 2:depthwise@mid"


def plan_error(planned: PlannedDecision, problem: object) -> ConfigError:
    """Return the error for a decision of a plan: one sentence that names it."""
    return ConfigError(f"plan: '{planned}': {problem}")


def parse_plan(text: str, steps: int) -> list[PlannedDecision]:
    """Return the decisions of a plan, in the order of their steps.

    Raises:
        ConfigError: The plan is empty, a word is not a decision, two have the same step, or one can never be legal.
    """
    try:
        plan = [parse_decision(word) for word in text.split()]
    except ConfigError as error:
        raise ConfigError(f"plan: {error}") from None
    if not plan:
        raise ConfigError(
            f'--policy {PLAN} needs a plan, for example --plan "{EXAMPLE}"; --policies takes it as "{PREFIX}{EXAMPLE}"'
        )
    plan.sort(key=lambda planned: planned.step)
    has_seed: dict[str | None, bool] = {}
    for before, planned in zip([None, *plan], plan, strict=False):
        step, decision = planned
        if decision.op not in (GERMINATE, CULL):
            raise plan_error(planned, "a plan only plants and culls seeds; it advances them by itself")
        if step > steps:
            raise plan_error(planned, f"the episode has steps 1 to {steps}")
        if before is not None and before.step == step:
            raise plan_error(planned, f"'{before}' is planned for the same step; an env takes one decision per step")
        if (decision.op == CULL) != has_seed.get(decision.slot, False):
            is_cull = decision.op == CULL
            raise plan_error(
                planned, "no seed is planned there before" if is_cull else "the seed before it is never culled"
            )
        has_seed[decision.slot] = decision.op == GERMINATE
    return plan


def split_plan(reference: str) -> tuple[str, str]:
    """Return the name and the plan of a policy reference: `plan:1:norm@early` is the policy `plan` with a plan."""
    return (PLAN, reference.removeprefix(PREFIX)) if reference.startswith(PREFIX) else (reference, "")


def check_names(plan: Sequence[PlannedDecision], blueprints_by_slot: Mapping[str, Sequence[str]]) -> None:
    """Check the slots and blueprints of a plan.

    Args:
        blueprints_by_slot: Blueprints that each slot offers, keyed by its name.

    Raises:
        ConfigError: A slot does not exist, or it does not offer the blueprint.
    """
    for planned in plan:
        slot, blueprint = str(planned.decision.slot), planned.decision.blueprint
        if slot not in blueprints_by_slot:
            raise plan_error(planned, f"{slot!r} is not a slot; {suggest(slot, blueprints_by_slot)}")
        offered = blueprints_by_slot[slot]
        if blueprint is not None and blueprint not in offered:
            raise plan_error(
                planned, f"{blueprint!r} is not a blueprint of the slot {slot}; {suggest(blueprint, offered)}"
            )
