"""The check of blueprints in a slot: seeds that would fail in the middle of a run are refused before it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch import Tensor, nn

from esper.common.configuration.config import TaskError
from esper.networks.seeds.blueprints import BLUEPRINTS, blueprint
from esper.networks.tasks.probe import probe_task
from esper.networks.tasks.task import Task
from tests.networks.seeds.hosts import Halving
from tests.networks.tasks.models import InPlace, pictures, task


class Seed(nn.Module):
    """A seed that applies a function."""

    def __init__(self, function: Callable[[Tensor], object]) -> None:
        super().__init__()
        self._function = function

    def forward(self, x: Tensor) -> object:
        return self._function(x)


def own_task(monkeypatch: pytest.MonkeyPatch, seed: Callable[[int], nn.Module]) -> Task:
    """Return a task of pictures that offers a blueprint of the user as its last one."""
    monkeypatch.setitem(BLUEPRINTS, "own", {})
    blueprint("own", "BCHW")(seed)
    return task(InPlace, {"conv": "conv"}, pictures, blueprints=["norm", "own"])


def test_seed_that_fits_the_slot_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    own = own_task(monkeypatch, Halving)
    assert probe_task(own, (own.data(None),)).blueprints == ("norm", "own")


@pytest.mark.parametrize(
    ("seed", "problem"),
    [
        (lambda _: Seed(lambda x: x[..., 1:]), "returned torch.float32 [6, 4, 8, 7] for torch.float32 [6, 4, 8, 8]"),
        (lambda _: Seed(lambda x: x.double()), "returned torch.float64 [6, 4, 8, 8] for torch.float32 [6, 4, 8, 8]"),
        (lambda _: Seed(lambda x: (x, x)), "returned tuple for torch.float32 [6, 4, 8, 8]"),
        # The run stores pictures channels-last, where a view is not possible.
        (lambda _: Seed(lambda x: x.view(-1).view(x.shape)), "RuntimeError: view size is not compatible"),
        (lambda channels: nn.Conv2d(channels + 1, channels, 1), "RuntimeError: Given groups=1"),
        (lambda channels: nn.Linear(channels // 0, 1), "ZeroDivisionError: "),
    ],
)
def test_seed_that_does_not_run_in_the_slot_is_refused(
    monkeypatch: pytest.MonkeyPatch, seed: Callable[[int], nn.Module], problem: str
) -> None:
    own = own_task(monkeypatch, seed)
    with pytest.raises(TaskError) as error:
        probe_task(own, (own.data(None),))
    assert str(error.value).startswith("slots['conv'] of task own: the blueprint 'own' does not run there: ")
    assert problem in str(error.value)
    assert "\n" not in str(error.value)
