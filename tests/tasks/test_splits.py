"""Splits: data sets are read as they are, and integer targets of any width are class indices."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset

from esper.config import TaskError
from esper.tasks.data_loading import load_data
from esper.tasks.probe import probe_task
from esper.tasks.splits import Splits
from tests.tasks.models import features, task


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Adds noise to some of the items, drawn at each reading."""

    def __init__(self, x: Tensor, y: Tensor, probability: float) -> None:
        self.x, self.y, self.probability, self.readings = x, y, probability, 0

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.readings += 1
        is_noisy = torch.rand(()) < self.probability
        return self.x[index] + is_noisy * torch.rand(self.x.shape[1]), self.y[index]


@pytest.mark.parametrize("probability", [1.0, 0.5, 0.1])
@pytest.mark.parametrize("changed", ["train", "test"])
def test_data_set_with_a_random_transform_is_refused_with_the_two_ways(probability: float, changed: str) -> None:
    def data(_: object) -> Splits:
        sets: dict[str, Any] = dict(vars(features()))
        x, y = sets[changed]
        return Splits(**{**sets, changed: Noisy(x, y, probability)})

    with pytest.raises(TaskError) as error:
        load_data(task(data=data), None)
    sentence = str(error.value)
    assert f"of the split '{changed}' differs between two readings" in sentence
    assert "transform batches in augment=, or pass tensors that you make (" in sentence
    assert "\n" not in sentence


def test_only_a_few_items_of_a_large_data_set_are_read_twice() -> None:
    x = torch.rand(5_000, 2)
    x[0, 0] = torch.nan
    large = Noisy(x, torch.zeros(5_000), 0.0)
    read, _ = Splits(train=large, validation=(x, x), test=(x, x)).train  # pyright: ignore[reportArgumentType]
    assert torch.equal(read[1:], x[1:])
    assert 5_032 <= large.readings <= 5_064


def test_data_set_of_numbers_of_several_types_is_read() -> None:
    rows: Any = [([0.5], 0), ([1], 0.5), ([True], 2)]
    inputs, targets = Splits(train=rows_of(rows), validation=rows_of(rows), test=rows_of(rows)).train
    assert inputs.tolist() == [[0.5], [1.0], [1.0]]
    assert targets.tolist() == [0.0, 0.5, 2.0]


def rows_of(rows: list[Any]) -> Any:
    """Return a data set of rows; a list would be a pair of inputs and targets."""

    class Rows(Dataset[Any]):
        def __len__(self) -> int:
            return len(rows)

        def __getitem__(self, index: int) -> Any:
            return rows[index]

    return Rows()


@pytest.mark.parametrize("width", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "uint64"])
def test_targets_of_any_integer_width_are_class_indices(width: str) -> None:
    wide = features()
    narrow = {name: (x, y.numpy().astype(width)) for name, (x, y) in vars(wide).items()}
    own = task(data=lambda _: Splits(**narrow))
    assert torch.equal(own.data(None).train[1], wide.train[1])
    assert probe_task(own, load_data(own, None)).chance == probe_task(task(), (wide,)).chance


def test_class_156_in_a_byte_is_no_ignored_target() -> None:
    """In uint8, 156 equals −100, the target that does not count."""
    y = torch.tensor([156, 3], dtype=torch.uint8)
    splits = Splits(train=(torch.zeros(2), y), validation=(torch.zeros(2), y), test=(torch.zeros(2), y))
    assert splits.train[1].tolist() == [156, 3]
    assert not bool((splits.train[1] == -100).any())
