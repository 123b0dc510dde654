"""How much could a policy gain by knowing the context?

    python -m research.headroom --directory telemetry/teaching --iteration 0

Reads the lessons of `research/teach.py`, in which every kind of plan plays each context in two orders: the same data,
other initial weights and another order of the data. The tables show the gain in net return over the best kind of plan
for all contexts: of the best kind for each context, and of predictors that choose a kind from observations. A table of
several courses gives each course the same weight. The drawn rents are log-uniform, one for each context.

Takes about half a minute on one core.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from research.alternatives import KIND_PLANS, kind_plan
from research.context_gain import (
    Array,
    Groups,
    Indices,
    best_plan,
    group_gain,
    headroom,
    left_out_return,
    predicted_gain,
)
from research.curriculum import COURSES, Course
from research.teach import DIRECTORY, prepare, read_lessons
from research.teach import RENTS as DRAWN_RENTS
from research.teaching.lessons import Lesson
from research.teaching.player import HEURISTIC

from esper.common.configuration.config import ConfigError
from esper.studies.growth.space import PlanSpace
from esper.training.policy.observation import BASE_GROUPS, HISTORY_STEPS, ObservationShape, set_rent

WAIT = ""
"""The plan that never grows a seed."""
KINDS = ("wait", HEURISTIC, *KIND_PLANS)
"""Names of the kinds of plans, which all tasks share."""
RENTS = (0.0005, 0.001, 0.002, 0.004, 0.008)
IDLE_STEPS = (5, 10)
"""Numbers of steps of the idle host that a predictor observes."""
MIN_CONTEXTS = 8
"""Minimum number of contexts for a predictor."""
KERNELS = ("linear", "rbf")


class Contexts(NamedTuple):
    """Lessons as arrays: O orders, C contexts, P kinds of plans, T steps, F features."""

    gain_OCP: Array
    """Final validation score minus the initial one, minus the costs of ops and penalties."""
    grown_OCP: Array
    """Sum over the steps of the rent at weight 1."""
    visible_OCF: Array
    """Features of host and slots before the first step, without those of the rent."""
    measured_OCTF: Array
    """Measurements of the idle host after each of the first steps."""
    course_C: Indices
    """Index of the course of each context."""
    structure_C: Indices
    """Index of the task, or of the structure of a family."""

    def returns(self, rent_C: Array) -> Array:
        """Return the net returns at a rent for each context, [O, C, P]."""
        return self.gain_OCP - self.grown_OCP * rent_C[:, None]

    def features(self, rent_C: Array, steps: int) -> Array:
        """Return the observations of a predictor, [O, C, F]: before the first step, and after some steps."""
        orders, contexts = self.visible_OCF.shape[:2]
        rent_OCF = np.broadcast_to(np.log(rent_C)[:, None], (orders, contexts, 1))
        measured_OCF = self.measured_OCTF[:, :, :steps].reshape(orders, contexts, -1)
        return np.concatenate((self.visible_OCF, rent_OCF, measured_OCF), axis=2)


def plans_of(space: PlanSpace) -> list[str]:
    """Return the plan of each of `KINDS` for a task."""
    return [WAIT, HEURISTIC, *(kind_plan(name, space) for name in KIND_PLANS)]


def read_contexts(lessons: Sequence[Lesson], plans: Sequence[str], course: int) -> Contexts:
    """Return the lessons of one course as arrays, with the structures numbered from 0.

    Raises:
        ConfigError: A lesson lacks a kind of plan.
    """
    for lesson in lessons:
        if missing := set(plans) - set(lesson.info.alternatives):
            raise ConfigError(
                f"a lesson of {COURSES[course].name} lacks the plan {min(missing)!r}; only iteration 0 has all kinds"
            )
    structures = sorted({lesson.info.task for lesson in lessons})
    gain, grown, visible, measured = zip(*(_arrays(lesson, plans) for lesson in lessons), strict=True)
    return Contexts(
        np.stack(gain, axis=1),
        np.stack(grown, axis=1),
        np.stack(visible, axis=1),
        np.stack(measured, axis=1),
        np.full(len(lessons), course),
        np.array([structures.index(lesson.info.task) for lesson in lessons]),
    )


def _arrays(lesson: Lesson, plans: Sequence[str]) -> tuple[Array, Array, Array, Array]:
    """Return gain and rent [O, P] of the plans, features [O, F], and measurements [O, T, F] of one lesson."""
    indices = [lesson.info.alternatives.index(plan) for plan in plans]
    gain_OP = (lesson.score_OPT[..., -1] - lesson.score_OPT[..., 0] - lesson.cost_OPT.sum(dim=-1))[:, indices]
    grown_OP = lesson.rent_OPT.sum(dim=-1)[:, indices]
    idle = lesson.info.alternatives.index(WAIT)
    obs_OTF = lesson.obs_OPTF[:, idle].clone()
    set_rent(obs_OTF, lesson.rent_OPT[:, idle], 1.0)  # so that the rent of the lesson's policies is no feature
    shape = ObservationShape(lesson.blueprint_OPTS.shape[-1], lesson.masks.blueprint_ESB.shape[-1])
    return gain_OP.numpy(), grown_OP.numpy(), _visible(obs_OTF[:, 0], shape), _measured(obs_OTF[:, 1:], shape)


def _visible(obs_OF: torch.Tensor, shape: ObservationShape) -> Array:
    """Return features before the first step that exist for any number of slots and blueprints, [O, F].

    These are the base features, the number of slots, and the places of the first, middle and last slot. Minimum, mean
    and maximum of the properties of the blueprints that the first and the last slot offer come after them.
    """
    base_OF, slot_OSG, blueprint_OSBK = shape.split(obs_OF)
    slots = int((slot_OSG[0, :, 0] > 0).sum())
    parts = [base_OF, torch.full_like(base_OF[:, :1], slots)]
    parts += [slot_OSG[:, index, 1:3] for index in (0, slots // 2, slots - 1)]
    for index in (0, slots - 1):
        offered_OBK = blueprint_OSBK[:, index][:, blueprint_OSBK[0, index, :, 0] > 0, 1:]
        parts += [offered_OBK.amin(dim=1), offered_OBK.mean(dim=1), offered_OBK.amax(dim=1)]
    return torch.cat(parts, dim=1).double().numpy()


def _measured(obs_OTF: torch.Tensor, shape: ObservationShape) -> Array:
    """Return the newest loss and score, those of the training, and the gradient norm of the first steps, [O, T, F]."""
    starts = dict(zip(BASE_GROUPS, np.cumsum([0, *BASE_GROUPS.values()]), strict=False))
    columns = [starts["validation"], starts["validation"] + HISTORY_STEPS]
    for name in ("training", "gradient norm"):
        columns += range(starts[name], starts[name] + BASE_GROUPS[name])
    base_OTF, _, _ = shape.split(obs_OTF[:, : max(IDLE_STEPS)])
    return base_OTF[..., columns].double().numpy()


def join(parts: Sequence[Contexts]) -> Contexts:
    """Return the contexts of several courses."""
    numbers = [len(set(part.structure_C)) for part in parts]
    firsts = np.cumsum([0, *numbers[:-1]])
    return Contexts(
        gain_OCP=np.concatenate([part.gain_OCP for part in parts], axis=1),
        grown_OCP=np.concatenate([part.grown_OCP for part in parts], axis=1),
        visible_OCF=np.concatenate([part.visible_OCF for part in parts], axis=1),
        measured_OCTF=np.concatenate([part.measured_OCTF for part in parts], axis=1),
        course_C=np.concatenate([part.course_C for part in parts]),
        structure_C=np.concatenate([part.structure_C + first for part, first in zip(parts, firsts, strict=True)]),
    )


def rents_of(contexts: int) -> dict[str, Array]:
    """Return the rent of each context, keyed by a name for the table."""
    low, high = np.log(DRAWN_RENTS)
    drawn_C = np.exp(np.random.default_rng(0).uniform(low, high, contexts))
    return {f"{rent:g}": np.full(contexts, rent) for rent in RENTS} | {"drawn": drawn_C}


def tables(title: str, found: Contexts) -> str:
    """Return the headroom and the gains of the predictors as Markdown."""
    contexts = found.gain_OCP.shape[1]
    title = f"### {title}: {contexts} contexts, {len(KINDS)} kinds of plans"
    parts = [title, *_headroom_table(found)]
    if contexts >= MIN_CONTEXTS:
        parts += _predictor_table(found)
    return "\n".join(parts)


def _headroom_table(found: Contexts) -> list[str]:
    label_C = found.course_C
    several_courses, several_structures = len(set(label_C)) > 1, len(set(found.structure_C)) > 1
    names = ["rent", "best kind for all", "its net return", "if chosen in the other contexts", "waiting"]
    names.append("gain of the best kind for each context")
    if several_structures:
        names.append("… for each " + ("task and structure" if several_courses else "structure"))
    rows: list[list[str]] = []
    for name, rent_C in rents_of(len(label_C)).items():
        return_OCP = found.returns(rent_C)
        best = best_plan(return_OCP.mean(axis=0), label_C)
        mean_P = Groups.of(label_C, len(label_C)).weights @ return_OCP.mean(axis=0)
        means = [mean_P[best], left_out_return(return_OCP, label_C), mean_P[KINDS.index("wait")]]
        gains = [headroom(return_OCP, label_C)]
        if several_structures:
            gains.append(group_gain(return_OCP, label_C, found.structure_C))
        is_enough = len(label_C) >= MIN_CONTEXTS
        texts = [gain.signed if is_enough else f"{gain.mean:+.3f}" for gain in gains]
        rows.append([name, KINDS[best], *(f"{mean:+.3f}" for mean in means), *texts])
    return _table(names, rows)


def _predictor_table(found: Contexts) -> list[str]:
    rows: list[list[str]] = []
    for name, rent_C in rents_of(len(found.course_C)).items():
        return_OCP = found.returns(rent_C)
        for steps in (0, *IDLE_STEPS):
            features = found.features(rent_C, steps)
            gains = [predicted_gain(features, return_OCP, kernel, found.course_C).signed for kernel in KERNELS]
            observes = f"also {steps} steps of the idle host" if steps else "layout and host before the first step"
            rows.append([name, observes, *gains])
    return _table(["rent", "predictor observes", *KERNELS], rows)


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return ["", *(f"| {' | '.join(cells)} |" for cells in (names, ["---"] * len(names), *rows))]


def main() -> None:
    """Print the tables of each course, and of all courses with the same number of steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=DIRECTORY, help="directory of research/teach.py")
    parser.add_argument("--iteration", type=int, default=0)
    parser.add_argument("--courses", nargs="+", help="names of the courses (default: all)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    chosen = [course for course in COURSES if not options.courses or course.name in options.courses]
    found: list[tuple[Course, Contexts]] = []
    for course in chosen:
        lessons = read_lessons(options.directory, [options.iteration], [course])
        if len(lessons) < 2:
            print(f"{course.name}: {len(lessons)} lessons, too few", file=sys.stderr)
            continue
        _, space = prepare(course)
        try:
            found.append((course, read_contexts(lessons, plans_of(space), COURSES.index(course))))
        except ConfigError as error:
            parser.error(str(error))
        print(f"\n{tables(course.name, found[-1][1])}", flush=True)
    for steps, group in groupby(sorted(found, key=lambda item: item[0].steps), key=lambda item: item[0].steps):
        parts = [contexts for _, contexts in group]
        if len(parts) > 1:
            print(f"\n{tables(f'Mixture of {len(parts)} courses with {steps} steps', join(parts))}", flush=True)


if __name__ == "__main__":
    main()
