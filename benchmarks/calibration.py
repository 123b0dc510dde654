"""How often `grow` names a better network: where nothing can help, and where growth helps.

    python -m benchmarks.calibration random_labels linear large_host   # named: at most 5 of 100
    python -m benchmarks.calibration curved interactions               # named: as many as possible
    python -m benchmarks.calibration random_labels --trials 32 --growths 50
    python -m benchmarks.calibration digits_impaired recall --steps 15 --growths 10

Each growth has a random seed of its own, and, on the tasks of this file, data of its own. The column `hosts only` has
the answers of a rule that ignores that all hosts share the validation samples: for each finalist, a one-sided t test of
level 5 % over five fresh hosts. Finished growths are kept in `--directory`, and are not repeated. A growth of a task of
this file takes about 4 seconds of one core.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import torch
from torch import Tensor, nn

import esper
from esper.common.intervals import fraction_interval, t_interval
from esper.common.printed_table import PrintedTable
from esper.common.score_scale import PERCENT
from esper.recordings.candidates.candidates import BARE_HOST, Candidate, Objective, choose

HOSTS_OF_OLD_RULE = 5
OBJECTIVES: tuple[Objective, ...] = ("return", "score")


class Answer(msgspec.Struct, frozen=True):
    """Answer of a growth."""

    named: str
    """The chosen candidate; empty for the bare host."""
    hosts_only: str
    """The same with the hosts as the only source of chance."""
    sentence: str


def make_task(name: str, host: Callable[[], nn.Module], slots: dict[str, str], x: Tensor, y: Tensor) -> esper.Task:
    """Return a task with a host, its slots, and the data of all splits."""
    train, validation = SPLITS[name]
    cuts = [(0, train), (train, train + validation), (train + validation, len(x))]
    splits = esper.Splits(
        **{
            split: (x[first:last], y[first:last])
            for split, (first, last) in zip(("train", "validation", "test"), cuts, strict=True)
        }
    )
    optimizer = esper.SGD({"random_labels": 0.1, "large_host": 0.02}.get(name, 0.05))
    return esper.Task(
        name=name, model=host, slots=slots, data=lambda _: splits, optimizer=optimizer, seed_optimizer=optimizer,
        batch_size=64,
    )  # fmt: skip


SPLITS = {
    "random_labels": (512, 300),
    "linear": (2000, 500),
    "large_host": (3000, 500),
    "curved": (3000, 4000),
    "interactions": (3000, 4000),
}
"""Numbers of samples for training and validation, keyed by task."""
TEST_SAMPLES = 4000


def draw(name: str, number: int, features: int) -> tuple[Tensor, torch.Generator]:
    """Return inputs of all splits, [N, features], and the generator that drew them."""
    generator = torch.Generator().manual_seed(1000 * list(SPLITS).index(name) + number)
    return torch.randn(sum(SPLITS[name]) + TEST_SAMPLES, features, generator=generator), generator


def sample_labels(logits: Tensor, generator: torch.Generator) -> Tensor:
    """Return a class for each row of logits, drawn from its softmax."""
    return torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]


def random_labels(number: int) -> esper.Task:
    """Return a task whose labels do not depend on the inputs: no network exceeds 25 %."""
    x, generator = draw("random_labels", number, 16)
    y = torch.randint(4, (len(x),), generator=generator)

    def host() -> nn.Module:
        return nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 4))

    return make_task("random_labels", host, {"a": "1", "b": "3"}, x, y)


def linear(number: int) -> esper.Task:
    """Return a linear problem with a linear host."""
    x, generator = draw("linear", number, 16)
    y = sample_labels(x @ torch.randn(16, 4, generator=generator), generator)

    def host() -> nn.Module:
        return nn.Sequential(nn.Linear(16, 16), nn.Identity(), nn.Linear(16, 4))

    return make_task("linear", host, {"a": "1"}, x, y)


def large_host(number: int) -> esper.Task:
    """Return a linear problem with noise, and a host that is large enough and trained long enough for it."""
    x, generator = draw("large_host", number, 8)
    logits_N = x @ torch.randn(8, generator=generator)
    y = (torch.rand(len(x), generator=generator) < logits_N.sigmoid()).long()

    def host() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))

    return make_task("large_host", host, {"a": "1", "b": "3"}, x, y)


def curved(number: int) -> esper.Task:
    """Return a linear host for a problem with the squares of three inputs: seeds add one to two points."""
    x, generator = draw("curved", number, 10)
    logits = x @ torch.randn(10, 3, generator=generator)
    logits += 0.5 * (x[:, :3].square() - 1) @ torch.randn(3, 3, generator=generator)
    y = sample_labels(1.5 * logits, generator)

    def host() -> nn.Module:
        return nn.Sequential(nn.Linear(10, 16), nn.Identity(), nn.Linear(16, 3))

    return make_task("curved", host, {"a": "1"}, x, y)


def interactions(number: int) -> esper.Task:
    """Return a linear host for a problem with an interaction of two inputs: seeds add one to two points."""
    x, generator = draw("interactions", number, 10)
    logits = x @ torch.randn(10, 3, generator=generator)
    logits += 0.7 * x[:, :1] * x[:, 1:2] * torch.tensor([1.0, -1.0, 0.0])
    y = sample_labels(1.5 * logits, generator)

    def host() -> nn.Module:
        return nn.Sequential(nn.Linear(10, 16), nn.Identity(), nn.Linear(16, 3))

    return make_task("interactions", host, {"a": "1"}, x, y)


TASKS: dict[str, Callable[[int], esper.Task]] = {
    task.__name__: task for task in (random_labels, linear, large_host, curved, interactions)
}


def grow(name: str, number: int, objective: Objective, trials: int, steps: int) -> Answer:
    """Grow a network with a random seed, and with data of its own if the task is one of this file."""
    task = TASKS[name](number) if name in TASKS else name
    with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stdout(io.StringIO()):
        result = esper.grow(
            task, trials=trials, steps=steps, objective=objective, seed=number, devices=["cpu:0"],
            telemetry_dir=directory,
        )  # fmt: skip
    chosen = choose(result.candidates, objective)
    assert chosen is not None
    return Answer(chosen.name, choose_by_hosts(result.candidates, objective), result.answer)


def choose_by_hosts(candidates: Sequence[Candidate], objective: Objective) -> str:
    """Return the answer of the rule that has only the hosts as a source of chance."""
    host = next(one for one in candidates if one.name == BARE_HOST)
    own, chosen = host.values(objective), (0.0, BARE_HOST)
    for one in candidates:
        if one is host or not one.is_fresh:
            continue
        values = one.values(objective)
        differences = [values[number] - own[number] for number in range(1, HOSTS_OF_OLD_RULE + 1)]
        has_better_score = (one.mean_score or 0.0) > (host.mean_score or 0.0)
        if has_better_score and t_interval(differences, 0.9).low > 0:
            chosen = max(chosen, (statistics.fmean(differences), one.name))
    return chosen[1]


def main() -> None:
    """Run the growths that are missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="+", help=f"{', '.join(TASKS)}, or the name or file of another task")
    parser.add_argument("--objective", nargs="+", choices=OBJECTIVES, default=list(OBJECTIVES))
    parser.add_argument("--growths", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="number of the first growth: random seed, and data")
    parser.add_argument("--trials", type=int, default=6)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--directory", type=Path, default=Path("telemetry/calibration"))
    options = parser.parse_args()
    headings = ["task", "objective", "trials", "growths", "named", "95 %", "hosts only"]
    rows: list[list[str]] = []
    for name in options.tasks:
        for objective in options.objective:
            cell = options.directory / f"{Path(name).stem}-{objective}-{options.trials}-{options.steps}"
            cell.mkdir(parents=True, exist_ok=True)
            answers: list[Answer] = []
            for number in range(options.first, options.first + options.growths):
                path = cell / f"{number}.json"
                if not path.exists():
                    answer = grow(name, number, objective, options.trials, options.steps)
                    path.write_bytes(msgspec.json.encode(answer))
                answers.append(msgspec.json.decode(path.read_bytes(), type=Answer))
            named, hosts_only = ([bool(getattr(one, rule)) for one in answers] for rule in ("named", "hosts_only"))
            interval = fraction_interval([list(map(int, named))], [[1] * len(named)])
            rows.append([
                Path(name).stem, objective, str(options.trials), str(len(answers)), str(sum(named)),
                PERCENT.interval(interval), str(sum(hosts_only)),
            ])  # fmt: skip
            print("\n".join(PrintedTable.from_cells(headings, rows, right=range(2, 7)).lines()), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
