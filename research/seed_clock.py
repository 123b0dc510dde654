"""Does a seed that is planted late learn better by a schedule of its own than by that of the episode?

    python -m research.seed_clock --hosts 16 --seed 7000

Each host plays the same plan twice, from the same weights and with the same batches. The learning rate of the host
follows the clock of the episode in both. The rate of a seed follows the same clock, or one that begins when the seed is
planted and ends with the episode. The table has the paired difference of the final scores.

Takes five minutes (two tasks, two schedules, two plans, 16 hosts, one core).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

import esper
from esper.common.configuration.config import Config
from esper.common.intervals import t_interval
from esper.networks.tasks import load_task
from esper.networks.tasks.prepare import prepare_task
from esper.networks.tasks.schedules import AnySchedule, lr_factor
from esper.networks.tasks.task import Task
from esper.training.envs.env import Env
from esper.training.envs.optimizer import ModuleOptimizer
from esper.training.lanes.pool import EnvPool
from esper.training.policy.actions import Action

STEPS = 30
TASKS = ("digits_impaired", "mnist1d")
SCHEDULES: dict[str, AnySchedule] = {"cosine": esper.cosine(), "one cycle": esper.one_cycle()}
PLANTED = {"early and at a third": (0, 10), "at a third and at two thirds": (10, 20)}
"""Steps, from 0, in which the seeds of the first and of the second slot are planted."""


def follow_episode(env: Env, optimizers: Sequence[ModuleOptimizer], step: int) -> Callable[[int], None]:
    """Return a function that sets the rates of host and seeds for a batch by the clock of the episode."""
    batches = env.batches_per_epoch

    def set_rates(batch: int) -> None:
        for optimizer in optimizers:
            optimizer.lr_scale = lr_factor(env.task.schedule, step, env.steps, batch, batches)
            optimizer.rate()

    return set_rates


def main() -> None:
    """Train all hosts under both clocks, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=16)
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args()
    print("| task | schedule | seeds planted | clock of the episode | own clock − episode | hosts |")
    print("|---|---|---|---|---|---|")
    for name in TASKS:
        for words, schedule in SCHEDULES.items():
            task = replace(load_task(name), schedule=schedule)
            for when, steps in PLANTED.items():
                scores = [_final_scores(task, steps, options.hosts, options.seed, own=own) for own in (False, True)]
                difference = t_interval(np.subtract(scores[1], scores[0]).tolist())
                print(
                    f"| `{name}` | {words} | {when} | {np.mean(scores[0]):.1%} | {100 * difference.mean:+.2f} "
                    f"[{100 * difference.low:+.2f}, {100 * difference.high:+.2f}] pp | {options.hosts} |",
                    flush=True,
                )


def _final_scores(task: Task, planted: Sequence[int], hosts: int, seed: int, *, own: bool) -> list[float]:
    """Return the final validation score of each host."""
    config = Config(envs=1, steps=STEPS, seed=seed, devices=("cpu:0",), counterfactual="off", task=task.name)
    prepared = prepare_task(config, task)
    pool = EnvPool(task, prepared.profile, prepared.data, ["cpu:0"], prepared.config)
    (env,) = pool.envs
    if not own:
        env._rate_setter = partial(follow_episode, env)
    scores: list[float] = []
    for host in range(hosts):
        env.reset(env.key._replace(env=host * prepared.config.envs_per_host, round=0))
        for step in range(STEPS):
            for index, slot in enumerate(env.network.slots[: len(planted)]):
                if step == planted[index]:
                    blueprint = env.profile.blueprints.index(slot.site.blueprints[-1])
                    env.apply_action(Action(esper.Op.GERMINATE, slot=index, blueprint=blueprint), step)
                elif slot.can_advance:
                    env.apply_action(Action(esper.Op.ADVANCE, slot=index), step)
            results = env.unpack_results(env.train_epoch(step).tolist(), env.validate(last=False).tolist())
            env.tick()
            if step == STEPS - 1:
                scores.append(results.score)
    pool.close()
    return scores


if __name__ == "__main__":
    main()
