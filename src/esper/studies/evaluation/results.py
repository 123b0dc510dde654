"""Results of episodes, and the policies that only an evaluation has. Importing this module does not import torch."""

from __future__ import annotations

import msgspec

from esper.studies.harvest.structure import GrownSeed
from esper.training.policy.loading import PRETRAINED

PPO = "ppo"
RETRAINED = "retrained"
"""The networks that PPO grew, trained from scratch, with all seeds from the start."""
WIDE = "wide"
"""A host that is as much wider as PPO's networks are larger, without seeds."""
EVALUATION_POLICIES = (RETRAINED, WIDE)
"""Policies that only an evaluation has."""
NEED_PPO = (RETRAINED, WIDE)
"""Policies that are made from the networks of PPO."""
TRAINED = (PPO, PRETRAINED)
"""Policies whose plantings can be left out in turn."""
PER_TRAINING_SEED = (PPO, *EVALUATION_POLICIES)
"""Policies that are other ones for each training seed."""


class EpisodeResult(msgspec.Struct, frozen=True, kw_only=True):
    """Results of one episode, at its end. Accuracies are fractions, 0 to 1."""

    test_score: float
    validation_score: float
    parameter_ratio: float
    """Parameters of the network, divided by those of the bare host."""
    net_return: float
    """Final minus initial validation score, minus the rent of all steps and the costs of all ops: the undiscounted
    return of the `simplified` reward. If the env broke down, the final score is that of the step of the breakdown,
    not that after the rollback, and the penalty is subtracted."""
    test_return: float
    """The same with the gain on the test split, which nothing was chosen on, in place of that on the validation
    split."""
    steps: int
    """Completed steps; fewer than those of an episode if the env broke down."""
    broke_down: bool
    """True if the env broke down."""
    seeds: list[GrownSeed]
    """The seeds that affect the network's output."""


class PolicyRun(msgspec.Struct, frozen=True, kw_only=True):
    """All episodes of a policy, for one training seed."""

    episodes: list[EpisodeResult]
    cpu_seconds: float
    """CPU time of all processes."""
