"""Loads the policy of the user that an option names. Importing this module does not import torch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, cast, get_args

from esper.common.configuration.config import ConfigError, PolicyName
from esper.common.user_code.references import Reference, parse_reference
from esper.training.policy.plan import PLAN, parse_plan

if TYPE_CHECKING:
    import torch

    from esper.networks.seeds.site import SlotSite
    from esper.training.policy.agent import Agent

PRETRAINED = "pretrained"
"""Name of the trained policy that ships in the package."""
POLICY_NAMES: tuple[str, ...] = get_args(PolicyName)
"""Names of the built-in policies; the first is the default."""


class PolicyFactory(Protocol):
    """A policy of the user: called once per run, it returns an object with the methods of `Agent`."""

    def __call__(
        self,
        *,
        sites: Sequence[SlotSite],
        blueprints: Sequence[str],
        envs: int,
        steps: int,
        generator: torch.Generator,
    ) -> Agent:
        """Build the policy.

        Args:
            sites: Places of the slots of an env, with the blueprints that each offers.
            blueprints: Names of the blueprints that the policy can select; actions hold indices into them.
            envs: Number of envs.
            steps: Number of steps of an episode.
            generator: Generator for initial values, seeded by the run.
        """
        ...


def is_own_policy(reference: str) -> bool:
    """Return True if `--policy` names code of the user, and neither a built-in policy nor the path of a checkpoint."""
    is_file = reference.rpartition(":")[0].endswith(".py") or reference.endswith(".py")
    return reference not in POLICY_NAMES and (is_file or os.sep not in reference)


def check_policy_reference(reference: str, plan: str, steps: int, others: Sequence[str] = ()) -> None:
    """Check that a policy can exist, without importing it.

    Args:
        reference: Value of `--policy`; the path of a checkpoint is not checked.
        plan: Value of `--plan`; empty without one.
        others: Names of policies that only this command has, to suggest for an unknown name.

    Raises:
        ConfigError: The file does not exist, no policy has this name, or the plan is missing, wrong, or not used.
    """
    if reference == PLAN:
        parse_plan(plan, steps)
    elif plan:
        raise ConfigError(f"--plan is for --policy {PLAN}, not --policy {reference}")
    if is_own_policy(reference):
        _parse(reference, others)


def load_policy(reference: str) -> PolicyFactory:
    """Import a policy of the user.

    Args:
        reference: Name of an entry point of `esper.policies`, `FILE.py`, `FILE.py:NAME` or `MODULE:NAME`.

    Raises:
        ConfigError: The policy does not exist, its code raises an exception, or it cannot be called.
    """
    from esper.common.user_code.imports import import_object  # imports torch

    found = _parse(reference)
    policy, _ = import_object(found)
    if not callable(policy):
        raise ConfigError(f"{found.text}: {found.attribute} is a {type(policy).__name__}, not a function or class")
    return cast("PolicyFactory", policy)


def _parse(reference: str, others: Sequence[str] = ()) -> Reference:
    built_in = (*POLICY_NAMES, *others)
    return parse_reference("--policy", reference, group="esper.policies", attribute="policy", built_in=built_in)
