"""Statistics and tables of `growth_search.py`.

A cell is one task with one random seed. All methods of a cell play the same evaluation hosts, so that the differences
between their mean returns are paired. Intervals are t intervals, over all cells, and over the means of the tasks.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec

from esper.common.intervals import t_interval
from esper.recordings.candidates.candidates import BARE_HOST

COUNTS = (8, 16, 32, 64)
"""Numbers of trials."""
SEARCH_HOST = 0
FRESH_HOSTS = range(1, 6)
EVALUATION_HOSTS = range(6, 12)
OWN_TASKS = ("mixer", "unet", "table", "waves", "copy")
"""Tasks for which neither a policy nor the known plans of the search were chosen."""
POLICY, BEST_CONSTANT = "policy", "best constant plan"

PAIRS = (
    ("guided 16", "random 64"),
    ("guided 16", "tpe 64"),
    ("guided 16", "random 16"),
    ("guided 16", "tpe 16"),
    ("guided 16", BEST_CONSTANT),
    ("guided 32", BEST_CONSTANT),
    ("guided 64", BEST_CONSTANT),
    ("guided 64", "tpe 64"),
    ("guided 16", POLICY),
    ("guided 16", BARE_HOST),
    ("guided 32", BARE_HOST),
)
"""Methods that are compared."""
SHOWN = (BARE_HOST, POLICY, BEST_CONSTANT, "random 64", "tpe 64", "guided 16", "guided 32", "guided 64")
"""Methods whose mean return in each task is shown."""


class SearchResult(msgspec.Struct, frozen=True):
    """Result of a search after some trials."""

    kind: str
    trials: int
    answer: str
    """Candidate that was chosen on the fresh hosts."""
    origin: str
    """Origin of the answer."""
    episodes: float
    """Episodes of all trials, with the fractions that pruned ones played, and of the fresh hosts."""
    pruned: int
    """Number of trials that were pruned."""
    best_is_pruned: bool
    """True if the trial was pruned that would have had the highest return."""
    fresh_return: float
    """Mean return of the answer on the fresh hosts. It is too high: the answer was chosen by it."""


class Cell(msgspec.Struct, frozen=True):
    """Results of a task with a random seed."""

    task: str
    seed: int
    searches: list[SearchResult]
    answers: dict[str, str]
    """Candidate of each method: `answer_key` of the searches, the bare host, the policy, and the best constant plan."""
    returns: dict[str, list[float]]
    """Net return of each method on each evaluation host."""
    constant_trials: list[float]
    """Return of the bare host and of each constant plan on the host of the search."""
    constant_fresh: list[list[float]]
    """Their returns on each fresh host."""
    seconds: float
    """Mean CPU time of an episode of the evaluation."""


def answer_key(kind: str, trials: int) -> str:
    """Return the name of a search as a method."""
    return f"{kind} {trials}"


class Results:
    """All finished cells."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.cells = cells
        self.tasks = list(dict.fromkeys(cell.task for cell in cells))

    def only(self, tasks: Collection[str]) -> Results:
        """Return the cells of some tasks."""
        return Results([cell for cell in self.cells if cell.task in tasks])

    def of_task(self, task: str) -> list[Cell]:
        """Return the cells of a task."""
        return [cell for cell in self.cells if cell.task == task]

    def by_task(self, one: str, other: str | None = None) -> list[float]:
        """Return the mean over the cells of each task of a method's return, or of its difference to another's."""
        return [statistics.fmean(_difference(cell, one, other) for cell in self.of_task(task)) for task in self.tasks]

    def by_cell(self, one: str, other: str) -> list[float]:
        """Return the difference between the mean returns of two methods in each cell."""
        return [_difference(cell, one, other) for cell in self.cells]


def _difference(cell: Cell, one: str, other: str | None) -> float:
    return statistics.fmean(cell.returns[one]) - (statistics.fmean(cell.returns[other]) if other is not None else 0.0)


def signed(values: Sequence[float]) -> str:
    """Return a mean with its t interval, or the mean alone of a single value."""
    return t_interval(values).signed if len(values) > 1 else f"{statistics.fmean(values):+.3f}"


def read_results(directory: Path, tasks: Sequence[str], seeds: Sequence[int]) -> Results:
    """Read the finished cells of some tasks and random seeds."""
    paths = [directory / f"{task}-{seed}.json" for task in tasks for seed in seeds]
    return Results([msgspec.json.decode(path.read_bytes(), type=Cell) for path in paths if path.exists()])


def print_tables(directory: Path, tasks: Sequence[str], seeds: Sequence[int]) -> None:
    """Print the tables of the finished cells as Markdown."""
    results = read_results(directory, tasks, seeds)
    if not results.cells:
        print(f"no cell is finished in {directory}")
        return
    groups = {
        "All tasks": results,
        "Own tasks": results.only(OWN_TASKS),
        "Other tasks": results.only(set(results.tasks) - set(OWN_TASKS)),
    }
    tables = [comparisons(title, group) for title, group in groups.items() if group.cells]
    tables += [methods(results), tasks_table(results), task_figures(results), judges(results)]
    print(f"{len(results.cells)} cells: {len(results.tasks)} tasks, random seeds {_ranges(results)}")
    for table in tables:
        print()
        print("\n".join(table))


def _ranges(results: Results) -> str:
    seeds = sorted({cell.seed for cell in results.cells})
    return ", ".join(f"{seed} ({sum(cell.seed == seed for cell in results.cells)})" for seed in seeds)


