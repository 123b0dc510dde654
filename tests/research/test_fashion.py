"""`research/fashion`: the cells that are measured, and their tables."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from research.fashion import __main__ as command
from research.fashion import growing, scratch
from research.fashion.cells import (
    ARMS,
    GROW,
    HOST,
    MAX_PARAMETERS,
    WIDTHS,
    Answer,
    Budget,
    Cell,
    Compared,
    append_cell,
    format_tables,
    planned,
    read_cells,
)
from research.fashion.training import HOST_PARAMETERS, Training

from esper.networks.tasks.builtin import fashion_mnist
from esper.networks.tasks.splits import Splits


def cell(arm: str, minutes: float, seed: int, test: float, compared: dict[str, Compared] | None = None) -> Cell:
    answer = Answer(
        test=test,
        validation=test,
        parameters=6274,
        trainings=2,
        architecture="a",
        cpu_minutes=minutes,
        compared=compared or {},
    )
    return Cell(
        arm=arm,
        minutes=minutes,
        seed=seed,
        steps=16,
        answer=answer,
        wall_minutes=minutes,
        load=0.0,
        machine="m",
        versions="v",
        date="2026-11-30",
    )


def test_tables_pair_the_arms_by_seed_and_budget(tmp_path: Path) -> None:
    path = tmp_path / "cells.jsonl"
    wide = {"wide host": Compared(0.89, 12_000)}
    for seed, noise in ((1, 0.0), (2, 0.02), (3, 0.01)):
        append_cell(path, cell(GROW, 20, seed, 0.90 + noise, wide))
        if seed < 3:
            append_cell(path, cell(HOST, 20, seed, 0.87 + noise))
    append_cell(path, cell(GROW, 60, 1, 0.95))
    cells = read_cells(path)
    assert cells[0] == cell(GROW, 20, 1, 0.90, wide)
    small, large = format_tables(cells).split("60 CPU minutes")
    assert "| host | 88.0% [75.3, 100.0] | 6,274 | 2 | 20.0 | 2 |" in small
    assert "| grow: wide host | 89.0% [89.0, 89.0] | 12,000 | – | billed apart | 3 |" in small
    assert "| host | +3.0 [+3.0, +3.0] | 2 |" in small  # the noise of a seed is common to both
    assert WIDTHS not in small
    assert "| grow | 95.0% |" in large
    assert "| host |" not in large


def test_the_command_measures_the_first_missing_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "cells.jsonl"
    keys = list(planned())
    assert len(keys) == len(set(keys)) == 5 * len(ARMS) + 3 * 3
    for arm, minutes, seed in keys[:2]:
        append_cell(path, cell(arm, minutes, seed, 0.9))
    monkeypatch.setattr(command, "measure", lambda arm, minutes, seed, steps: cell(arm, minutes, seed, 0.8))
    monkeypatch.setattr("sys.argv", ["fashion", "--out", str(path)])
    command.main()
    assert [one.key for one in read_cells(path)] == keys[:3]
    for _ in keys:
        command.main()
    assert [one.key for one in read_cells(path)] == keys
    assert "every cell is measured" in capsys.readouterr().out


class Turns(Budget):
    """A budget of some looks at it, so that a test does not depend on the time."""

    def __init__(self, turns: int) -> None:
        super().__init__(minutes=1)
        self._turns, self._looks = turns, 0

    @property
    def fraction(self) -> float:
        self._looks += 1
        return min(self._looks / self._turns, 1.0)


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch) -> Splits:
    """Pictures whose class is the brightness of one row, in place of those of the task."""

    def draw(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        y_N = torch.arange(size) % 10
        x_NCHW = torch.zeros(size, 1, 28, 28)
        x_NCHW[torch.arange(size), 0, 2 * y_N + 4] = 3.0
        return x_NCHW, y_N

    torch.manual_seed(0)
    splits = Splits(train=draw(128), validation=draw(40), test=draw(30))
    monkeypatch.setattr(scratch, "load_data", lambda: splits)
    return splits


def test_training_tests_the_state_with_the_best_validation_score(data: Splits) -> None:
    training = Training(scratch.TASK.model(), data, seed=0)
    scores = [training.step(rate) for rate in (0.1, 0.1, 0.1, 1e6)]  # the last step destroys the network
    assert training.best_score == max(scores) > scores[-1]
    assert training.test_best() == pytest.approx(training.best_score, abs=0.1)


def test_search_of_widths_keeps_to_the_limit_and_counts_its_trainings(data: Splits) -> None:
    answer = scratch.search_widths(Turns(12), seed=1, steps=2)
    assert answer.trainings > 2
    assert answer.parameters <= MAX_PARAMETERS * HOST_PARAMETERS
    assert answer.validation > 0
    again = scratch.search_widths(Turns(12), seed=1, steps=2)
    assert (again.test, again.architecture) == (answer.test, answer.architecture)


class Clock(Budget):
    """A budget of 12 seconds. The start of a growth takes one of them, and so does each of its steps."""

    def __init__(self) -> None:
        super().__init__(minutes=0.2)
        self._looks = 0

    @property
    def spent(self) -> float:
        self._looks += 1
        return float(self._looks)


@pytest.mark.slow
def test_growth_spends_the_billed_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    sizes = {"train": 120, "t10k": 20}
    files = {
        name: torch.randint(0, 256, (sizes[name.split("-")[0]], 28, 28), generator=generator, dtype=torch.uint8)
        if "images" in name
        else torch.randint(0, 10, (sizes[name.split("-")[0]],), generator=generator, dtype=torch.uint8)
        for name in fashion_mnist.DIGESTS
    }
    monkeypatch.setattr(fashion_mnist, "_read", lambda name, _: files[name])
    monkeypatch.chdir(tmp_path)
    answer = growing.grow(Clock(), seed=1, steps=2)
    # One second for the start, two for the trials of a round, and eight for four rounds on fresh hosts.
    assert answer.cpu_minutes == pytest.approx(12 / 60)
    assert answer.trainings == 8 + 4 * 8
    assert growing.FRESH in answer.compared
