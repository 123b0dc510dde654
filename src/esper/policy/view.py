"""What a policy may know of an env: the same for PPO, the heuristic and every baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from esper.growth.slot import Slot


@dataclass(kw_only=True, slots=True)
class EnvView:
    """One env as it stands before a decision. The engine writes it; policies read it."""

    env: int
    slots: Sequence[Slot]
    """Of the live network, in the order of the forward pass: read, never changed."""
    step: int = 0
    """Steps of the episode completed."""
    steps: int
    """Steps of an episode."""
    chance_loss: float
    """Cross-entropy of guessing, ln(classes): the scale of losses."""
    losses: list[float] = field(default_factory=list)
    """On the validation split: before the first step, then after each one."""
    accuracies: list[float] = field(default_factory=list)
    train_loss: float | None = None
    train_accuracy: float | None = None
    parameter_ratio: float = 1.0
    rent: float = 0.0
    """Charged in the last step, in units of accuracy."""
    last_op: int = 0
    last_moved: bool = False
    """Whether the last op took a seed to another stage; one that changes only its alpha does not."""
