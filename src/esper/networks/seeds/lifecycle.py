"""Lifecycle of a seed: the legal transitions between stages, and the gates that guard them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from esper.common.domain import Stage

LEGAL_TRANSITIONS: Mapping[Stage, frozenset[Stage]] = MappingProxyType(
    {
        Stage.DORMANT: frozenset({Stage.GERMINATED}),
        Stage.GERMINATED: frozenset({Stage.TRAINING, Stage.CULLED}),
        Stage.TRAINING: frozenset({Stage.BLENDING, Stage.CULLED}),
        Stage.BLENDING: frozenset({Stage.PROBATIONARY, Stage.CULLED}),
        Stage.PROBATIONARY: frozenset({Stage.FOSSILIZED, Stage.BLENDING, Stage.CULLED}),
        Stage.FOSSILIZED: frozenset(),
        Stage.CULLED: frozenset({Stage.EMBARGOED}),
        Stage.EMBARGOED: frozenset({Stage.DORMANT}),
    }
)
"""Legal next stages of each stage."""


class StageTransition(NamedTuple):
    """A change of a slot's stage."""

    slot: str
    before: Stage
    after: Stage
    blueprint: str | None
    reason: str
    """The operation, the gate or the timer that caused it."""


class IllegalTransitionError(RuntimeError):
    """An operation on a slot that its stage or a gate does not allow."""


@dataclass(frozen=True, kw_only=True)
class GateConfig:
    """Thresholds of the gates and timers of the lifecycle."""

    training_epochs: int = 2
    """G2: minimum number of epochs in TRAINING."""
    max_grad_norm: float = 100.0
    """G2: maximum mean gradient norm of the seed; above it, training counts as exploding."""
    require_dependence: bool = True
    """G5: require that the dependence was measured. False if counterfactuals are off."""
    cull_age: int = 3
    """Minimum age in epochs at which the policy can cull a seed."""
    embargo_epochs: int = 5
    """Epochs for which an emptied slot stays EMBARGOED."""


class Check(NamedTuple):
    """One condition of a gate. `value` is None if not measured, `threshold` None if nothing is compared."""

    name: str
    passed: bool
    value: float | None = None
    threshold: float | None = None


class GateResult(NamedTuple):
    """Result of a gate: all its conditions, passed and failed."""

    gate: str
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """True if every condition holds."""
        return all(check.passed for check in self.checks)

    @property
    def failed_checks(self) -> tuple[str, ...]:
        """Names of the conditions that do not hold."""
        return tuple(check.name for check in self.checks if not check.passed)


def gate_g1(epochs: int) -> GateResult:
    """Check the transition to TRAINING: one epoch in GERMINATED."""
    return GateResult("G1", (Check("epochs germinated", epochs >= 1, epochs, 1),))


def gate_g2(epochs: int, grad_norm: float | None, config: GateConfig) -> GateResult:
    """Check the transition to BLENDING: enough epochs in TRAINING, and a measured, finite, bounded gradient norm."""
    checks = [
        Check("epochs in training", epochs >= config.training_epochs, epochs, config.training_epochs),
        Check("gradient measured", grad_norm is not None),
    ]
    if grad_norm is not None:
        checks.append(Check("gradient finite", math.isfinite(grad_norm), grad_norm))
        checks.append(
            Check("gradient not exploding", grad_norm <= config.max_grad_norm, grad_norm, config.max_grad_norm)
        )
    return GateResult("G2", tuple(checks))


def gate_g3(alpha: float, target: float) -> GateResult:
    """Check the transition to PROBATIONARY: alpha is at its target."""
    return GateResult("G3", (Check("alpha at target", alpha == target, alpha, target),))


def gate_g5(dependence: float | None, config: GateConfig) -> GateResult:
    """Check the transition to FOSSILIZED: the dependence was measured, if `config` requires it."""
    measured = Check("dependence measured", dependence is not None, dependence)
    return GateResult("G5", (measured,) if config.require_dependence else ())
