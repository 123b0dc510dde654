"""Splits: data sets are read when they are needed, and integer targets of any width are class indices."""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset
from torchvision.transforms import v2

from esper.common.configuration.config import TaskError
from esper.common.seeding import forked_generators, global_states
from esper.networks.tasks.data_loading import load_data
from esper.networks.tasks.lazy_split import LazySplit
from esper.networks.tasks.probe import probe_task
from esper.networks.tasks.source_pickle import Pickler, copy_by_pickle
from esper.networks.tasks.splits import Splits, examples, lazy_of
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


def split_of(source: Any, name: str = "train") -> LazySplit:
    """Return a split that is read when it is needed."""
    others = dict.fromkeys(("train", "validation", "test"), (torch.zeros(2, 1), torch.zeros(2)))
    found = lazy_of(vars(Splits(**{**others, name: source}))[name])
    assert found is not None
    return found


@pytest.mark.parametrize("batched", [False, True])
def test_random_numbers_of_a_sample_depend_on_its_index_and_the_seeds_only(*, batched: bool) -> None:
    x = torch.zeros(40, 2)
    noisy = Noisy(x, torch.arange(40), 0.5)
    lazy = split_of(Subset(noisy, range(40)) if batched else noisy)  # a Subset has `__getitems__`
    before = global_states()
    with forked_generators(3):
        together, _ = lazy.read_batch(range(40), (1, 0, 0, 5))
        parts = [lazy.read_batch(part, (1, 0, 0, 5))[0] for part in ([7], range(35, 40), range(12))]
        other, _ = lazy.read_batch(range(40), (1, 0, 0, 6))
    assert torch.equal(torch.cat(parts), together[[7, *range(35, 40), *range(12)]])
    assert 0 < int((together != x).any(1).sum()) < 40
    assert not torch.equal(together, other)
    lazy.take([3])
    assert global_states() == before


def test_random_items_of_the_validation_are_the_same_in_each_step() -> None:
    lazy = split_of(Noisy(torch.zeros(8, 2), torch.zeros(8), 1.0), "validation")
    with forked_generators(0):
        assert torch.equal(lazy.read_batch(range(8), (1, 2))[0], lazy.read_batch(range(8), (3, 4))[0])


def test_items_that_draw_nothing_are_read_once() -> None:
    lazy = split_of(Noisy(torch.rand(9, 2), torch.zeros(9), 1.0))
    still = split_of(rows_of([(torch.zeros(2), 0)] * 9))
    with forked_generators(0):
        for each, readings in ((lazy, 2), (still, 1)):
            assert each._reading is not None
            source = each._reading.source
            source.readings = 0
            each.read_batch(range(9), (0,))
            assert source.readings == 9 * readings


def test_transform_is_applied_to_each_training_sample_in_a_batch_of_any_size() -> None:
    x = torch.rand(30, 3, 9, 9)
    splits = Splits(train=(x, torch.arange(30)), validation=(x, x), test=(x, x))
    flip = v2.Compose([v2.RandomHorizontalFlip(), v2.RandomCrop(8)])
    lazy = lazy_of(splits.transformed(flip).train)
    assert lazy is not None
    with forked_generators(0):
        found, targets = lazy.read_batch(range(30), (4, 0, 0, 0))
        alone = [lazy.read_batch([index], (4, 0, 0, 0))[0] for index in range(30)]
    assert targets.tolist() == [*range(30)]
    assert torch.equal(found, torch.cat(alone))
    left = sum(any(torch.equal(crop, one) for crop in crops(picture)) for picture, one in zip(x, found, strict=True))
    assert 5 < left < 25  # about half are not flipped


def crops(picture: Tensor) -> list[Tensor]:
    return [picture[:, top : top + 8, left : left + 8] for top in (0, 1) for left in (0, 1)]


class OwnGenerator(Noisy):
    """Draws from a generator that nobody seeds."""

    draw = np.random.default_rng()

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index] + self.draw.random(), self.y[index]


def check_with(train: Any) -> None:
    """Check the data of a task whose training split is a source."""
    load_data(task(data=lambda _: Splits(**{**vars(features()), "train": train})), None)[0].check("own")


def test_own_random_generator_is_refused() -> None:
    with pytest.raises(TaskError, match="samples of the split 'train' differ between two readings after equal seeds"):
        check_with(OwnGenerator(torch.zeros(20, 12), torch.zeros(20), 1.0))


