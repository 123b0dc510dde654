"""Which numbers should the rules of the heuristic have?

    python -m research.tune_heuristic --seed 50

Successive halving, with as many episodes as the training of a policy has: random rules and the current ones play the
default task on hosts of a training run with that random seed. The result is copied by hand into the defaults of
`HeuristicRules` in `esper/policy/heuristic.py`.

Takes about 6 minutes (540 episodes, two cores).
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from contextlib import closing

from research.halving import find_best, halving_schedule
from research.training_hosts import TrainingHosts

from esper.common.configuration.config import Config
from esper.networks.tasks.prepare import prepare_task
from esper.training.lanes.devices import resolve_devices
from esper.training.policy.heuristic import DEFAULT_RULES, HeuristicAgent, HeuristicRules


def main() -> None:
    """Search, and print the best rules."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="digits_impaired")
    parser.add_argument("--seed", type=int, default=50)
    parser.add_argument("--episodes", type=int, default=Config().rounds * Config().envs)
    parser.add_argument("--devices", nargs="+", default=["auto"])
    options = parser.parse_args()
    prepared = prepare_task(Config(task=options.task, seed=options.seed))
    blueprints = prepared.profile.blueprints
    schedule = halving_schedule(options.episodes)
    generator = random.Random(options.seed)
    candidates = [DEFAULT_RULES, *(draw_rules(generator, blueprints) for _ in range(schedule[0].candidates - 1))]
    with closing(TrainingHosts(prepared, prepared.config, resolve_devices(options.devices), lambda _: None)) as hosts:

        def play(playing: Sequence[HeuristicRules], host: int) -> list[float]:
            returns = hosts.play([HeuristicAgent(blueprints, rules) for rules in playing], host)
            print(f"host {host}: {len(playing)} rules, best {max(returns):+.3f}", file=sys.stderr)
            return returns

        found = find_best(candidates, schedule, play)
    print(f"best rules: {candidates[found.candidate]}")
    print(f"mean return in the last rung, which chose them and so flatters them: {found.mean_return:+.4f}")


def draw_rules(generator: random.Random, blueprints: Sequence[str]) -> HeuristicRules:
    """Draw rules: one to three different blueprints, and the other numbers around the current ones."""
    return HeuristicRules(
        rotation=tuple(generator.sample(list(blueprints), generator.randint(1, 3))),
        plateau_drop=generator.choice((0.05, 0.1, 0.2, 0.4, 0.8)),
        min_remaining=generator.choice((0.125, 0.25, 0.375, 0.5, 0.75)),
        min_dependence=generator.choice((-0.01, 0.0, 0.005, 0.02, 0.05)),
        trial_steps=generator.choice((1, 2, 4)),
    )


if __name__ == "__main__":
    main()
