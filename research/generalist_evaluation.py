"""Is the taught policy better than plans, the heuristic and not growing, and does it do no harm?

    python -m research.generalist_evaluation --policies FILE FILE … --seed 6100

Every policy plays the same fresh contexts as the constant plans, the heuristic and the bare host. The plan to compare
with is chosen on the lessons of the training, or on the same episodes ("in hindsight") where the table says so.
Episodes are stored; an interrupted command continues.

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

from esper.checkpoint.manifest import digest
from esper.engine.trained_policy import SHIPPED, read_policy_file
from esper.evaluation.journal import EvaluationJournal, EvaluationKey, open_search_journal
from esper.intervals import IntervalEstimate, seeds_interval
from esper.lanes.devices import device_kinds, resolve_devices
from esper.search.space import PlanSpace
from esper.teaching.player import HEURISTIC, Alternative, Assignment, LessonPlayer

DIRECTORY = TELEMETRY_DIR / "evaluations" / "generalist"
TAUGHT = {
    "digits_family": "research/transfer.py:SHALLOW",
    "rents": "research/transfer.py:SHALLOW",
    "deep_digits": "research/transfer.py:SHALLOW",
}
"""Task whose lessons choose the plans for a part, if it is not the task itself."""
RENT = 0.002
RENTS = (0.0005, 0.001, 0.002, 0.004, 0.008)
CAPACITY = 32
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
"""The nine constant plans."""


class Part(NamedTuple):
    """Episodes of one task."""

    course: Course
    rents: Sequence[float] = (RENT,)


PARTS = {
    "digits_family": Part(Course("digits_family", 40, 128)),
    "rents": Part(Course("digits_family", 40, 32), RENTS),
    "recall": Part(Course("recall", 40, 32)),
    "spirals": Part(Course("research/generalist.py:SPIRALS", 40, 32)),
    "mnist1d": Part(Course("mnist1d", 40, 32)),
    "digits": Part(Course("digits", 40, 32)),
    "digits_impaired": Part(Course("digits_impaired", 40, 64)),
    "synthetic": Part(Course("synthetic", 40, 16)),
    "waves": Part(Course("research/unseen_tasks.py:WAVES", 40, 16)),
    "unet": Part(Course("research/unseen_tasks.py:UNET", 40, 16)),
    "deep_digits": Part(Course("research/transfer.py:DEEP", 40, 64)),
    "small_gpt": Part(Course("research/unseen_tasks.py:GPT", 40, 16)),
    "timm_resnet": Part(Course("research/unseen_tasks.py:TIMM", 20, 8)),
}


class Outcome(msgspec.Struct, frozen=True):
    """Outcome of one episode, from which its net return at every rent follows."""

    gain: float
    """Final minus first validation score, minus the costs of ops and penalties."""
    rent: float
    """Sum of the rents at weight 1."""
    score: float
    """Final validation score."""
    parameter_ratio: float
    """Parameters at the end over those of the bare host, of hosts with at least `rent_floor` parameters."""
    broke_down: bool

    def net_return(self, rent: float) -> float:
        """Return the net return at a weight of the rent."""
        return self.gain - rent * self.rent


class Player:
    """Plays and stores the episodes of one part.

    Args:
        policies: Files of trained policies.
    """

    def __init__(self, name: str, seed: int, policies: Sequence[Path], directory: Path, devices: Sequence[str]) -> None:
        self._part, self._seed, self._devices = PARTS[name], seed, resolve_devices(devices)
        self._files = {digest(path.read_bytes()): path for path in policies}
        key = EvaluationKey(
            task=name,
            episodes=1,
            checkpoints=[],
            code={},
            package="",
            torch=str(torch.__version__),
            devices=device_kinds(self._devices),
        )
        self._journal: EvaluationJournal = open_search_journal(directory, f"{name}-{seed}", key)
        self._player: LessonPlayer | None = None
        self.prepared, self.space = prepare(self._part.course)

    def close(self) -> None:
        """Stop the lanes."""
        if self._player:
            self._player.close()

    def lesson_space(self, name: str) -> PlanSpace:
        """Return the plans for the task whose lessons choose the plans to compare with."""
        return prepare(Course(TAUGHT[name], 40, 0))[1] if name in TAUGHT else self.space

    def play(self, names: Iterable[str], rent: float) -> dict[str, list[Outcome]]:
        """Return the outcomes of plans and policies in all contexts, keyed by name.

        Args:
            names: Plans, `HEURISTIC`, and digests of policies.
            rent: Weight of the rent for the policies. Plans do not depend on it, and are played once.
        """
        names = list(dict.fromkeys(names))
        contexts = range(self._part.course.contexts)
        rents = {name: rent if name in self._files else RENT for name in names}
        size = max(1, CAPACITY // len(names))
        for first in range(0, len(contexts), size):
            group = contexts[first : first + size]
            missing = [
                (name, context)
                for context in group
                for name in names
                if not self._journal.has(self._key(name, context, rents[name]))
            ]
            self._play(missing, rents)
        return {
            name: [
                self._journal.recall(self._key(name, context, rents[name]), Outcome, _unreachable)
                for context in contexts
            ]
            for name in names
        }

    def _play(self, jobs: Sequence[tuple[str, int]], rents: dict[str, float]) -> None:
        if not jobs:
            return
        if self._player is None:
            self._player = LessonPlayer(
                self.prepared,
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
                parameter_ratio=math.exp(float(lesson.rent_OPT[0, 0, -1])),
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
    taught: Sequence[Sequence[Outcome]]
    """Outcomes of each policy of `--policies`."""
    shipped: Sequence[Outcome]
    others: dict[str, Sequence[Outcome]]
    """Outcomes of the bare host, the heuristic and the plans, keyed by `static`, `heuristic` and kind."""
    chosen: str
    """Kind of the constant plan that is best in the lessons; in hindsight, if there are none."""
    known: str
    """Kind of the best plan in the lessons, among all kinds."""

    def returns(self, outcomes: Sequence[Outcome]) -> list[float]:
        """Return the net return of each episode."""
        return [outcome.net_return(self.rent) for outcome in outcomes]

    def difference(self, other: str) -> IntervalEstimate:
        """Return the net return of the taught policies minus that of another one, over seeds and episodes."""
        against = self.returns(self.shipped if other == "v1" else self.others[other])
        return seeds_interval([[a - b for a, b in zip(self.returns(one), against, strict=True)] for one in self.taught])

    @property
    def hindsight(self) -> str:
        """Kind of the constant plan that is best in these episodes; or not to grow."""
        names = ["static", *CONSTANT]
        return max(names, key=lambda name: statistics.fmean(self.returns(self.others[name])))


def play_part(name: str, options: argparse.Namespace) -> list[Results]:
    """Play the missing episodes of a part, and return all of its results."""
    part, files = PARTS[name], [SHIPPED, *options.policies]
    digests = [digest(path.read_bytes()) for path in files]
    start = time.monotonic()
    found: list[Results] = []
    with closing(Player(name, options.seed, files, options.directory, options.devices)) as player:
        lessons = read_lessons(options.lessons, [0], [Course(TAUGHT.get(name, part.course.task), 40, 0)])
        for rent in part.rents:
            chosen = known = ""
            if lessons:
                means = mean_returns(lessons, player.lesson_space(name), rent)
                chosen, known = max(CONSTANT, key=lambda kind: means[kind]), max(means, key=lambda kind: means[kind])
            kinds = dict.fromkeys([*CONSTANT, *([known] if known else [])])
            plans = {"static": "", HEURISTIC: HEURISTIC} | {kind: kind_plan(kind, player.space) for kind in kinds}
            outcomes = player.play([*digests, *plans.values()], rent)
            others: dict[str, Sequence[Outcome]] = {str(label): outcomes[plan] for label, plan in plans.items()}
            shipped, *taught = (outcomes[key] for key in digests)
            found.append(Results(rent, taught, shipped, others, chosen, known))
            found[-1] = found[-1]._replace(chosen=chosen or found[-1].hindsight, known=known or found[-1].hindsight)
    print(f"{name}: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    return found


def print_tables(results: dict[str, list[Results]]) -> None:
    """Print the results as Markdown."""
    print("| task, rent | episodes | parameters | net return | minus v1 | minus heuristic | minus static |", end="")
    print(" minus the best constant plan | minus the best plan known | minus the plan of hindsight |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name, by_rent in results.items():
        for one in by_rent:
            size = statistics.fmean(outcome.parameter_ratio for of_seed in one.taught for outcome in of_seed)
            mean = seeds_interval([one.returns(of_seed) for of_seed in one.taught])
            cells = [f"{name}, {one.rent:g}", len(one.shipped), f"×{size:.2f}", mean.signed]
            cells += [one.difference(other).signed for other in ("v1", HEURISTIC, "static")]
            plans = (one.chosen, one.known, one.hindsight)
            cells += [f"{plan}: {one.difference(plan).signed}" for plan in plans]
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def main() -> None:
    """Play the episodes that are missing, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", type=Path, nargs="+", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS), metavar="PART")
    parser.add_argument("--lessons", type=Path, default=LESSONS, help="lessons that choose the plans to compare with")
    parser.add_argument("--directory", type=Path, default=DIRECTORY)
    parser.add_argument("--devices", nargs="+", default=["auto"])
    options = parser.parse_args()
    print_tables({name: play_part(name, options) for name in options.parts})


if __name__ == "__main__":
    main()
