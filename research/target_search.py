"""Compares the first try of a trained policy with a search on the target.

    python -m research.target_search --checkpoint RUN --task digits_family --seed 5900

Targets are contexts of a family. On each of them, a random search plays plans on one host and takes the one with the
highest net return. Policy and plans then play fresh hosts of the same contexts. The policy has never seen the targets.
The differences are paired; their intervals are over targets.
"""

from __future__ import annotations

import argparse
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np

from esper.checkpoint.catalog import find_checkpoint
from esper.checkpoint.files import Checkpoint, read_checkpoint
from esper.config import Config
from esper.engine.agent_factory import build_trained
from esper.engine.trained_policy import policy_of
from esper.evaluation.cpu_time import cpu_seconds
from esper.evaluation.episodes import run_episodes
from esper.evaluation.held_out import held_out_config, prepare_held_out
from esper.evaluation.intervals import t_interval
from esper.evaluation.search import draw_plans
from esper.evaluation.training_hosts import OneAgentPerEnv
from esper.lanes.devices import resolve_devices
from esper.lanes.pool import EnvPool
from esper.policy.agent import Agent
from esper.policy.plan import parse_plan
from esper.policy.plan_agent import PlanAgent
from esper.recording.runs import resolve_run
from esper.seeding import evaluation_seed, make_generator
from esper.tasks.contexts import draw_context
from esper.tasks.prepare import PreparedTask

POLICY = "policy"


class Targets:
    """Contexts of a family, on which plans and a policy are played.

    Args:
        path: Checkpoint of the policy.
        task: Reference of the family; None: that of the checkpoint.
        count: Number of targets.
        seed: Random seed of the targets.
        devices: Names of devices, as the option.
    """

    def __init__(self, path: Path, task: str | None, count: int, seed: int, devices: list[str]) -> None:
        self.checkpoint: Checkpoint = read_checkpoint(path)
        self.prepared: PreparedTask = prepare_held_out(self.checkpoint, task)
        config = held_out_config(self.prepared.config, count, seed)
        self.config = msgspec.structs.replace(config, context_seed=config.seed)
        self._path, self._lanes = path, resolve_devices(devices)

    def draw_plans(self, trials: int) -> list[list[str]]:
        """Return different random plans for each target, from the slots and blueprints that it offers."""
        found: list[list[str]] = []
        for target in range(self.config.envs):
            context = draw_context(self.prepared.task, self.config.context_seed, target, 0)
            sites = self.prepared.profile.of_structure(context.structure).sites
            offered = {site.name: site.blueprints for site in sites}
            number = make_generator(self.config.seed, "plans of a target", target).initial_seed()
            found.append(draw_plans(trials, offered, self.config.steps, number))
        return found

    def search(self, plans: list[list[str]]) -> np.ndarray:
        """Play every plan of every target on one host, and return the net returns [targets, trials]."""
        trials = len(plans[0])
        ppo = msgspec.structs.replace(self.config.ppo, envs_per_host=trials)
        config = msgspec.structs.replace(self.config, envs=len(plans) * trials, ppo=ppo)
        agents = [self._plan_agent(plan) for of_target in plans for plan in of_target]
        return self._play(config, [OneAgentPerEnv(agents)])[0].reshape(len(plans), trials)

    def compare(self, chosen: dict[int, list[str]], seed: int) -> dict[int | str, np.ndarray]:
        """Play the policy and the chosen plans on fresh hosts.

        Args:
            chosen: Plan of each target, keyed by number of trials.
            seed: Random seed of the hosts.

        Returns:
            Net return of each target, keyed by `POLICY` or number of trials.
        """
        config = msgspec.structs.replace(self.config, seed=evaluation_seed(seed))
        profile = self.prepared.profile
        policy = build_trained(policy_of(self.checkpoint, self._path), config, profile.sites, profile.blueprints)
        searched = [OneAgentPerEnv([self._plan_agent(plan) for plan in plans]) for plans in chosen.values()]
        return dict(zip((POLICY, *chosen), self._play(config, [policy, *searched]), strict=True))

    def _plan_agent(self, plan: str) -> PlanAgent:
        profile = self.prepared.profile
        return PlanAgent(parse_plan(plan, self.config.steps), profile.sites, profile.blueprints)

    def _play(self, config: Config, agents: list[Agent]) -> list[np.ndarray]:
        prepared = self.prepared
        with closing(EnvPool(prepared.task, prepared.profile, prepared.data, self._lanes, config)) as pool:
            return [
                np.array([episode.net_return for episode in run_episodes(pool, agent, config, lambda: None)])
                for agent in agents
            ]


def main() -> None:
    """Search on every target, play the plans found and the policy on fresh hosts, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--telemetry-dir", type=Path, default=Path("telemetry"))
    parser.add_argument("--task", help="another family than that of the checkpoint; needed if that is a file")
    parser.add_argument("--targets", type=int, default=8)
    parser.add_argument("--trials", type=int, nargs="+", default=[8, 32, 128])
    parser.add_argument("--hosts", type=int, default=4, help="fresh hosts for each target")
    parser.add_argument("--seed", type=int, required=True, help="of the targets; the next ones are those of the hosts")
    parser.add_argument("--devices", nargs="+", default=["auto"])
    options = parser.parse_args()
    path = find_checkpoint(resolve_run(options.checkpoint, options.telemetry_dir))
    targets = Targets(path, options.task, options.targets, options.seed, options.devices)
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