def test_data_loader_is_refused_with_the_line_that_replaces_it() -> None:
    loader = DataLoader(rows_of([(torch.zeros(2), 0)] * 4), batch_size=3)
    with pytest.raises(TaskError, match=r"pass train=loader.dataset to esper.Splits, and batch_size=3 to esper.Task"):
        check_with(loader)


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (iter([1]), "the split 'train' is a list_iterator; return a pair of inputs and targets, or an object with a"),
        (list, "the split 'train' is the class builtins.list; return a pair of inputs and targets, or an object with"),
        ("open file", "the split 'train' cannot be sent to the reader processes: TypeError: cannot pickle"),
        ("local", "define its classes and functions at the top of a file"),
        ([(torch.zeros(3), 0), (torch.zeros(4), 0)],
         "item 1 of the split 'train' is torch.float32 of shape [4], and item 0 torch.float32 of shape [3]"),
        ([(torch.zeros(3), 0), (torch.zeros(3).int(), 0)],
         "item 1 of the split 'train' is torch.int32 of shape [3], and item 0 torch.float32 of shape [3]"),
        ([("text", 0)], "item 0 of the split 'train' has a str; return tensors, arrays or numbers"),
        ([(np.zeros(3), 0)], "the inputs of the split 'train' are float64, as NumPy makes them"),
        ([(torch.tensor(torch.inf), 0)], "the split 'train' has values that are not finite"),
        ([], "the split 'train' is empty"),
    ],
)  # fmt: skip
def test_source_that_cannot_be_read_is_refused_in_one_sentence(source: Any, sentence: str, tmp_path: Path) -> None:
    if source == "open file":
        source = rows_of([(tmp_path, (tmp_path / "data").open("w"))])
    elif source == "local":

        class Local(Noisy):
            pass

        source = Local(torch.zeros(2), torch.zeros(2), 0.0)
    elif isinstance(source, list):
        source = rows_of(source)
    with pytest.raises(TaskError) as error:
        check_with(source)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_failing_item_is_named_with_its_line() -> None:
    lazy = split_of(Broken(torch.zeros(6, 2), torch.zeros(6), 0.0))
    line = inspect.getsourcelines(Broken.__getitem__)[1] + 2
    with pytest.raises(TaskError) as error:
        lazy.take([1, 4])
    expected = f"item 4 of the split 'train' cannot be read: FileNotFoundError: no picture 4 ({__file__}, line {line})"
    assert str(error.value) == expected


class Opens(Noisy):
    """Opens a file when an item is first read."""

    file: Any = None

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.file = self.file or Path(__file__).open()  # noqa: SIM115 (readers end with their files)
        return super().__getitem__(index)


def test_open_files_of_this_process_are_not_sent_to_readers() -> None:
    lazy = split_of(Opens(torch.arange(6.0)[:, None], torch.zeros(6), 0.0))
    for _ in range(3):  # as from rank to rank, and to a reader
        assert lazy.take([1, 4])[0].flatten().tolist() == [1.0, 4.0]
        lazy = copy_by_pickle(lazy)
    assert len(lazy) == 6


class Broken(Noisy):
    """Has an item that cannot be read."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if index == 4:
            raise FileNotFoundError(f"no picture {index}")
        return super().__getitem__(index)


@pytest.mark.parametrize("part", [slice(None), slice(3, 9), slice(None, None, -2)])
def test_memory_mapped_array_is_opened_again_and_not_copied(part: slice, tmp_path: Path) -> None:
    x = np.memmap(tmp_path / "x", np.uint8, "w+", 5000, (12, 3, 4))
    x[:] = np.arange(144, dtype=np.uint8).reshape(12, 3, 4)
    x.flush()
    labels = np.arange(12, dtype=np.uint8)[part]
    lazy = split_of((x[part], labels))
    for again in (lazy, copy_by_pickle(lazy), copy_by_pickle(copy_by_pickle(lazy))):
        assert len(again) == len(labels)
        inputs, targets = again.take([2, 1, 2])
        assert inputs.dtype is torch.uint8
        assert np.array_equal(inputs.numpy(), x[part][[2, 1, 2]])
        assert targets.tolist() == labels[[2, 1, 2]].tolist()
    file = io.BytesIO()
    Pickler(file).dump(np.memmap(tmp_path / "x", np.uint8, "r", 5000, (12, 3, 4)))
    assert file.tell() < 400


class Rows(Dataset[Any]):
    """A data set of rows, which counts its readings. A list would be a pair of inputs and targets."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows, self.readings = rows, 0

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        self.readings += 1
        return self.rows[index]


rows_of: Any = Rows


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
    inputs, targets = examples(splits.test)
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
            "item 2 of the split 'train' has the keys near, and item 0 the keys near, far",
        ),
        (lambda x, y: (x["near"], y), "item 2 of the split 'train' has no keys, and item 0 the keys near, far"),
    ],
)
def test_item_of_another_structure_is_named(change: Callable[[Any, Any], Any], sentence: str) -> None:
    items = named_items(4)
    items[2] = change(*items[2])
    other = rows_of(named_items(2))
    with pytest.raises(TaskError) as error:
        Splits(train=rows_of(items), validation=other, test=other).check("own")
    assert sentence in str(error.value)


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
