"""Does a policy learn more from the exact outcomes of alternatives than from sampled returns? Teaches `generalist-v2`.

    python -m research.teach play --iteration 0                      # plans, in every context
    python -m research.teach learn --iterations 0 --seeds 1          # a pupil
    python -m research.teach play --iteration 1 --policy FILE        # its episodes, and changes of them
    python -m research.teach report --iteration 1                    # how often a change is better
    python -m research.teach learn --iterations 0 1 --seeds 1 2 3 4 5

Lessons and pupils are stored in `telemetry/teaching/`. If `play` is interrupted, the same command continues. Lessons
stay valid if only the teaching changes; after a change of the engine, give another `--directory`.

On two cores, the lessons of iteration 0 take about 50 minutes, and those of a later one with half of the contexts
(`--fraction 0.5`) about 25. A pupil takes about 4 minutes of one core for 50 passes over 180 lessons.
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
from research.alternatives import KIND_PLANS, best_plans, changes, drawn_plans, kind_plan
from research.curriculum import COURSES, Course
from research.policies import TELEMETRY_DIR
from research.teaching.lessons import Lesson, join_alternatives, read_lesson, write_lesson
from research.teaching.player import HEURISTIC, Alternative, Assignment, LessonPlayer
from research.teaching.pupil import Pupil, TeachingConfig

from esper.common.configuration.config import Config, ConfigError, PPOConfig
from esper.common.intervals import t_interval
from esper.common.system.process import package_digest
from esper.networks.tasks.prepare import PreparedTask, prepare_task
from esper.recordings.effects.paying import PAYS
from esper.studies.growth.space import PlanSpace
from esper.training.engine.trained_policy import TrainedPolicy, read_policy_file, write_policy_file
from esper.training.lanes.devices import resolve_devices

DIRECTORY = TELEMETRY_DIR / "teaching"
RENTS = TeachingConfig.rents
"""Range of the weights of the rent, drawn log-uniformly."""
ORDERS = 2
"""Number of orders in which each alternative is played."""
CAPACITY = 32
"""Maximum number of episodes that run at the same time."""
SEED = 7000
"""Random seed of the contexts of iteration 0; those of iteration k have `SEED` + k."""
PUPIL = "pupil"
"""Name of the policy whose episodes are changed, in lessons and in the names of files."""
NEAR_RENTS = 1.5
"""A lesson of a later iteration is taught at rents from its own divided by this factor to its own times this factor."""
TOGETHER = 4
"""Number of contexts that are played at the same time in a later iteration."""


def folder(directory: Path, iteration: int, course: Course) -> Path:
    """Return the folder of the lessons of a course."""
    return directory / f"iteration-{iteration}" / course.name


def lesson_path(directory: Path, iteration: int, course: Course, context: int) -> Path:
    """Return the file of a lesson."""
    return folder(directory, iteration, course) / f"{context:05d}.safetensors"


def prepare(course: Course) -> tuple[PreparedTask, PlanSpace]:
    """Return the task of a course, ready to train, and the space of its plans."""
    prepared = prepare_task(Config(task=course.task, steps=course.steps, policy="ppo"))
    profile = prepared.profile
    return prepared, PlanSpace(profile.sites, course.steps, profile.host_parameters)


def open_player(
    prepared: PreparedTask, devices: Sequence[str], iteration: int, pupil: TrainedPolicy | None = None
) -> LessonPlayer:
    """Return a player of lessons of an iteration.

    Args:
        pupil: Policy that alternatives can name `PUPIL`; None: none.

    Raises:
        ConfigError: Worker processes cannot be started.
    """
    return LessonPlayer(
        prepared,
        resolve_devices(devices),
        seed=SEED + iteration,
        orders=ORDERS,
        capacity=CAPACITY,
        software=f"{package_digest()} {torch.__version__}",
        policies={PUPIL: pupil} if pupil else None,
    )


def draw(iteration: int, context: int) -> tuple[np.random.Generator, float]:
    """Return the generator of the drawn plans of a context, and the weight of its rent. All courses draw the same."""
    generator = np.random.default_rng([SEED + iteration, context])
    return generator, math.exp(generator.uniform(math.log(RENTS[0]), math.log(RENTS[1])))


def play_plans(course: Course, contexts: Sequence[int], options: argparse.Namespace) -> int:
    """Play all kinds of plans in some contexts, and write the lessons. Return the number of episodes."""
    prepared, space = prepare(course)
    fixed = ["", HEURISTIC, *(kind_plan(name, space) for name in KIND_PLANS)]
    episodes = 0
    with closing(open_player(prepared, options.devices, 0)) as player:
        for context in contexts:
            generator, rent = draw(0, context)
            plans = list(dict.fromkeys([*fixed, *drawn_plans(space, generator)]))
            (lesson,) = player.play([Assignment(context, [Alternative(plan) for plan in plans], rent)])
            write_lesson(lesson_path(options.directory, 0, course, context), lesson)
            episodes += lesson.valid_OPT[..., 0].numel()
    return episodes


def play_pupil(course: Course, contexts: Sequence[int], options: argparse.Namespace) -> int:
    """Play the pupil, changes of its episodes, and good plans; write the lessons. Return the number of episodes.

    The plans are those with the highest returns in the lessons of iteration 0.

    Raises:
        ConfigError: There are no lessons of iteration 0.
    """
    prepared, space = prepare(course)
    pupil = read_policy_file(options.policy, PUPIL)
    known = read_lessons(options.directory, [0], [course])
    episodes = 0
    with closing(open_player(prepared, options.devices, options.iteration, pupil)) as player:
        for first in range(0, len(contexts), TOGETHER):
            chosen = contexts[first : first + TOGETHER]
            drawn = [draw(options.iteration, context) for context in chosen]
            plans = [
                list(dict.fromkeys(["", HEURISTIC, *best_plans(known, space, rent), *drawn_plans(space, generator)]))
                for generator, rent in drawn
            ]
            rents = [rent for _, rent in drawn]
            given = [[Alternative(PUPIL), *map(Alternative, names)] for names in plans]
            before = player.play([Assignment(*item) for item in zip(chosen, given, rents, strict=True)])
            changed = [
                changes(lesson.actions_OPTH[0, 0], space, prepared.profile.blueprints, PUPIL) for lesson in before
            ]
            after = player.play([Assignment(*item) for item in zip(chosen, changed, rents, strict=True)])
            for context, *parts in zip(chosen, before, after, strict=True):
                lesson = join_alternatives(*parts)
                write_lesson(lesson_path(options.directory, options.iteration, course, context), lesson)
                episodes += lesson.valid_OPT[..., 0].numel()
    return episodes


def read_lessons(directory: Path, iterations: Sequence[int], courses: Sequence[Course]) -> list[Lesson]:
    """Return the lessons of some iterations and courses, sorted by iteration, course and context.

    Raises:
        ConfigError: A file is damaged, or has another format.
    """
    paths = [
        path
        for iteration in iterations
        for course in courses
        for path in sorted(folder(directory, iteration, course).glob("*.safetensors"))
    ]
    return [read_lesson(path) for path in paths]


def play(courses: Sequence[Course], options: argparse.Namespace) -> None:
    """Play the missing lessons of an iteration.

    The second half of the contexts follows the first half of all courses, so that a pupil can be tried early.
    """
    for half in range(2):
        for course in courses:
            count = math.ceil(course.contexts * options.fraction)
            middle = -(-count // 2)
            missing = [
                context
                for context in (range(middle) if half == 0 else range(middle, count))
                if not lesson_path(options.directory, options.iteration, course, context).exists()
            ]
            if missing:
                start = time.monotonic()
                episodes = (play_pupil if options.iteration else play_plans)(course, missing, options)
                print(f"{course.name}: {episodes} episodes, {time.monotonic() - start:.0f} s", flush=True)


def rents_of(lesson: Lesson) -> tuple[float, float]:
    """Return the range of the rents for which a lesson has good alternatives.

    The lessons of the first iteration have all kinds of plans. Later ones have those that are good at the rent of the
    lesson, and the pupil's episodes at this rent.
    """
    if PUPIL not in lesson.info.alternatives:
        return RENTS
    return max(RENTS[0], lesson.info.rent / NEAR_RENTS), min(RENTS[1], lesson.info.rent * NEAR_RENTS)


def learn(courses: Sequence[Course], options: argparse.Namespace) -> None:
    """Teach one pupil for each random seed, and write their policies.

    Raises:
        ConfigError: There are no lessons.
    """
    torch.set_num_threads(1)
    lessons = read_lessons(options.directory, options.iterations, courses)
    if not lessons:
        raise ConfigError(f"no lessons in {options.directory}; play them first: python -m research.teach play")
    print(f"{len(lessons)} lessons, {sum(lesson.valid_OPT[..., 0].numel() for lesson in lessons)} episodes")
    for seed in options.seeds:
        start = time.process_time()
        config = TeachingConfig(epochs=options.epochs)
        pupil = Pupil(lessons, config, PPOConfig(), seed, [rents_of(lesson) for lesson in lessons])
        for epoch, found in enumerate(pupil.learn(), start=1):
            text = " ".join(f"{name} {value:.3f}" for name, value in found.items())
            print(f"seed {seed}, pass {epoch}: {text}, {time.process_time() - start:.0f} s", flush=True)
        write_policy_file(pupil.policy(PUPIL), options.directory / f"{options.name}-{seed}.safetensors")


def report(courses: Sequence[Course], options: argparse.Namespace) -> None:
    """Print in how many contexts an alternative is better than the pupil, and by how much, for each course.

    The best alternative is chosen in one order and scored in the other, so that luck does not count. It counts as
    better if its gain in net return, at the rent of the lesson, is above `PAYS`.
    """
    print("| course | contexts | with a better alternative | gain of the best alternative |\n|---|---|---|---|")
    all_gains: list[float] = []
    for course in courses:
        gains: list[float] = []
        for lesson in read_lessons(options.directory, [options.iteration], [course]):
            return_OP = lesson.returns(lesson.info.rent)
            pupil = lesson.info.alternatives.index(PUPIL)
            best = [int(return_OP[order].argmax()) for order in (1, 0)]
            gains.append(sum(float(return_OP[order, best[order]] - return_OP[order, pupil]) for order in (0, 1)) / 2)
        print_gains(course.name, gains)
        all_gains += gains
    print_gains("all", all_gains)


def print_gains(name: str, gains: Sequence[float]) -> None:
    """Print a row of the report; none without gains, and no interval for a single one."""
    if gains:
        better = sum(gain > PAYS for gain in gains)
        mean = t_interval(gains).signed if len(gains) > 1 else f"{gains[0]:+.3f}"
        print(f"| {name} | {len(gains)} | {better} | {mean} |")


def main() -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [course.name for course in COURSES]
    commands = {"play": play, "learn": learn, "report": report}
    parser.add_argument("command", choices=list(commands))
    parser.add_argument("--iteration", type=int, default=0, help="iteration to play or to report")
    parser.add_argument(
        "--policy", type=Path, help="policy whose episodes are changed, in all iterations but the first"
    )
    parser.add_argument(
        "--fraction", type=float, default=1.0, help="fraction of the contexts of the curriculum to play"
    )
    parser.add_argument("--iterations", type=int, nargs="+", default=[0], help="iterations to learn from")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="random seeds of pupils")
    parser.add_argument("--epochs", type=int, default=TeachingConfig.epochs, help="passes over all lessons")
    parser.add_argument("--name", default=PUPIL, help="beginning of the names of the pupils' files")
    parser.add_argument(
        "--courses", nargs="+", choices=names, metavar="COURSE", help="names of the courses (default: all)"
    )
    parser.add_argument("--directory", type=Path, default=DIRECTORY)
    parser.add_argument("--devices", nargs="+", default=["auto"])
    options = parser.parse_args()
    courses = [course for course in COURSES if not options.courses or course.name in options.courses]
    if options.command == "play" and options.iteration and not options.policy:
        parser.error("--policy is missing; name the policy of the last iteration")
    if options.command == "report" and not options.iteration:
        parser.error("iteration 0 has no pupil to report; use --iteration 1 or a later one")
    try:
        commands[options.command](courses, options)
    except ConfigError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
