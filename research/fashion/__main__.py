"""Does growing pay on Fashion-MNIST, at equal CPU time, against what a user would take instead?

    python -m research.fashion                                     # the next cell that is missing
    python -m research.fashion --arm grow --minutes 20 --seed 1    # one cell
    python -m research.fashion --table                             # the tables of the finished cells

A *cell* is one arm with one budget and one random seed. A finished cell is a line of `--out`; one that was interrupted
begins again. Several processes share the cells. The budget is CPU time, so that other work on the machine matters
little. README.md describes the arms.

A cell takes as many minutes of one core as its budget, one of `grow` up to 10 minutes more for its comparisons. All 34
cells take 17 hours of one core, and up to an hour and a half for the comparisons.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from datetime import date
from importlib.metadata import version
from pathlib import Path

import torch
from research.claims import claimed
from research.fashion.cells import (
    ARMS,
    GROW,
    HOST,
    RANDOM,
    SMALL_MINUTES,
    TINY,
    WIDTHS,
    Answer,
    Budget,
    Cell,
    append_cell,
    format_tables,
    planned,
    read_cells,
)
from research.policies import TELEMETRY_DIR

from esper.common.domain import VERSION
from esper.common.system.disk import make_directory
from esper.recordings.events.codec import encode_json
from esper.training.lanes.devices import list_devices

CELLS = Path(__file__).with_name("cells.jsonl")
"""Default file of the finished cells."""
STEPS = 16
"""Maximum number of steps of a training, of the arms that have several trainings."""


def arm_function(arm: str) -> Callable[[Budget, int, int], Answer]:
    """Return the function of an arm: from budget, random seed and steps of a training to its answer."""
    if arm in (GROW, RANDOM):
        from research.fashion.growing import grow, grow_randomly

        return grow if arm == GROW else grow_randomly
    if arm == TINY:
        from research.fashion.tiny import grow_tiny

        return grow_tiny
    from research.fashion.scratch import search_widths, train_host

    return {HOST: train_host, WIDTHS: search_widths}[arm]


def measure(arm: str, minutes: float, seed: int, steps: int) -> Cell:
    """Return the cell of an arm with a budget and a random seed."""
    torch.set_num_threads(1)
    function = arm_function(arm)
    start = time.monotonic()
    answer = function(Budget(minutes), seed, steps)
    return Cell(
        arm=arm,
        minutes=minutes,
        seed=seed,
        steps=steps,
        answer=answer,
        wall_minutes=(time.monotonic() - start) / 60,
        load=os.getloadavg()[2],
        machine=list_devices()[-1].name,  # the CPU
        versions=f"esper {VERSION}, torch {torch.__version__}" + (f", gromo {version('gromo')}" if arm == TINY else ""),
        date=f"{date.today()}",
    )


def main() -> None:
    """Measure a cell, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arm", choices=ARMS, help="arm of the cell; without it, the next missing cell is measured")
    parser.add_argument("--minutes", type=float, default=SMALL_MINUTES, help="budget in CPU minutes of --arm")
    parser.add_argument("--seed", type=int, default=1, help="random seed of --arm")
    parser.add_argument("--steps", type=int, default=STEPS, help="maximum steps of a training of --arm")
    parser.add_argument("--out", type=Path, default=CELLS, help="file of the finished cells (default: %(default)s)")
    parser.add_argument("--table", action="store_true", help="print the tables of --out")
    options = parser.parse_args()
    if options.table:
        print(format_tables(read_cells(options.out)))
        return
    keys = [(options.arm, options.minutes, options.seed)] if options.arm else planned()
    locks = TELEMETRY_DIR / "fashion"
    make_directory(locks)
    for arm, minutes, seed in keys:
        with claimed(locks / f"{arm}-{minutes:g}-{seed}.lock") as is_free:
            if is_free and (arm, minutes, seed) not in {cell.key for cell in read_cells(options.out)}:
                cell = measure(arm, minutes, seed, options.steps)
                append_cell(options.out, cell)
                print(encode_json(cell).decode())
                return
    print("every cell is measured, or another process measures it")


if __name__ == "__main__":
    main()
