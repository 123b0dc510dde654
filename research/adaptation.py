"""Does a trained policy adapt to the network that it grows?

    python -m research.adaptation --checkpoint RUN --seed 4000

The policy plays held-out episodes as it is, without its memory, and with the measurements of another env. A policy that
adapts loses by both. The differences are paired. With several checkpoints, which must be training seeds of one
configuration, the last line is for all of them, with intervals over training seeds and episodes.

Takes about a quarter of an hour for each checkpoint (128 episodes of `digits_family`, two cores).
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

import numpy as np
from research.policies import TrainedPolicies, add_options, net_returns
from torch import Tensor

from esper.common.intervals import seeds_interval
from esper.studies.evaluation.episodes import run_episodes
from esper.training.policy.actions import ChosenAction
from esper.training.policy.agent import EnvStatus
from esper.training.policy.baselines import NonLearningAgent
from esper.training.ppo.agent import PPOAgent

MEASURED = ("losses", "scores", "train_loss", "train_score", "grad_norm")
"""Measurements of an env that the swap exchanges."""


def main() -> None:
    """Play the variants, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", nargs="+", required=True, help="one for each training seed")
    parser.add_argument("--episodes", type=int, default=128)
    add_options(parser)
    options = parser.parse_args()
    trained = TrainedPolicies(options.checkpoint, options.episodes, options)
    print("| checkpoint | net return | without memory | measurements of another env |")
    print("|---|---|---|---|")
    played: list[Mapping[str, np.ndarray]] = []
    with trained.open_pool(trained.config) as pool:
        for name, agent in zip(options.checkpoint, trained.agents(trained.config), strict=True):
            found = {
                variant: net_returns(run_episodes(pool, wrapper(agent), trained.config, lambda: None))
                for variant, wrapper in VARIANTS.items()
            }
            _print_row(name, [found])
            played.append(found)
    if len(played) > 1:
        _print_row("all", played)


def _print_row(name: str, played: Sequence[Mapping[str, np.ndarray]]) -> None:
    """Print a line of the table.

    Args:
        name: First cell.
        played: Net return of each episode, keyed by variant, for each training seed.
    """
    cells = [f"{np.mean([returns[WHOLE] for returns in played]):+.3f}"]
    for variant in VARIANTS:
        if variant != WHOLE:
            losses = [(returns[variant] - returns[WHOLE]).tolist() for returns in played]
            cells.append(seeds_interval(losses).signed)
    print(f"| {name} | {' | '.join(cells)} |", flush=True)


class Whole(NonLearningAgent):
    """A trained policy as it is."""

    def __init__(self, agent: PPOAgent) -> None:
        self._agent = agent

    def begin_round(self, uniforms_ETH: Tensor) -> None:
        """Begin the round of the policy."""
        self._agent.begin_round(uniforms_ETH)

    def act(self, step: int, views: Sequence[EnvStatus]) -> list[ChosenAction]:
        """Decide as the policy does."""
        return self._agent.act(step, views)


class Forgetful(Whole):
    """Resets the memory of a policy before each step."""

    def act(self, step: int, views: Sequence[EnvStatus]) -> list[ChosenAction]:
        """Decide as in the first step."""
        self._agent.hidden = self._agent.network.initial_state(self._agent.hidden[0].shape[1])
        return super().act(step, views)


class Swapped(Whole):
    """Shows a policy the measurements of the next env, which has another context. All else is the env's own."""

    def act(self, step: int, views: Sequence[EnvStatus]) -> list[ChosenAction]:
        """Decide from the measurements of the next env."""
        own = [[getattr(view, name) for name in MEASURED] for view in views]
        try:
            self._show(views, [*own[1:], own[0]])
            return super().act(step, views)
        finally:
            self._show(views, own)

    @staticmethod
    def _show(views: Sequence[EnvStatus], measured: Sequence[Sequence[object]]) -> None:
        for view, values in zip(views, measured, strict=True):
            for name, value in zip(MEASURED, values, strict=True):
                setattr(view, name, value)


WHOLE = "whole"
VARIANTS = {WHOLE: Whole, "without memory": Forgetful, "with swapped measurements": Swapped}


if __name__ == "__main__":
    main()
