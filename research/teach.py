"""Does a policy learn more from the exact outcomes of alternatives than from sampled returns? Teaches `generalist-v2`.

    python -m research.teach play --iteration 0                    # plans in every context
    python -m research.teach play --iteration 1 --policy FILE      # the pupil's episodes, and changes of them
    python -m research.teach learn --seeds 1 2 3 4 5               # pupils, from all lessons

Lessons are stored in `telemetry/teaching/`. An interrupted command continues. Lessons stay valid if only the teaching
changes; after a change of the engine, give another `--directory`.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import torch
from research.curriculum import COURSES, Course
from research.policies import TELEMETRY_DIR

from esper.config import Config
from esper.lanes.devices import resolve_devices
from esper.process import package_digest
from esper.search.space import PlanSpace
from esper.tasks.prepare import PreparedTask, prepare_task
from esper.teaching.lessons import write_lesson
from esper.teaching.player import HEURISTIC, Alternative, Assignment, LessonPlayer

DIRECTORY = TELEMETRY_DIR / "teaching"
RENTS = (0.0005, 0.008)
"""Range of the rents, drawn log-uniformly."""
ORDERS = 2
CAPACITY = 32
"""Number of episodes that run at the same time."""
SEED = 7000
"""Random seed of the contexts of iteration 0; those of iteration k have `SEED` + k."""
DRAWN_PLANS = 2
"""Number of plans of a context that are drawn at random."""

TINY, SMALL, MIDDLE, LARGE = range(4)
KINDS = (
    ("norm",),
    ("depthwise", "linear_lowrank"),
    ("conv_light", "mlp"),
    ("conv_heavy", "self_attention", "conv_light", "mlp"),
)
"""Blueprints of seeds of four sizes. Of each size, the first that a slot offers is planted."""
FIRST, SECOND, LAST, ALL = 0, 1, -1, -2
KIND_PLANS: dict[str, tuple[dict[int, int], float]] = {
    "tiny first": ({FIRST: TINY}, 0),
    "tiny all": ({ALL: TINY}, 0),
    "small first": ({FIRST: SMALL}, 0),
    "small last": ({LAST: SMALL}, 0),
    "small two": ({FIRST: SMALL, SECOND: SMALL}, 0),
    "small all": ({ALL: SMALL}, 0),
    "middle first": ({FIRST: MIDDLE}, 0),
    "middle second": ({SECOND: MIDDLE}, 0),
    "middle two": ({FIRST: MIDDLE, SECOND: MIDDLE}, 0),
    "middle all": ({ALL: MIDDLE}, 0),
    "large first": ({FIRST: LARGE}, 0),
    "large two": ({FIRST: LARGE, SECOND: LARGE}, 0),
    "middle, large": ({FIRST: MIDDLE, SECOND: LARGE}, 0),
    "small first, early": ({FIRST: SMALL}, 0.1),
    "small two, early": ({FIRST: SMALL, SECOND: SMALL}, 0.1),
    "middle first, early": ({FIRST: MIDDLE}, 0.1),
    "middle two, early": ({FIRST: MIDDLE, SECOND: MIDDLE}, 0.1),
    "large first, early": ({FIRST: LARGE}, 0.1),
    "middle, large, early": ({FIRST: MIDDLE, SECOND: LARGE}, 0.1),
    "small two, later": ({FIRST: SMALL, SECOND: SMALL}, 0.25),
    "middle, large, later": ({FIRST: MIDDLE, SECOND: LARGE}, 0.25),
}
"""Plans for any slots, by name: size of the seed in each slot, and the first step as a fraction of the episode."""


def kind_plan(name: str, space: PlanSpace) -> str:
    """Return a plan of `KIND_PLANS` for the slots of a task; a slot that it lacks stays empty."""
    sizes, start = KIND_PLANS[name]
    slots = [site.name for site in space.sites]
    if ALL in sizes:
        sizes = dict.fromkeys(range(len(slots)), sizes[ALL])
    seeds: dict[str, tuple[str, int]] = {}
    for index, size in sizes.items():
        if index < len(slots):
            slot = slots[index]
            blueprint = next((kind for kind in KINDS[size] if kind in space.offered(slot)), None)
            if blueprint:
                seeds[slot] = (blueprint, round(start * space.steps) + len(seeds))
    return space.plan(seeds)


def drawn_plans(space: PlanSpace, generator: np.random.Generator) -> list[str]:
    """Return random plans of one to three seeds in the first half of the episode, early steps more often."""
    plans: list[str] = []
    for _ in range(DRAWN_PLANS):
        slots = generator.permutation([site.name for site in space.sites])[: generator.integers(1, 4)]
        last = math.log(space.steps / 2)
        seeds = {
            str(slot): (str(generator.choice(space.offered(str(slot)))), int(math.exp(generator.uniform(0, last))) - 1)
            for slot in slots
        }
        plans.append(space.plan(seeds))
    return plans


def folder(directory: Path, iteration: int, course: Course) -> Path:
    """Return the folder of the lessons of a course."""
    return directory / f"iteration-{iteration}" / course.name


def prepare(course: Course) -> tuple[PreparedTask, PlanSpace]:
    """Return the task of a course, ready to train, and the plans for it."""
    prepared = prepare_task(Config(task=course.task, steps=course.steps, policy="ppo"))
    profile = prepared.profile
    return prepared, PlanSpace(profile.sites, course.steps, profile.host_parameters)


def play_plans(course: Course, contexts: range, directory: Path, devices: Sequence[str]) -> None:
    """Play the lessons of the first iteration: all plans of a course in some of its contexts."""
    where = folder(directory, 0, course)
    missing = [context for context in contexts if not (where / f"{context:05d}.safetensors").exists()]
    if not missing:
        return
    start = time.monotonic()
    prepared, space = prepare(course)
    fixed = ["", HEURISTIC, *(kind_plan(name, space) for name in KIND_PLANS)]
    options = {"seed": SEED, "orders": ORDERS, "capacity": CAPACITY, "software": _software()}
    episodes = 0
    with closing(LessonPlayer(prepared, resolve_devices(devices), **options)) as player:
        for context in missing:
            generator = np.random.default_rng([SEED, context])
            plans = list(dict.fromkeys([*fixed, *drawn_plans(space, generator)]))
            rent = math.exp(generator.uniform(math.log(RENTS[0]), math.log(RENTS[1])))
            (lesson,) = player.play([Assignment(context, [Alternative(plan) for plan in plans], rent)])
            write_lesson(where / f"{context:05d}.safetensors", lesson)
            episodes += ORDERS * len(plans)
    print(f"{course.name}: {episodes} episodes, {time.monotonic() - start:.0f} s", flush=True)


def _software() -> str:
    return f"{package_digest()} {torch.__version__}"


def main() -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["play", "learn"])
    parser.add_argument("--iteration", type=int, default=0)
    parser.add_argument("--directory", type=Path, default=DIRECTORY)
    parser.add_argument("--devices", nargs="+", default=["auto"])
    parser.add_argument("--courses", nargs="+")
    options = parser.parse_args()
    courses = [course for course in COURSES if not options.courses or course.name in options.courses]
    if options.command == "play":
        for half in range(2):
            for course in courses:
                middle = -(-course.contexts // 2)
                contexts = range(middle) if half == 0 else range(middle, course.contexts)
                play_plans(course, contexts, options.directory, options.devices)


if __name__ == "__main__":
    main()
