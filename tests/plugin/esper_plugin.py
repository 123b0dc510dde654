"""A package of a third party with a task, a policy and a blueprint, found by its entry points."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import esper


@esper.blueprint("plugin_gain", "BC", causal="always")
class Gain(nn.Module):
    """Scales each channel; 1 at the start."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gain


def data(directory: Path | None) -> esper.Splits:
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    split = (x, (x[:, 0] > 0).long())
    return esper.Splits(train=split, validation=split, test=split)


signs = esper.Task(
    name="plugin_signs",
    model=lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)),
    slots={"hidden": "1"},
    data=data,
    optimizer=esper.SGD(0.05),
    seed_optimizer=esper.SGD(0.05),
    batch_size=20,
    blueprints=["mlp", "plugin_gain"],
)


class FirstSlot(esper.NonLearningAgent):
    """Plants a `plugin_gain` in the first slot."""

    def __init__(self, *, sites: Sequence[esper.SlotSite], blueprints: Sequence[str], **_: Any) -> None:
        assert sites[0].blueprints == tuple(blueprints)
        self._blueprint = list(blueprints).index("plugin_gain")

    def act(self, step: int, views: Sequence[esper.EnvStatus]) -> list[esper.ChosenAction]:
        plant = esper.ChosenAction(esper.germinate_action(0, self._blueprint))
        return [plant if view.slots[0].can_germinate else esper.WAITING for view in views]
