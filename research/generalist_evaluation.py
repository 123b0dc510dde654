"""Is the taught policy better than plans and the heuristic, and is it not worse than not growing?

    python -m research.generalist_evaluation --policies FILE FILE … --seed 6100

Policies, plans, the heuristic and the bare host play the same fresh contexts. The plans are chosen by their returns in
the lessons of `research/teach.py`. Only the plan of hindsight is chosen in the same episodes. Intervals are over
policies and episodes.

Episodes are stored, and an interrupted command continues. After a change of the engine or of a task, give another
`--directory`.

Takes about 40 minutes on two cores with five policies.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch
from research.alternatives import kind_plan, mean_returns
from research.curriculum import Course
from research.policies import TELEMETRY_DIR
from research.teach import DIRECTORY as LESSONS
from research.teach import prepare, read_lessons
from research.teaching.player import HEURISTIC, Alternative, Assignment, LessonPlayer

from esper.common.configuration.config import ConfigError
from esper.common.intervals import seeds_interval
from esper.recordings.checkpoints.manifest import digest
from esper.studies.evaluation.journal import EvaluationKey, open_search_journal
from esper.training.engine.trained_policy import read_policy_file
from esper.training.lanes.devices import device_kinds, resolve_devices

DIRECTORY = TELEMETRY_DIR / "evaluations" / "generalist"
RENT = 0.002
"""Weight of the rent in all parts but `rents`; the default of the configuration."""
RENTS = (0.0005, 0.001, 0.002, 0.004, 0.008)
CAPACITY = 32
"""Maximum number of episodes that run at the same time."""
CONSTANT = (
    "small two",
    "middle two",
    "large two",
    "small first",
    "middle first",
    "large first",
    "small last",
    "middle, large",
    "small all",
)
"""Kinds of the nine constant plans."""

AGAINST = ("before", HEURISTIC, "static", "best constant plan", "best known plan", "plan of hindsight")
HEADINGS = (
    *("task, rent", "episodes", "breakdowns", "parameters", "score", "net return"),
    *(f"minus {name}" for name in AGAINST),
)
"""Headings of the table."""


class Part(NamedTuple):
    """Episodes of one task.

    Attributes:
        course: Task, number of steps, and number of contexts.
        lessons_of: Task whose lessons choose the plans to compare with; None: no plans.
        rents: Weights of the rent.
        hindsight: Also play all constant plans, and compare with the one that is best in these episodes.
    """

    course: Course
    lessons_of: str | None
    rents: Sequence[float] = (RENT,)
    hindsight: bool = False


SPIRALS = "research/generalist.py:SPIRALS"
SHALLOW = "research/transfer.py:SHALLOW"
UNSEEN = "research/unseen_tasks.py"
PARTS = {
    "digits_family": Part(Course("digits_family", 40, 128), SHALLOW),
    "rents": Part(Course("digits_family", 40, 32), SHALLOW, RENTS, hindsight=True),
    "recall": Part(Course("recall", 40, 32), "recall"),
    "spirals": Part(Course(SPIRALS, 40, 32), SPIRALS),
    "mnist1d": Part(Course("mnist1d", 40, 32), "mnist1d"),
    "digits": Part(Course("digits", 40, 32), "digits"),
    "digits_impaired": Part(Course("digits_impaired", 40, 64), "digits_impaired"),
    "synthetic": Part(Course("synthetic", 40, 16), None),
    "waves": Part(Course(f"{UNSEEN}:WAVES", 20, 32), None),
    "unet": Part(Course(f"{UNSEEN}:UNET", 20, 32), None),
    "deep_digits": Part(Course("research/transfer.py:DEEP", 40, 64), SHALLOW),
    "small_gpt": Part(Course(f"{UNSEEN}:GPT", 20, 16), None),
    "timm_resnet": Part(Course(f"{UNSEEN}:TIMM", 20, 8), None),
}


class Outcome(msgspec.Struct, frozen=True):
    """Outcome of one episode, from which its net return at every rent follows."""

    gain: float
    """Final minus first validation score, minus the costs of ops and penalties."""
    rent: float
    """Sum of the rents at weight 1."""
    score: float
    """Validation score after the last step."""
    parameter_ratio: float
    """1 + grown parameters / parameters of the host, or `rent_floor` if the host has fewer, after the last step."""
    broke_down: bool
    """True if the governor ended the episode early."""

    def net_return(self, rent: float) -> float:
        """Return the net return at a weight of the rent."""
        return self.gain - rent * self.rent


class Player:
    """Plays and stores the episodes of one part. Parts of the same task and number of steps share their episodes.

    Attributes:
        space: Space of the plans of the task.
    """

    def __init__(self, part: Part, options: argparse.Namespace) -> None:
        self._part, self._seed, self._devices = part, options.seed, resolve_devices(options.devices)
        files = [*options.policies, *([options.before] if options.before else [])]
        self._files: dict[str, Path] = {digest(path.read_bytes()): path for path in files}
        course = part.course
        key = EvaluationKey(
            task=course.task,
            episodes=1,
            checkpoints=[],
            code={},
            package="",
            torch=str(torch.__version__),
            devices=device_kinds(self._devices),
        )
        self._journal = open_search_journal(options.directory, f"{course.name}-{options.seed}", key)
        self._limit = options.episodes or course.contexts
        self._player: LessonPlayer | None = None
        self._prepared, self.space = prepare(course)

    def close(self) -> None:
        """Stop the lanes."""
        if self._player:
            self._player.close()

    def play(self, names: Iterable[str], rent: float) -> dict[str, list[Outcome]]:
        """Return the outcomes of plans and policies in all contexts, keyed by name.

        Args:
            names: Plans, `HEURISTIC`, and digests of policies.
            rent: Weight of the rent for the policies. Plans and the heuristic do not depend on it, and are played once.
        """
        names = list(dict.fromkeys(names))
        contexts = range(min(self._part.course.contexts, self._limit))
        rents = {name: rent if name in self._files else RENT for name in names}
        missing = [
            (name, context)
            for context in contexts
            for name in names
            if not self._journal.has(self._key(name, context, rents[name]))
        ]
        for first in range(0, len(missing), CAPACITY):
            self._play(missing[first : first + CAPACITY], rents)
        return {
            name: [
                self._journal.recall(self._key(name, context, rents[name]), Outcome, _unreachable)
                for context in contexts
            ]
            for name in names
        }

    def _play(self, jobs: Sequence[tuple[str, int]], rents: dict[str, float]) -> None:
        """Play and store episodes, given by name and context."""
        if self._player is None:
            self._player = LessonPlayer(
                self._prepared,
                self._devices,
                seed=self._seed,
                orders=1,
                capacity=CAPACITY,
                software="",
                policies={key: read_policy_file(path, path.name) for key, path in self._files.items()},
            )
        lessons = self._player.play([Assignment(context, [Alternative(name)], rents[name]) for name, context in jobs])
        for (name, context), lesson in zip(jobs, lessons, strict=True):
            scores = lesson.score_OPT[0, 0]
            outcome = Outcome(
                gain=float(scores[-1] - scores[0] - lesson.cost_OPT.sum()),
                rent=float(lesson.rent_OPT.sum()),
                score=float(scores[-1]),
                parameter_ratio=math.exp(float(lesson.rent_OPT[lesson.valid_OPT][-1])),
                broke_down=not bool(lesson.valid_OPT.all()),
            )
            self._journal.recall(self._key(name, context, rents[name]), Outcome, lambda outcome=outcome: outcome)

    def _key(self, name: str, context: int, rent: float) -> str:
        return f"{context} {rent:g} {name}"


def _unreachable() -> Outcome:
    raise AssertionError("the episode was played before")


class Results(NamedTuple):
    """Outcomes of one part at one rent, keyed by name."""

    rent: float
    policies: Sequence[Sequence[Outcome]]
    """Outcomes of each policy of `--policies`."""
    others: dict[str, Sequence[Outcome]]
    """Outcomes of `before`, `static`, `heuristic`, and kinds of plans, keyed by name."""
    chosen: str | None
    """Kind of the constant plan that is best in the lessons; None without lessons."""
    known: str | None
    """Kind of plan that is best in the lessons, among all kinds; None without lessons."""

    def returns(self, outcomes: Sequence[Outcome]) -> list[float]:
        """Return the net return of each episode."""
        return [outcome.net_return(self.rent) for outcome in outcomes]

    def difference(self, other: str | None) -> str:
        """Return the mean net return of the policies minus that of another one, with its interval; empty without it."""
        if other is None or other not in self.others:
            return ""
        against = self.returns(self.others[other])
        pairs = [[a - b for a, b in zip(self.returns(one), against, strict=True)] for one in self.policies]
        return seeds_interval(pairs).signed

    @property
    def hindsight(self) -> str | None:
        """Constant plan or `static`, whichever is best in these episodes; None unless all of them were played."""
        names = ["static", *CONSTANT]
        if not self.others.keys() >= set(names):
            return None
        return max(names, key=lambda name: statistics.fmean(self.returns(self.others[name])))


def play_part(name: str, options: argparse.Namespace) -> list[Results]:
    """Play the missing episodes of a part, and return its results at each rent."""
    part = PARTS[name]
    digests = [digest(path.read_bytes()) for path in options.policies]
    start = time.monotonic()
    found: list[Results] = []
    with closing(Player(part, options)) as player:
        chosen_plans = choose_plans(part, options.lessons)
        for rent, (chosen, known) in zip(part.rents, chosen_plans, strict=True):
            kinds = dict.fromkeys([*(CONSTANT if part.hindsight else ()), *filter(None, (chosen, known))])
            plans = {"static": "", HEURISTIC: HEURISTIC} | {kind: kind_plan(kind, player.space) for kind in kinds}
            if options.before:
                plans["before"] = digest(options.before.read_bytes())
            outcomes = player.play([*digests, *plans.values()], rent)
            others: dict[str, Sequence[Outcome]] = {label: outcomes[plan] for label, plan in plans.items()}
            found.append(Results(rent, [outcomes[key] for key in digests], others, chosen, known))
    print(f"{name}: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    return found


def choose_plans(part: Part, directory: Path) -> list[tuple[str | None, str | None]]:
    """Return the kinds of the best constant plan and of the best plan in the lessons of iteration 0, for each rent.

    Raises:
        ConfigError: There are no lessons of this task and number of steps.
    """
    if part.lessons_of is None:
        return [(None, None)] * len(part.rents)
    course = Course(part.lessons_of, part.course.steps, 0)
    lessons, (_, space) = read_lessons(directory, [0], [course]), prepare(course)
    found: list[tuple[str | None, str | None]] = []
    for rent in part.rents:
        means = mean_returns(lessons, space, rent)
        found.append((max(CONSTANT, key=means.__getitem__), max(means, key=means.__getitem__)))
    return found


def print_rows(name: str, by_rent: Sequence[Results]) -> None:
    """Print the results of a part as rows of a Markdown table."""
    for found in by_rent:
        outcomes = [outcome for of_policy in found.policies for outcome in of_policy]
        cells = [f"{name}, {found.rent:g}", str(len(found.policies[0])), str(sum(one.broke_down for one in outcomes))]
        cells.append(f"×{statistics.fmean(outcome.parameter_ratio for outcome in outcomes):.2f}")
        cells.append(f"{statistics.fmean(outcome.score for outcome in outcomes):.3f}")
        cells.append(seeds_interval([found.returns(of_policy) for of_policy in found.policies]).signed)
        cells += [found.difference(other) for other in ("before", HEURISTIC, "static")]
        plans = found.chosen, found.known, found.hindsight
        cells += [f"{plan or ''} {found.difference(plan)}".strip() for plan in plans]
        print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    """Play the episodes that are missing, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--policies", type=Path, nargs="+", required=True, help="policy files, one for each training seed"
    )
    parser.add_argument("--before", type=Path, help="policy file to compare with")
    parser.add_argument("--seed", type=int, required=True, help="random seed of the contexts")
    parser.add_argument("--episodes", type=int, help="maximum number of episodes of a part, for a first look")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS), metavar="PART")
    parser.add_argument("--lessons", type=Path, default=LESSONS, help="directory of research/teach.py")
    parser.add_argument("--directory", type=Path, default=DIRECTORY, help="directory of the stored episodes")
    parser.add_argument("--devices", nargs="+", default=["auto"])
    options = parser.parse_args()
    print(f"| {' | '.join(HEADINGS)} |\n{'|---' * len(HEADINGS)}|")
    try:
        for name in options.parts:
            print_rows(name, play_part(name, options))
    except ConfigError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
