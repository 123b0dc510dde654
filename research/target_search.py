"""How many trials on the target is the first try of a trained policy worth?

    python -m research.target_search --checkpoint RUN --task digits_family --seed 5900

Targets are contexts of a family. On each of them, a random search plays plans on one host and takes the one with the
highest net return. Policy and plans then play fresh hosts of the same contexts. The policy has never seen the targets.
The differences are paired; their intervals are over targets.

Takes about a quarter of an hour (8 targets of `digits_family` with 128 trials each, two cores).
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from research.policies import TrainedPolicies, add_options, net_returns, plan_agent
from research.training_hosts import OneAgentPerEnv

from esper.common.configuration.config import Config
from esper.common.decisions import PlannedDecision, write_plan
from esper.common.intervals import t_interval
from esper.common.seeding import evaluation_seed, make_generator
from esper.common.system.process import cpu_seconds
from esper.networks.tasks.contexts import draw_context
from esper.studies.evaluation.episodes import run_episodes
from esper.training.policy.agent import Agent

POLICY = "policy"
MAX_PLAN_SEEDS = 3
"""Maximum number of seeds of a drawn plan."""


class Targets:
    """Contexts of a family, on which plans and a policy are played.

    Args:
        trained: The policy, and the family; there is one target for each of its episodes.
    """

    def __init__(self, trained: TrainedPolicies) -> None:
        self._trained, self._prepared = trained, trained.prepared
        self._config = msgspec.structs.replace(trained.config, context_seed=trained.config.seed)

    def draw_plans(self, trials: int) -> list[list[str]]:
        """Return different random plans for each target, from the slots and blueprints that it offers."""
        found: list[list[str]] = []
        for target in range(self._config.envs):
            context = draw_context(self._prepared.task, self._config.context_seed, target, 0)
            sites = self._prepared.profile.of_structure(context.structure).sites
            offered = {site.name: site.blueprints for site in sites}
            number = make_generator(self._config.seed, "plans of a target", target).initial_seed()
            found.append(draw_plans(trials, offered, self._config.steps, number))
        return found

    def search(self, plans: Sequence[Sequence[str]]) -> np.ndarray:
        """Play every plan of every target on one host, and return the net returns [targets, trials]."""
        trials = len(plans[0])
        ppo = msgspec.structs.replace(self._config.ppo, envs_per_host=trials)
        config = msgspec.structs.replace(self._config, envs=len(plans) * trials, ppo=ppo)
        every = [plan for of_target in plans for plan in of_target]
        return self._play(config, [self._agent_of(every)])[0].reshape(len(plans), trials)

    def compare(self, chosen: Mapping[int, Sequence[str]], seed: int) -> dict[int | str, np.ndarray]:
        """Play the policy and the chosen plans on fresh hosts.

        Args:
            chosen: Plan of each target, keyed by number of trials.
            seed: Random seed of the hosts.

        Returns:
            Net return of each target, keyed by `POLICY` or number of trials.
        """
        config = msgspec.structs.replace(self._config, seed=evaluation_seed(seed))
        searched = [self._agent_of(plans) for plans in chosen.values()]
        played = self._play(config, [*self._trained.agents(config), *searched])
        return dict(zip((POLICY, *chosen), played, strict=True))

    def _agent_of(self, plans: Sequence[str]) -> OneAgentPerEnv:
        """Return a policy that follows the plan of each env."""
        return OneAgentPerEnv([plan_agent(plan, self._prepared.profile, self._config.steps) for plan in plans])

    def _play(self, config: Config, agents: Sequence[Agent]) -> list[np.ndarray]:
        with self._trained.open_pool(config) as pool:
            return [net_returns(run_episodes(pool, agent, config, lambda: None)) for agent in agents]


def draw_plans(count: int, blueprints_by_slot: Mapping[str, Sequence[str]], steps: int, seed: int) -> list[str]:
    """Draw different plans of one to three seeds.

    The number of seeds, the slots and the blueprints are drawn uniformly. Steps are the squares of uniform numbers,
    up to half of the episode: a seed needs the rest of the episode to earn its rent.

    Args:
        count: Number of plans; fewer are returned if there are not as many.
        blueprints_by_slot: Blueprints that each slot offers, keyed by its name.
    """
    generator = random.Random(seed)
    most = min(MAX_PLAN_SEEDS, len(blueprints_by_slot))
    plans: dict[str, None] = {}  # in the order of drawing
    for _ in range(100 * count):  # there may be fewer different plans
        if len(plans) == count:
            break
        slots = generator.sample(list(blueprints_by_slot), generator.randint(1, most))
        free = list(range(1, max(steps // 2, len(slots)) + 1))[:steps]
        seeds: list[PlannedDecision] = []
        for slot in slots[: len(free)]:
            step = free.pop(int(len(free) * generator.random() ** 2))
            seeds.append(PlannedDecision.planting(step, slot, generator.choice(blueprints_by_slot[slot])))
        plans[write_plan(sorted(seeds, key=lambda seed: seed.step))] = None
    return list(plans)


def main() -> None:
    """Search on every target, play the plans found and the policy on fresh hosts, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--targets", type=int, default=8)
    parser.add_argument("--trials", type=int, nargs="+", default=[8, 32, 128])
    parser.add_argument("--hosts", type=int, default=4, help="fresh hosts for each target; their seeds follow --seed")
    add_options(parser)
    options = parser.parse_args()
    targets = Targets(TrainedPolicies([options.checkpoint], options.targets, options))
    plans = targets.draw_plans(max(options.trials))
    start = cpu_seconds()
    returns_CP = targets.search(plans)
    seconds = (cpu_seconds() - start) / returns_CP.size
    chosen = {
        trials: [plans[target][int(returns[:trials].argmax())] for target, returns in enumerate(returns_CP)]
        for trials in options.trials
    }
    hosts = [targets.compare(chosen, options.seed + 1 + host) for host in range(options.hosts)]
    mean_by_name = {name: np.mean([host[name] for host in hosts], axis=0) for name in hosts[0]}
    policy = mean_by_name[POLICY]
    print(f"policy: net return {policy.mean():+.3f}; a trial takes {seconds:.1f} CPU-seconds")
    print("| trials on each target | net return | policy minus plan | targets on which the policy is better |")
    print("|---|---|---|---|")
    for trials in options.trials:
        difference = policy - mean_by_name[trials]
        print(
            f"| {trials} | {mean_by_name[trials].mean():+.3f} | {t_interval(difference.tolist()).signed} | "
            f"{(difference > 0).sum()} of {len(policy)} |"
        )


if __name__ == "__main__":
    main()
