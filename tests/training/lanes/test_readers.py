"""Readers: the order in which batches are read ahead, and the processes that read them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from esper.networks.tasks.lazy_split import Batch, Placement, ReadPlan
from esper.networks.tasks.splits import Splits, lazy_of, with_readers, write_data
from esper.training.lanes.errors import FaultError
from esper.training.lanes.reader import PackedTensor, ReadRequest
from esper.training.lanes.readers import Readers, _PlanQueue


class Reads:
    """Batches that are read at once, in the order of the requests."""

    def __init__(self) -> None:
        self.started: list[tuple[int, ...]] = []
        self.cancelled = 0

    def submit(self, request: ReadRequest, *, pinned: bool) -> Future[Batch]:
        assert not pinned
        self.started.append((*request.seeds, *request.indices))
        found: Future[Batch] = Future()
        found.set_result((torch.tensor(request.indices), torch.tensor(request.seeds)))
        return found


def plan(step: int, batches: int = 3) -> ReadPlan:
    return ReadPlan((0, "train"), (step,), 1, lambda: ([index] for index in range(batches)))


def test_expected_plans_are_read_ahead_in_their_order_and_no_further_than_allowed() -> None:
    reads = Reads()
    queue = _PlanQueue(reads.submit, lambda: None, ahead=2)
    for step in (0, 0, 1):  # two envs may share a host, and so their batches
        queue.expect(plan(step), Placement())
    read: list[tuple[int, int]] = []
    for step in (0, 0, 1):
        for x, y in queue.read(plan(step), Placement()):
            read.append((int(y), int(x)))
            assert len(reads.started) <= len(read) + 1
            assert len(reads.started) >= min(len(read) + 1, 9)
    assert read == reads.started == [(step, index) for step in (0, 0, 1) for index in range(3)]


def test_plan_that_was_not_expected_is_read_and_the_others_are_dropped() -> None:
    reads = Reads()
    queue = _PlanQueue(reads.submit, lambda: None, ahead=4)
    for step in range(3):
        queue.expect(plan(step, 2), Placement())
    assert next(queue.read(plan(0, 2), Placement()))[0].item() == 0  # left in the middle, as by a fault
    assert [int(y) for _, y in queue.read(plan(7, 2), Placement())] == [7, 7]
    assert [int(y) for _, y in queue.read(plan(2, 2), Placement())] == [2, 2]
    assert reads.started[4:] == [(7, 0), (7, 1), (2, 0), (2, 1)]


@pytest.mark.parametrize("dtype", ["uint8", "bool", "float32", "bfloat16", "int64"])
def test_tensor_keeps_its_type_and_shape_on_its_way(dtype: str) -> None:
    tensor = torch.arange(24).reshape(2, 3, 4).to(getattr(torch, dtype)).transpose(0, 1)
    pictures = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last).to(tensor.dtype)
    for each in (tensor, pictures, pictures.contiguous()):
        again = PackedTensor.pack(each).unpack()
        assert torch.equal(again, each)
        assert again.is_contiguous() == (each is not pictures)


@pytest.fixture
def readers(tmp_path: Path) -> Iterator[tuple[Splits, Readers]]:
    x = np.memmap(tmp_path / "x", np.float32, "w+", shape=(20, 3))
    x[:] = np.arange(60).reshape(20, 3)
    x.flush()
    split: Any = x, torch.arange(20)
    splits = Splits(train=split, validation=split, test=split)
    with (tmp_path / "data").open("w+b") as file:
        write_data((splits,), file)
        opened = Readers(None, file.fileno(), 2)
        yield with_readers((splits,), opened)[0], opened
        opened.close()


def test_reader_that_was_killed_is_named_and_replaced(readers: tuple[Splits, Readers]) -> None:
    splits, opened = readers
    lazy = lazy_of(splits.test)
    assert lazy is not None
    first = torch.cat([x for x, _ in lazy.read(lazy.plan(6))])
    assert first.tolist() == np.arange(60.0).reshape(20, 3).tolist()
    for reader in opened._readers:
        reader._process.process.kill()
        reader._process.process.wait()
    with pytest.raises(FaultError, match="a batch with item 0 of the split 'test' was killed by signal 9"):
        list(lazy.read(lazy.plan(20)))
    with pytest.raises(FaultError, match="was killed by signal 9"):
        list(lazy.read(lazy.plan(20)))
    assert torch.equal(torch.cat([x for x, _ in lazy.read(lazy.plan(7))]), first)
