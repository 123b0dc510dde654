"""The tasks mnist1d and recall: the data are those of their papers, and the hosts need growth."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from torch import Tensor

from esper.api.task_report import check
from esper.networks.tasks.builtin import mnist1d, recall
from esper.networks.tasks.losses import accuracy
from esper.networks.tasks.splits import Splits


@pytest.fixture(scope="module")
def sequences() -> Splits:
    return mnist1d.load()


@pytest.fixture(scope="module")
def questions() -> Splits:
    return recall.load()


def inputs(splits: Splits) -> list[Tensor]:
    return [splits.train[0], splits.validation[0], splits.test[0]]


@pytest.mark.parametrize("load", [mnist1d.load, recall.load])
def test_data_are_the_same_in_every_process(load: object) -> None:
    assert callable(load)
    first, second = load(), load()
    for name in ("train", "validation", "test"):
        for a, b in zip(getattr(first, name), getattr(second, name), strict=True):
            assert torch.equal(a, b)


def test_sequences_have_the_published_sizes_and_balanced_classes(sequences: Splits) -> None:
    for (x, y), size in zip(vars(sequences).values(), (4000, 1000, 1000), strict=True):
        assert (x.shape, x.dtype) == ((size, 1, 40), torch.float32)
        assert torch.equal(y.bincount(), torch.full((10,), size // 10))
    assert sequences.train[0].mean() == pytest.approx(0, abs=1e-5)
    assert sequences.train[0].std() == pytest.approx(1, abs=1e-5)


def test_splits_do_not_share_samples(sequences: Splits) -> None:
    for a, b in combinations(inputs(sequences), 2):
        rows = torch.cat((a, b)).flatten(1)
        assert len(rows.unique(dim=0)) == len(rows)


def test_templates_start_at_zero_with_the_published_scale() -> None:
    templates = mnist1d.make_templates()
    assert templates.shape == (10, 12)
    assert torch.equal(templates[:, 0], torch.zeros(10, dtype=torch.float64))
    assert np.allclose(templates.std(dim=1, correction=0), 1 / 6)


def test_logistic_regression_has_the_published_level(sequences: Splits) -> None:
    """32 % in the paper, in closed form here: ridge regression on the classes."""
    (x, y), (x_test, y_test) = sequences.train, sequences.test
    design, test = (torch.cat((part.flatten(1), torch.ones(len(part), 1)), dim=1) for part in (x, x_test))
    weights = torch.linalg.solve(design.T @ design + torch.eye(41), design.T @ torch.eye(10)[y])
    assert 0.25 < float(((test @ weights).argmax(1) == y_test).float().mean()) < 0.36


def test_every_question_is_answered_by_the_value_behind_its_key(questions: Splits) -> None:
    for tokens, targets in vars(questions).values():
        pairs = tokens[:, : 2 * recall.PAIRS].view(-1, recall.PAIRS, 2)
        for row in range(64):
            values = {int(key): int(value) - recall.KEYS for key, value in pairs[row]}
            assert len(values) == recall.PAIRS  # no key has two values
            asked = tokens[row, 2 * recall.PAIRS :]
            assert [values[int(key)] for key in asked] == targets[row, 2 * recall.PAIRS :].tolist()
        assert bool((targets[:, : 2 * recall.PAIRS] == recall.IGNORED).all())


def test_score_counts_the_questions_only(questions: Splits) -> None:
    _, targets = questions.test
    answers = targets.clamp(min=0)
    logits = torch.nn.functional.one_hot(answers, recall.VALUES).float()
    assert float(accuracy(logits, targets).mean()) == 1.0
    constant = torch.nn.functional.one_hot(torch.zeros_like(answers), recall.VALUES).float()
    assert float(accuracy(constant, targets).mean()) == pytest.approx(1 / recall.VALUES, abs=0.02)


def test_tasks_can_be_grown() -> None:
    report = check("recall")
    assert report.profile.is_causal
    assert all("self_attention" in site.blueprints for site in report.profile.sites)
    assert [site.layout for site in check("mnist1d").profile.sites] == ["BCL"] * 3
