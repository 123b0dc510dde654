"""Is one trained policy as good at each rent as the best plan for that rent?

    python -m research.rents --checkpoint RUN --seed 5100 --plan "conv_heavy@first:0" "depthwise@first:0"

The policy observes the rent. At each rent it is compared with the plan that is best at that rent, which is chosen on
the same episodes, in favour of the plans. All policies play the same held-out episodes. With several checkpoints, which
must be training seeds of one configuration, the intervals are over training seeds and episodes. A figure shows accuracy
against parameters.

Takes about a quarter of an hour for one checkpoint and six plans (64 episodes of `digits_family`, two cores).
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
from research.policies import TrainedPolicies, add_options, net_returns, plan_agent
from research.rent_meter import RentMeter

from esper.config import Config
from esper.evaluation.comparison import build_report
from esper.evaluation.episodes import run_episodes
from esper.evaluation.figure import check_figure, draw_text, write_figure
from esper.evaluation.results import PolicyRun
from esper.intervals import seeds_interval
from esper.lanes.pool import EnvPool
from esper.policy.agent import Agent
from esper.process import cpu_seconds
from esper.tasks.family import RENT, settings_of_family

RENTS = (0.0005, 0.001, 0.002, 0.004, 0.008)
STATIC = "static"
FIGURE_COLUMNS, FIGURE_ROWS = 100, 16


def main() -> None:
    """Play the policy at each rent and every plan once, and print the table and the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", nargs="+", required=True, help="one for each training seed")
    parser.add_argument("--plan", nargs="+", default=[])
    parser.add_argument("--episodes", type=int, default=64, help="episodes for each rent")
    parser.add_argument("--figure", type=Path)
    add_options(parser)
    options = parser.parse_args()
    if options.figure:
        check_figure(options.figure)
    trained = TrainedPolicies(options.checkpoint, options.episodes, options)
    config, task, profile = trained.config, trained.prepared.task, trained.prepared.profile
    if RENT in settings_of_family(task):
        parser.error(f"the task {task.name} draws the rent itself: give another one with --task")
    if config.reward_weights.rent == 0:
        parser.error("the policy was trained without a rent")
    runs: dict[str, list[PolicyRun]] = {}
    gains: dict[str, np.ndarray] = {}
    grown: dict[str, np.ndarray] = {}
    with trained.open_pool(config) as pool:
        for plan in (STATIC, *options.plan):
            meter = RentMeter(plan_agent("" if plan == STATIC else plan, profile, config.steps))
            runs[plan] = [_play(pool, meter, config)]
            grown[plan] = np.array(meter.sums())
            gains[plan] = net_returns(runs[plan][0].episodes) + config.reward_weights.rent * grown[plan]
        for rent in RENTS:
            weights = msgspec.structs.replace(config.reward_weights, rent=rent)
            at_rent = msgspec.structs.replace(config, reward_weights=weights)
            runs[f"ppo at {rent:g}"] = [_play(pool, agent, at_rent) for agent in trained.agents(at_rent)]
    _print_table(runs, gains, grown)
    report = build_report(
        runs,
        checkpoints=[str(path) for path in trained.paths],
        task=task.name,
        steps=config.steps,
        seed=options.seed,
        score_name=task.score_name,
    )
    print("\n".join(["", *draw_text(report, FIGURE_COLUMNS, FIGURE_ROWS)]))
    if options.figure:
        write_figure(report, options.figure)


def _play(pool: EnvPool, agent: Agent, config: Config) -> PolicyRun:
    start = cpu_seconds()
    episodes = run_episodes(pool, agent, config, lambda: None)
    return PolicyRun(episodes=episodes, cpu_seconds=cpu_seconds() - start)


def _print_table(
    runs: Mapping[str, Sequence[PolicyRun]], gains: Mapping[str, np.ndarray], grown: Mapping[str, np.ndarray]
) -> None:
    print(
        "| rent | accuracy of PPO, % | parameters | breakdowns | net return | best plan | net return | PPO minus plan |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for rent in RENTS:
        of_seeds = runs[f"ppo at {rent:g}"]
        returns_SE = np.array([net_returns(run.episodes) for run in of_seeds])
        episodes = [episode for run in of_seeds for episode in run.episodes]
        by_plan = {plan: gains[plan] - rent * grown[plan] for plan in gains}
        best = max(by_plan, key=lambda plan: float(by_plan[plan].mean()))
        accuracy = np.mean([episode.test_score for episode in episodes])
        ratio = np.mean([episode.parameter_ratio for episode in episodes])
        broken = sum(episode.broke_down for episode in episodes)
        difference = seeds_interval((returns_SE - by_plan[best]).tolist()).signed
        print(
            f"| {rent:g} | {100 * accuracy:.1f} | ×{ratio:.2f} | {broken} | {returns_SE.mean():+.3f} | {best} | "
            f"{by_plan[best].mean():+.3f} | {difference} |"
        )


if __name__ == "__main__":
    main()
