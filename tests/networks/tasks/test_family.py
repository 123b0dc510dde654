"""Families: their declaration, the contexts that hosts draw, and the data of a context."""

from __future__ import annotations

import copy
import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from esper.networks.tasks import TaskError, load_task
from esper.networks.tasks.builtin.digits_family import (
    DIGITS,
    DIGITS_FAMILY,
    LEVEL,
    add_label_noise,
    draw_source,
    shift_pictures,
    take_samples,
)
from esper.networks.tasks.contexts import Context, context_splits, draw_context
from esper.networks.tasks.data_loading import load_data
from esper.networks.tasks.family import Family, Setting, TaskFamily
from esper.networks.tasks.probe import probe_task
from esper.networks.tasks.splits import Splits

DATA = load_data(DIGITS_FAMILY, None)
SPLITS = DATA[0]
NARROW, DEEP = DIGITS_FAMILY.structures[0], DIGITS_FAMILY.structures[3]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"structures": []}, "structures must be 1 to 8 tasks, got 0"),
        ({"structures": [NARROW, NARROW]}, "two structures are named 'narrow_1x1'"),
        (
            {"structures": [DEEP, replace(NARROW, slots={"early": "segments.0"})]},
            "the slots of 'narrow_1x1' are early; name them first",
        ),
        (
            {"settings": {"rent": Setting([1], structures=["narrow"])}},
            "the setting 'rent' is for 'narrow', which is not a structure; did you mean narrow_1x1?",
        ),
        ({"settings": {"two words": Setting([1], data=take_samples)}}, "the setting 'two words' is not a valid name"),
        ({"settings": {"rent": Setting([])}}, "the setting 'rent' has no values"),
        ({"settings": {"rent": Setting([1, 2], weights=[1])}}, "the weights of 'rent' must be one for each value"),
        ({"settings": {"shift": Setting([1])}}, "the setting 'shift' needs data="),
        ({"settings": {"rent": Setting([1], data=take_samples)}}, "the setting 'rent' has no data= function"),
        (
            {"settings": {"rent": Setting([0, 0.1, -0.1])}},
            r"the setting 'rent' has the value -0\.1; expected a finite number of at least 0",
        ),
        (
            {"settings": {"learning_rate": Setting([0])}},
            "the setting 'learning_rate' has the value 0; expected a number above 0, and at most 100",
        ),
        ({"settings": {"rent": Setting(["high"])}}, "the setting 'rent' has the value 'high'"),
        ({"settings": {"rent": Setting([math.nan])}}, "the setting 'rent' has the value nan"),
        ({"settings": {"learning_rate": Setting([0.1, 200])}}, "the setting 'learning_rate' has the value 200"),
        (
            {"settings": {"is_small": Setting([False, True], data=take_samples)}},
            "the setting 'is_small' has the value False; expected a text, or a finite number",
        ),
        ({"settings": {"noise": Setting(list(np.ones(2)), data=take_samples)}}, "the setting 'noise' has the value"),
        ({"settings": {"noise": Setting([math.inf], data=take_samples)}}, "the setting 'noise' has the value inf"),
        ({"name": "two words"}, "name must consist of"),
    ],
)
def test_wrong_families_are_refused(changes: dict[str, Any], problem: str) -> None:
    arguments: dict[str, Any] = {"name": "own", "structures": [NARROW, DEEP], "settings": {}} | changes
    with pytest.raises(ValueError, match=problem):
        Family(**arguments)


def test_family_has_the_slots_of_its_largest_structure() -> None:
    family = load_task("digits_family")
    assert isinstance(family, TaskFamily)
    assert list(family.slots) == ["first", "second", "third", "fourth"]
    profile = probe_task(family, DATA)
    assert [len(structure.sites) for structure in profile.structures] == [3, 3, 3, 4]
    assert len(profile.sites) == 4
    assert [structure.kernel_size for structure in profile.structures] == [1, 3, 1, 1]
    assert {structure.blueprints for structure in profile.structures} == {profile.blueprints}
    assert [profile.of_structure(index).host_parameters for index in range(4)] == [390, 1702, 282, 354]
    some = probe_task(family, DATA, ["first", "fourth"])
    assert [[site.name for site in structure.sites] for structure in some.structures] == [
        ["first"], ["first"], ["first"], ["first", "fourth"],
    ]  # fmt: skip


def test_contexts_depend_on_seed_host_and_round_and_follow_the_weights() -> None:
    contexts = [draw_context(DIGITS_FAMILY, 0, host, round_) for host in range(40) for round_ in range(50)]
    assert contexts[:50] == [draw_context(DIGITS_FAMILY, 0, 0, round_) for round_ in range(50)]
    assert contexts[:50] != [draw_context(DIGITS_FAMILY, 1, 0, round_) for round_ in range(50)]
    structures = Counter(context.structure for context in contexts)
    assert all(structures[index] == pytest.approx(500, rel=0.2) for index in range(4))
    sources = Counter(context.settings["source"] for context in contexts)
    assert sources[LEVEL] == pytest.approx(2000 / 6, rel=0.2)
    pairs = Counter((context.settings["shift"], context.settings["learning_rate"]) for context in contexts)
    assert all(count == pytest.approx(500, rel=0.2) for count in pairs.values())  # drawn independently
    assert draw_context(NARROW, 0, 3, 4) == Context()


