"""Growth: the request for the growth of one network, and its results. Importing this does not import torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from esper.config import Config, ConfigError
from esper.policy.loading import POLICY_NAMES

if TYPE_CHECKING:
    from esper.harvest.grown import Grown

GROWTH_CONFIG: dict[str, Any] = {"rounds": 1, "policy": "pretrained", "envs": 4, "steps": 15}
"""Settings of a growth that differ from the defaults of a run."""
DEFAULT_PATIENCE = 5
"""Default of `Growth.patience`."""


def check_growth(config: Config, patience: int) -> None:
    """Check that a configuration grows one network in one round, with a policy that does not learn.

    Raises:
        ConfigError: It does not.
    """
    if config.rounds != 1:
        raise ConfigError(f"--rounds {config.rounds} is not valid: grow has one round, in which nothing learns")
    if config.policy == POLICY_NAMES[0]:
        raise ConfigError(
            "--policy ppo is not trained yet; give pretrained, or the run or the checkpoint of a trained policy"
        )
    if patience < 1:
        raise ConfigError(f"--patience {patience} is not valid: it must be 1 or more")


class Variant(NamedTuple):
    """One row of a comparison: the best network of several, trained for as many epochs as the grown one."""

    name: str
    test_score: float
    parameters: int
    seconds: float


@dataclass(kw_only=True)
class Growth:
    """Request for the growth of one network, and its results.

    Attributes:
        patience: Steps without an improvement of the best validation score after which the run stops.
        target: Function from the run directory to the directory of the harvest; None: nothing is written.
        compares: Also train the bare host, and the grown architecture from scratch, for as many epochs.
        grown: The best network, at the end of the run; None before, and if no step was completed.
        directory: Directory of the harvest; None if none was written.
        problem: Why the harvest has no program; None if it has one.
        failure: Why the harvest cannot be written; None if it was.
        comparison: Results of the grown network and of the networks it is compared with; empty without a comparison.
    """

    patience: int
    target: Callable[[Path], Path] | None = None
    compares: bool = False
    grown: Grown | None = None
    directory: Path | None = None
    problem: str | None = None
    failure: str | None = None
    comparison: list[Variant] = field(default_factory=list[Variant])
