"""Grown networks for tests, without a run: every slot of a task has a seed with weights that are not the identity."""

from __future__ import annotations

import torch

from esper.domain import Curve, Stage
from esper.growth.blend import Blend
from esper.growth.lifecycle import GateConfig
from esper.growth.network import GrowingNetwork
from esper.harvest.grown import Grown
from esper.harvest.model import copy_tensors, grown_seeds
from esper.harvest.structure import Provenance
from esper.tasks.data_loading import load_data
from esper.tasks.hosts import build_host
from esper.tasks.probe import probe_task
from esper.tasks.task import Task

PROVENANCE = Provenance(run="a_run", env=3, round=2, step=7, policy="heuristic", seed=0, version="1.0")
BLENDS = (Blend.ADD, Blend.MULTIPLY, Blend.GATE)


def grow_everywhere(task: Task, alpha: float = 0.75) -> tuple[Grown, GrowingNetwork]:
    """Return a network with a seed in every slot, with varied blueprints and blends, and the live one it comes from."""
    data = load_data(task, None)
    profile = probe_task(task, data)
    network = GrowingNetwork(build_host(task, 0, 0, 0).model, profile.sites, GateConfig()).eval()
    generator = torch.Generator().manual_seed(0)
    for index, slot in enumerate(network.slots):
        kind = Blend.ADD if slot.site.is_causal else BLENDS[index % len(BLENDS)]
        slot.germinate(slot.site.blueprints[-1 - index], kind, Curve.LINEAR, 0, alpha, generator)
        slot.stage = Stage.FOSSILIZED
        with torch.no_grad():
            for parameter in slot.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return Grown.build(task, data[0], grown_seeds(network.slots), copy_tensors(network), PROVENANCE), network