def same_format(before: Splits, after: Splits) -> None:
    for split in ("train", "validation", "test"):
        (x, y), (changed, labels) = getattr(before, split), getattr(after, split)
        assert (changed.dtype, changed.shape[1:], labels.dtype) == (x.dtype, x.shape[1:], y.dtype)
        assert changed.is_contiguous(memory_format=torch.channels_last) == x.is_contiguous(
            memory_format=torch.channels_last
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_data_of_a_context_keep_type_and_format(dtype: torch.dtype) -> None:
    splits = SPLITS.to(torch.device("cpu"), dtype)
    before = [tensor.clone() for split in vars(splits).values() for tensor in split]
    context = Context(0, {"source": LEVEL, "shift": 2, "samples": 128, "noise": 0.4, "learning_rate": 0.05})
    once, again = (context_splits(DIGITS_FAMILY, splits, context, 0, 1, 2) for _ in range(2))
    same_format(splits, once)
    assert torch.equal(once.train[0], again.train[0])
    assert not torch.equal(once.train[0], context_splits(DIGITS_FAMILY, splits, context, 0, 1, 3).train[0])
    for value, tensor in zip(before, (tensor for split in vars(splits).values() for tensor in split), strict=True):
        assert torch.equal(value, tensor)  # nothing was changed in place


def test_level_pictures_have_the_standard_deviation_of_their_class() -> None:
    changed = draw_source(SPLITS, LEVEL, generator())
    x, y = changed.train
    assert x.square().mean() == pytest.approx(1.0, abs=0.05)
    by_class = [float(x[y == label].std()) for label in range(10)]
    assert by_class[0] == 0.0
    for label in range(1, 10):
        assert by_class[label] / by_class[1] == pytest.approx(label, rel=0.1)
    assert draw_source(SPLITS, DIGITS, generator()) is SPLITS


def test_shifted_pictures_are_the_pictures_moved() -> None:
    x = torch.zeros(50, 1, 8, 8)
    x[:, :, 4, 4] = 1.0
    splits = Splits(train=(x, torch.zeros(50, dtype=torch.int64)), validation=SPLITS.validation, test=SPLITS.test)
    moved = shift_pictures(splits, 2, generator()).train[0]
    places = {tuple(place[1:]) for place in moved[:, 0].nonzero().tolist()}
    assert moved.sum() == 50
    assert places <= {(row, column) for row in range(2, 7) for column in range(2, 7)}
    assert len(places) > 15
    assert shift_pictures(splits, 0, generator()) is splits


def test_label_noise_and_few_samples_change_the_training_split_only() -> None:
    noisy = add_label_noise(SPLITS, 0.4, generator())
    changed = (noisy.train[1] != SPLITS.train[1]).float().mean()
    assert float(changed) == pytest.approx(0.4 * 0.9, abs=0.04)  # a tenth of the new labels are the old ones
    few = take_samples(SPLITS, 128, generator())
    assert len(few.train[0]) == len(few.train[1]) == 128
    for splits in (noisy, few):
        assert splits.validation[0] is SPLITS.validation[0]
        assert splits.test[0] is SPLITS.test[0]
    assert take_samples(SPLITS, 1079, generator()) is SPLITS


def fails(splits: Splits, value: object, generator: torch.Generator) -> Splits:
    raise ZeroDivisionError("no such value")


def is_empty(splits: Splits, value: object, generator: torch.Generator) -> Splits:
    return replace(splits, train=(splits.train[0][:0], splits.train[1][:0]))


def changes_labels(splits: Splits, value: object, generator: torch.Generator) -> Splits:
    labels = splits.train[1]
    labels[:8] = (labels[:8] + 1) % 10
    return splits


def permutes(splits: Splits, value: object, generator: torch.Generator) -> Splits:
    x, y = splits.train
    order = torch.randperm(len(x), generator=generator)
    x[:], y[:] = x[order], y[order]
    return splits


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (fails, r"settings\['own'\] of task own, value 3: ZeroDivisionError: no such value"),
        (lambda *_: None, r"settings\['own'\] of task own, value 3: returned a NoneType; return esper.Splits"),
        (changes_labels, r"settings\['own'\] of task own, value 3: changes the data in place"),
        (permutes, r"settings\['own'\] of task own, value 3: changes the data in place"),
        (is_empty, "task own with own 3: the split 'train' is empty"),
    ],
)
def test_setting_with_a_wrong_function_is_refused_at_the_start(function: Any, sentence: str) -> None:
    family = Family("own", [NARROW], {"own": Setting([3], data=function)})
    with pytest.raises(TaskError, match=sentence):
        probe_task(family, copy.deepcopy(DATA[:1]))
