"""Cells: one arm of the comparison with one budget and one random seed, their file, and the table of them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from esper.common.intervals import t_interval
from esper.common.score_scale import PERCENT
from esper.common.system.process import cpu_seconds
from esper.recordings.events.codec import encode_json

HOST, GROW, WIDTHS, RANDOM, TINY = ARMS = ("host", "grow", "widths", "random", "gromo")
"""Names of the arms."""
MAX_PARAMETERS = 3
"""Limit of the parameters of every arm, as a multiple of those of the host."""
SMALL_MINUTES, LARGE_MINUTES = 20, 60
"""Budgets, in CPU minutes."""


class Budget:
    """CPU time that an arm may use, of this process and its children.

    Args:
        minutes: CPU minutes from now on.
    """

    def __init__(self, minutes: float) -> None:
        self.seconds = 60 * minutes
        self._start = cpu_seconds()

    @property
    def spent(self) -> float:
        """CPU seconds since the start."""
        return cpu_seconds() - self._start

    @property
    def fraction(self) -> float:
        """Fraction of the budget that is spent, at most 1."""
        return min(self.spent / self.seconds, 1.0)


class Compared(msgspec.Struct, frozen=True):
    """A network that is only compared with an answer: its mean over fresh trainings."""

    test: float
    parameters: int


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Result of an arm: one network, chosen by the validation split."""

    test: float
    """Accuracy on the test split, a fraction."""
    validation: float
    parameters: int
    trainings: int
    """Number of trainings that were begun, of the search and on fresh hosts."""
    architecture: str
    cpu_minutes: float
    """CPU time up to the choice of the network."""
    compared: dict[str, Compared] = {}
    """Networks that were trained only to be compared with this one, keyed by name."""
    compared_cpu_minutes: float = 0.0
    """CPU time of these trainings."""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One arm with one budget and one random seed, as a line of the file."""

    arm: str
    minutes: float
    """Budget, in CPU minutes."""
    seed: int
    steps: int
    """Maximum number of steps of a training, of the arms that have several trainings."""
    answer: Answer
    wall_minutes: float
    load: float
    """Load average of the machine over the last 15 minutes."""
    machine: str
    versions: str
    date: str

    @property
    def key(self) -> tuple[str, float, int]:
        """Arm, budget and random seed."""
        return self.arm, self.minutes, self.seed


def planned() -> Iterator[tuple[str, float, int]]:
    """Yield the cells of the comparison, in their order: all arms with one random seed before the next one."""
    for seed in range(1, 6):
        for arm in ARMS:
            yield arm, SMALL_MINUTES, seed
    for seed in range(1, 4):
        for arm in (GROW, WIDTHS, TINY):
            yield arm, LARGE_MINUTES, seed


def read_cells(path: Path) -> list[Cell]:
    """Return the finished cells of a file; none if it does not exist."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [msgspec.json.decode(line, type=Cell) for line in lines if line.strip()]


def append_cell(path: Path, cell: Cell) -> None:
    """Append a finished cell to a file, as one line."""
    with path.open("ab", buffering=0) as file:
        file.write(encode_json(cell) + b"\n")


def format_tables(cells: Sequence[Cell]) -> str:
    """Return the tables of all budgets, in Markdown: the arms, and `grow` minus each other arm on the same seeds."""
    lines: list[str] = []
    for minutes in sorted({cell.minutes for cell in cells}):
        answers = {arm: _answers(cells, arm, minutes) for arm in ARMS}
        lines += [
            f"{minutes:g} CPU minutes, 95 % intervals over random seeds",
            "",
            "| arm | test accuracy | parameters | trainings | CPU minutes | seeds |",
            "|---|---|---|---|---|---|",
        ]
        for arm, by_seed in answers.items():
            if by_seed:
                found = list(by_seed.values())
                lines.append(
                    f"| {arm} | {_accuracy([one.test for one in found])} | {_mean(one.parameters for one in found)} | "
                    f"{_mean(one.trainings for one in found)} | "
                    f"{statistics.fmean(one.cpu_minutes for one in found):.1f} | {len(found)} |"
                )
        of_grow = answers[GROW]
        for name in dict.fromkeys(name for one in of_grow.values() for name in one.compared):
            networks = [one.compared[name] for one in of_grow.values() if name in one.compared]
            lines.append(
                f"| {GROW}: {name} | {_accuracy([one.test for one in networks])} | "
                f"{_mean(one.parameters for one in networks)} | – | billed apart | {len(networks)} |"
            )
        lines += ["", "| grow minus | percentage points | common seeds |", "|---|---|---|"]
        for arm, by_seed in answers.items():
            common = sorted(of_grow.keys() & by_seed.keys())
            if arm != GROW and len(common) > 1:
                gains = [of_grow[seed].test - by_seed[seed].test for seed in common]
                lines.append(f"| {arm} | {PERCENT.signed_interval(t_interval(gains))} | {len(common)} |")
        lines.append("")
    return "\n".join(lines)


def _answers(cells: Sequence[Cell], arm: str, minutes: float) -> dict[int, Answer]:
    """Return the answers of an arm with a budget, keyed by random seed."""
    return {cell.seed: cell.answer for cell in cells if (cell.arm, cell.minutes) == (arm, minutes)}


def _accuracy(values: Sequence[float]) -> str:
    """Return a mean with its interval, or a single value."""
    return PERCENT.text(values[0]) if len(values) == 1 else PERCENT.interval(t_interval(values).clip(*PERCENT.limits))


def _mean(values: Iterable[int]) -> str:
    return f"{statistics.fmean(values):,.0f}"
