"""Splits: data sets are read as they are, and integer targets of any width are class indices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from esper.common.configuration.config import TaskError
from esper.networks.tasks.data_loading import load_data
from esper.networks.tasks.probe import probe_task
from esper.networks.tasks.splits import Splits
from tests.networks.tasks.models import features, task


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


@pytest.mark.parametrize(("probability", "changed"), [(0.1, "train"), (1.0, "test")])
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


class TwoInputs(nn.Module):
    """A model with two inputs and two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 8)
        self.classes, self.value = nn.Linear(8, 4), nn.Linear(8, 1)

    def forward(self, near: Tensor, far: Tensor) -> dict[str, Tensor]:
        hidden = self.body(near + far).relu()
        return {"class": self.classes(hidden), "value": self.value(hidden).squeeze(-1)}


def named_items(count: int) -> list[Any]:
    draw = torch.Generator().manual_seed(0)
    return [
        (
            {"near": torch.rand(3, generator=draw), "far": torch.rand(3, generator=draw).numpy()},
            {"class": index % 4, "value": index / count},
        )
        for index in range(count)
    ]


def test_data_set_of_dicts_is_stacked_by_key_and_trains() -> None:
    items = named_items(24)

    def loss(output: dict[str, Tensor], y: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(output["class"], y["class"]) + F.mse_loss(output["value"], y["value"])

    def score(output: dict[str, Tensor], y: dict[str, Tensor]) -> Tensor:
        return (output["class"].argmax(1) == y["class"]).float()

    def data(_: object) -> Splits:
        return Splits(train=rows_of(items), validation=rows_of(items), test=rows_of(items[:5]))

    splits = data(None)
    inputs, targets = splits.test
    assert {name: list(tensor.shape) for name, tensor in inputs.items()} == {"near": [5, 3], "far": [5, 3]}
    assert torch.equal(inputs["near"], torch.stack([x["near"] for x, _ in items[:5]]))
    assert targets["class"].tolist() == [0, 1, 2, 3, 0]
    assert targets["value"].dtype is torch.float32
    own = task(TwoInputs, {"body": "body"}, data, loss=loss, score=score)
    probe_task(own, (splits,))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda x, y: {"x": x, "y": y}, "item 2 of the split 'train' is a dict; return a pair, inputs and targets"),
        (lambda x, y: (x, y, 1), "item 2 of the split 'train' is a tuple of 3; return a pair, inputs and targets"),
        (
            lambda x, y: ({"near": x["near"]}, y),
            "item 2 of the split 'train' has the keys near, and item 0 has the keys near, far",
        ),
        (lambda x, y: (x["near"], y), "item 2 of the split 'train' has no keys, and item 0 has the keys near, far"),
    ],
)
def test_item_of_another_structure_is_named(change: Callable[[Any, Any], Any], sentence: str) -> None:
    items = named_items(4)
    items[2] = change(*items[2])
    other = rows_of(named_items(2))
    with pytest.raises(TaskError) as error:
        load_data(task(data=lambda _: Splits(train=rows_of(items), validation=other, test=other)), None)
    assert sentence in str(error.value)


def test_random_transform_of_one_input_of_a_dict_is_refused() -> None:
    class NoisyDicts(Noisy):
        def __getitem__(self, index: int) -> Any:
            x, y = super().__getitem__(index)
            return {"clean": self.x[index], "noisy": x}, y

    x, y = features().train
    with pytest.raises(ValueError, match="differs between two readings"):
        Splits(train=NoisyDicts(x, y, 0.5), validation=(x, y), test=(x, y))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("width", ["int8", "uint16", "uint64"])
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
