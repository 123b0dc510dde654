"""Measures the loss of a trained policy without its memory, and with the measurements of another env.

    python -m research.adaptation --checkpoint RUN --seed 4000 --episodes 128

A policy that adapts loses by both. All variants play the same held-out episodes; the differences are paired. The last
of several checkpoints is followed by a line for all of them, with intervals over training seeds and episodes.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
from torch import Tensor

from esper.checkpoint.catalog import find_checkpoint
from esper.checkpoint.files import read_checkpoint
from esper.engine.agent_factory import build_trained
from esper.engine.trained_policy import policy_of
from esper.evaluation.episodes import run_episodes
from esper.evaluation.held_out import held_out_config, prepare_held_out
from esper.evaluation.intervals import seeds_interval
from esper.lanes.devices import resolve_devices
from esper.lanes.pool import EnvPool
from esper.policy.actions import Decision
from esper.policy.agent import EnvStatus
from esper.policy.baselines import NonLearningAgent
from esper.ppo.agent import PPOAgent
from esper.recording.runs import resolve_run

MEASURED = ("losses", "scores", "train_loss", "train_score", "grad_norm")
"""Measurements of an env that the swap exchanges."""


def main() -> None:
    """Play the variants, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", nargs="+", required=True)
    parser.add_argument("--telemetry-dir", type=Path, default=Path("telemetry"))
    parser.add_argument("--task", help="another task than that of the checkpoint; needed if that is a file")
    parser.add_argument("--episodes", type=int, default=128)
    parser.add_argument("--seed", type=int, required=True, help="random seed of the episodes, as of evaluate")
    parser.add_argument("--devices", nargs="+", default=["auto"])
    options = parser.parse_args()
    print("| checkpoint | net return | without memory | measurements of another env |")
    print("|---|---|---|---|")
    played: list[dict[str, np.ndarray]] = []
    for name in options.checkpoint:
        played.append(_play(name, options))
        _print_row(name, played[-1:])
    if len(played) > 1:
        _print_row("all", played)


def _print_row(name: str, played: Sequence[dict[str, np.ndarray]]) -> None:
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


def _play(name: str, options: argparse.Namespace) -> dict[str, np.ndarray]:
    """Return the net return of each episode, keyed by variant."""
    path = find_checkpoint(resolve_run(name, options.telemetry_dir))
    checkpoint = read_checkpoint(path)
    prepared = prepare_held_out(checkpoint, options.task)
    config = held_out_config(prepared.config, options.episodes, options.seed)
    lanes, profile = resolve_devices(options.devices), prepared.profile
    found: dict[str, np.ndarray] = {}
    with closing(EnvPool(prepared.task, profile, prepared.data, lanes, config)) as pool:
        for variant, wrapper in VARIANTS.items():
            agent = build_trained(policy_of(checkpoint, path), config, profile.sites, profile.blueprints)
            episodes = run_episodes(pool, wrapper(agent), config, lambda: None)
            found[variant] = np.array([episode.net_return for episode in episodes])
    return found


class Whole(NonLearningAgent):
    """A trained policy as it is."""

    def __init__(self, agent: PPOAgent) -> None:
        self._agent = agent

    def begin_round(self, uniforms_ETH: Tensor) -> None:
        """Begin the round of the policy."""
        self._agent.begin_round(uniforms_ETH)

    def act(self, step: int, views: Sequence[EnvStatus]) -> list[Decision]:
        """Decide as the policy does."""
        return self._agent.act(step, views)


class Forgetful(Whole):
    """Resets the memory of a policy before each step."""

    def act(self, step: int, views: Sequence[EnvStatus]) -> list[Decision]:
        """Decide as in the first step."""
        self._agent.hidden = self._agent.network.initial_state(len(views))
        return super().act(step, views)


class Swapped(Whole):
    """Shows a policy the measurements of the next env, which has another context. All else is the env's own."""

    def act(self, step: int, views: Sequence[EnvStatus]) -> list[Decision]:
        """Decide from the measurements of the next env."""
        own = [[getattr(view, name) for name in MEASURED] for view in views]
        try:
            for view, values in zip(views, [*own[1:], own[0]], strict=True):
                for name, value in zip(MEASURED, values, strict=True):
                    setattr(view, name, value)
            return super().act(step, views)
        finally:
            for view, values in zip(views, own, strict=True):
                for name, value in zip(MEASURED, values, strict=True):
                    setattr(view, name, value)


WHOLE = "whole"
VARIANTS = {WHOLE: Whole, "without memory": Forgetful, "with swapped measurements": Swapped}


if __name__ == "__main__":
    main()