def comparisons(title: str, results: Results) -> list[str]:
    """Return the table of the paired differences of some cells."""
    rows = [
        f"{title}: {len(results.tasks)} tasks, {len(results.cells)} cells",
        "",
        "| difference | over tasks × seeds | over the means of the tasks | better, equal, worse cells | worst task |",
        "|---|---|---|---|---|",
    ]
    for one, other in PAIRS:
        means, cells = results.by_task(one, other), results.by_cell(one, other)
        better, worse = sum(value > 0 for value in cells), sum(value < 0 for value in cells)
        worst = min(zip(means, results.tasks, strict=True))
        rows.append(
            f"| {one} − {_label(other)} | {signed(cells)} | {signed(means)} | "
            f"{better}, {len(cells) - better - worse}, {worse} | {worst[0]:+.3f} ({worst[1]}) |"
        )
    return rows


def methods(results: Results) -> list[str]:
    """Return the table of all methods."""
    rows = [
        "| method | episodes | net return | minus bare host, over tasks × seeds | answers that are the bare host |",
        "|---|---|---|---|---|",
    ]
    for method in results.cells[0].answers:
        costs = [
            search.episodes
            for cell in results.cells
            for search in cell.searches
            if answer_key(search.kind, search.trials) == method
        ]
        cost = f"{statistics.fmean(costs):.0f}" if costs else "45" if method == BEST_CONSTANT else "0"
        bare = sum(cell.answers[method] == BARE_HOST for cell in results.cells)
        rows.append(
            f"| {_label(method)} | {cost} | {statistics.fmean(results.by_task(method)):+.3f} | "
            f"{signed(results.by_cell(method, BARE_HOST))} | {bare} of {len(results.cells)} |"
        )
    return rows


def tasks_table(results: Results) -> list[str]:
    """Return the table of the mean returns in each task."""
    gaining = [method for method in ("guided 16", "guided 32") if method in SHOWN]
    rows = [
        f"| task | {' | '.join([*map(_label, SHOWN), *(f'{method} − bare host' for method in gaining)])} |",
        "|---" * (1 + len(SHOWN) + len(gaining)) + "|",
    ]
    for task in results.tasks:
        cells = results.of_task(task)
        means = [statistics.fmean(_difference(cell, method, None) for cell in cells) for method in SHOWN]
        gains = [signed([_difference(cell, method, BARE_HOST) for cell in cells]) for method in gaining]
        rows.append(f"| {task} | {' | '.join(f'{mean:+.3f}' for mean in means)} | {' | '.join(gains)} |")
    return rows


def task_figures(results: Results) -> list[str]:
    """Return the table of the figures of the tasks: seconds, returns on fresh hosts, and how far one host is right."""
    rows = [
        "| task | seconds per episode | bare host | standard deviation over hosts | best constant plan − bare host | "
        "its standard deviation over hosts | rank correlation of one host with five |",
        "|---|---|---|---|---|---|---|",
    ]
    for task in results.tasks:
        cells = results.of_task(task)
        gains: list[float] = []
        spreads: list[float] = []
        for cell in cells:
            best = max(cell.constant_fresh[1:], key=statistics.fmean)
            paired = [a - b for a, b in zip(best, cell.constant_fresh[0], strict=True)]
            gains.append(statistics.fmean(paired))
            spreads.append(statistics.stdev(paired))
        bare = [value for cell in cells for value in cell.constant_fresh[0]]
        rows.append(
            f"| {task} | {statistics.fmean(cell.seconds for cell in cells):.2f} | {statistics.fmean(bare):+.3f} | "
            f"{statistics.stdev(bare):.3f} | {statistics.fmean(gains):+.3f} | {statistics.fmean(spreads):.3f} | "
            f"{statistics.fmean(map(rank_correlation, cells)):+.2f} |"
        )
    return rows


def rank_correlation(cell: Cell) -> float:
    """Return Spearman's correlation of one trial with the mean on fresh hosts, over bare host and constant plans."""
    return statistics.correlation(
        _ranks(cell.constant_trials), _ranks([statistics.fmean(fresh) for fresh in cell.constant_fresh])
    )


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value; equal ones share their mean rank."""
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) - 1) / 2 for value in values]


def judges(results: Results) -> list[str]:
    """Return the tables about the pruner, the choice on fresh hosts, and the origins of the answers."""
    rows = [
        "| search | pruned trials | best trial was pruned | return on fresh hosts − on evaluation hosts | "
        "origins of the answers |",
        "|---|---|---|---|---|",
    ]
    keys = list(dict.fromkeys((search.kind, search.trials) for cell in results.cells for search in cell.searches))
    for kind, trials in keys:
        found = [
            (cell, search)
            for cell in results.cells
            for search in cell.searches
            if (search.kind, search.trials) == (kind, trials)
        ]
        pruned = statistics.fmean(search.pruned / trials for _, search in found)
        lost = sum(search.best_is_pruned for _, search in found)
        curse = [
            search.fresh_return - statistics.fmean(cell.returns[answer_key(kind, trials)]) for cell, search in found
        ]
        origins = Counter(search.origin for _, search in found).most_common()
        rows.append(
            f"| {kind} {trials} | {pruned:.0%} | {lost} of {len(found)} | {signed(curse)} | "
            f"{', '.join(f'{origin} {count}' for origin, count in origins)} |"
        )
    return rows


def _label(method: str) -> str:
    return method or "bare host"
