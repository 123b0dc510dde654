"""Compares a trained policy at several rents with plans, and draws its front of accuracy against parameters.

    python -m research.rents --checkpoint RUN --seed 5100 --plan "conv_heavy@first:0" "depthwise@first:0"

The policy observes the rent. At each rent it is compared with the plan that is best at that rent. The best plan is
chosen on the same episodes, in favour of the plans. All policies play the same held-out episodes. With several
checkpoints, which must be training seeds of one configuration, the intervals are over training seeds and episodes.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
from research.rent_meter import RentMeter

from esper.checkpoint.catalog import find_checkpoint
from esper.config import Config
from esper.engine.agent_factory import build_trained
from esper.engine.trained_policy import policy_of
from esper.evaluation.comparison import build_report
from esper.evaluation.cpu_time import cpu_seconds
from esper.evaluation.episodes import run_episodes
from esper.evaluation.figure import check_figure, draw_text, write_figure
from esper.evaluation.held_out import held_out_config, prepare_held_out, read_training_seeds
from esper.evaluation.intervals import seeds_interval
from esper.evaluation.results import PolicyRun
from esper.lanes.devices import resolve_devices
from esper.lanes.pool import EnvPool
from esper.policy.agent import Agent
from esper.policy.plan import parse_plan
from esper.policy.plan_agent import PlanAgent
from esper.recording.runs import resolve_run
from esper.tasks.family import RENT, settings_of_family

RENTS = (0.0005, 0.001, 0.002, 0.004, 0.008)
STATIC = "static"
FIGURE_COLUMNS, FIGURE_ROWS = 100, 16


def main() -> None:
    """Play the policy at each rent and every plan once, and print the table and the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", nargs="+", required=True, help="one for each training seed")
    parser.add_argument("--telemetry-dir", type=Path, default=Path("telemetry"))
    parser.add_argument("--task", help="another task than that of the checkpoint; needed if that is a file")
    parser.add_argument("--rents", type=float, nargs="+", default=RENTS)
    parser.add_argument("--plan", nargs="+", default=[])
    parser.add_argument("--episodes", type=int, default=64, help="episodes for each rent")
    parser.add_argument("--seed", type=int, required=True, help="random seed of the episodes, as of evaluate")
    parser.add_argument("--devices", nargs="+", default=["auto"])
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    if options.figure:
        check_figure(options.figure)
    paths = [find_checkpoint(resolve_run(name, options.telemetry_dir)) for name in options.checkpoint]
    trained = read_training_seeds(paths)
    prepared = prepare_held_out(trained[0], options.task)
    if RENT in settings_of_family(prepared.task):
        parser.error(f"the task {prepared.task.name} draws the rent itself: give another one with --task")
    config = held_out_config(prepared.config, options.episodes, options.seed)
    if config.reward_weights.rent == 0:
        parser.error("the policy was trained without a rent")
    profile = prepared.profile
    policies = [policy_of(checkpoint, path) for checkpoint, path in zip(trained, paths, strict=True)]
    runs: dict[str, list[PolicyRun]] = {}
    gains: dict[str, np.ndarray] = {}
    grown: dict[str, np.ndarray] = {}
    with closing(EnvPool(prepared.task, profile, prepared.data, resolve_devices(options.devices), config)) as pool:
        for plan in (STATIC, *options.plan):
            ops = [] if plan == STATIC else parse_plan(plan, config.steps)
            meter = RentMeter(PlanAgent(ops, profile.sites, profile.blueprints))
            runs[plan] = [_play(pool, meter, config)]
            grown[plan] = np.array(meter.sums())
            gains[plan] = _returns(runs[plan][0]) + config.reward_weights.rent * grown[plan]
        for rent in options.rents:
            weights = msgspec.structs.replace(config.reward_weights, rent=rent)
            at_rent = msgspec.structs.replace(config, reward_weights=weights)
            agents = [build_trained(policy, at_rent, profile.sites, profile.blueprints) for policy in policies]
            runs[f"ppo at {rent:g}"] = [_play(pool, agent, at_rent) for agent in agents]
    _print_table(runs, gains, grown, options.rents)
    report = build_report(
        runs, checkpoints=[str(path) for path in paths], task=prepared.task.name, steps=config.steps, seed=options.seed
    )
    print("\n".join(["", *draw_text(report, FIGURE_COLUMNS, FIGURE_ROWS)]))
    if options.figure:
        write_figure(report, options.figure)


def _play(pool: EnvPool, agent: Agent, config: Config) -> PolicyRun:
    start = cpu_seconds()
    episodes = run_episodes(pool, agent, config, lambda: None)
    return PolicyRun(episodes=episodes, cpu_seconds=cpu_seconds() - start)


def _returns(run: PolicyRun) -> np.ndarray:
    return np.array([episode.net_return for episode in run.episodes])


def _print_table(
    runs: dict[str, list[PolicyRun]],
    gains: dict[str, np.ndarray],
    grown: dict[str, np.ndarray],
    rents: Sequence[float],
) -> None:
    print(
        "| rent | accuracy of PPO, % | parameters | breakdowns | net return | best plan | net return | PPO minus plan |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for rent in rents:
        of_seeds = runs[f"ppo at {rent:g}"]
        returns_SE = np.array([_returns(run) for run in of_seeds])
        episodes = [episode for run in of_seeds for episode in run.episodes]
        by_plan = {plan: gains[plan] - rent * grown[plan] for plan in gains}
        best = max(by_plan, key=lambda plan: float(by_plan[plan].mean()))
        accuracy = np.mean([episode.test_score for episode in episodes])
        ratio = np.mean([episode.parameter_ratio for episode in episodes])
        broken = sum(episode.broke_down for episode in episodes)
        difference = seeds_interval((returns_SE - by_plan[best]).tolist()).signed
        print(
            f"| {rent:g} | {100 * accuracy:.1f} | ×{ratio:.2f} | {broken} | {returns_SE.mean():+.3f} | {best} | "
            f"{by_plan[best].mean():+.3f} | {difference} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
