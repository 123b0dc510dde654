"""Settings of optimizers that a task can choose."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from esper.networks.tasks.optimizers import SGD, AdamW
from esper.networks.tasks.task import Chance


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: SGD(0.0), "SGD: learning_rate must be a number above 0, and at most 100, not 0.0"),
        (lambda: SGD(math.inf), "SGD: learning_rate must be a number above 0, and at most 100, not inf"),
        (lambda: SGD(any_value("0.1")), "SGD: learning_rate must be a number above 0, and at most 100, not '0.1'"),
        (lambda: SGD(101), "SGD: learning_rate must be a number above 0, and at most 100, not 101"),
        (lambda: SGD(True), "SGD: learning_rate must be a number above 0, and at most 100, not True"),
        (lambda: SGD(0.1, momentum=1.0), "SGD: momentum must be a number from 0 to below 1, not 1.0"),
        (lambda: SGD(0.1, momentum=math.nan), "SGD: momentum must be a number from 0 to below 1, not nan"),
        (lambda: SGD(0.1, weight_decay=-1.0), "SGD: weight_decay must be a number from 0 to 1, not -1.0"),
        (lambda: AdamW(-1.0), "AdamW: learning_rate must be a number above 0, and at most 100, not -1.0"),
        (lambda: AdamW(0.1, betas=any_value((0.9,))), "AdamW: betas must be a tuple of two numbers, not (0.9,)"),
        (lambda: AdamW(0.1, betas=any_value(0.9)), "AdamW: betas must be a tuple of two numbers, not 0.9"),
        (lambda: AdamW(0.1, betas=(0.9, 1.0)), "AdamW: betas[1] must be a number from 0 to below 1, not 1.0"),
        (lambda: AdamW(0.1, eps=0.0), "AdamW: eps must be a finite number above 0, not 0.0"),
        (
            lambda: AdamW(0.1, weight_decay=math.inf),
            "AdamW: weight_decay must be a number from 0 to 1, not inf",
        ),
    ],
)
def test_invalid_settings_are_refused_with_the_allowed_values(build: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        build()


def test_limits_are_accepted() -> None:
    assert SGD(0.1, momentum=0.0, weight_decay=0.0) == SGD(learning_rate=0.1, momentum=0.0, weight_decay=0.0)
    assert AdamW(1, betas=(0.0, 0.0), weight_decay=0.0).learning_rate == 1


def test_numbers_of_numpy_become_floats_which_a_recording_can_contain() -> None:
    optimizer = AdamW(np.logspace(-3, -1, 3)[0], betas=(np.float64(0.5), 0), eps=any_value(np.float32(1e-6)))
    assert optimizer == AdamW(0.001, betas=(0.5, 0.0), eps=float(np.float32(1e-6)))
    numbers = (optimizer.learning_rate, optimizer.eps, optimizer.weight_decay, *optimizer.betas)
    chance = Chance(loss=np.log(5), score=any_value(np.float32(0.25)))
    assert {type(number) for number in (*numbers, chance.loss, chance.score)} == {float}
    with pytest.raises(ValueError, match=r"^Chance: score must be a number, not None$"):
        Chance(loss=1.0, score=any_value(None))


def any_value(value: object) -> Any:
    """Return a value of a wrong type, as a task file without type checks can pass it."""
    return value
