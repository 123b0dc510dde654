"""Grown networks for tests, without a run: every slot of a task has a seed with weights that are not the identity."""

from __future__ import annotations

import random
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.common.domain import AlphaCurve, Stage
from esper.networks.seeds.blend import Blend
from esper.networks.seeds.lifecycle import GateConfig
from esper.networks.seeds.network import GrowingNetwork
from esper.networks.seeds.tensors import copy_tensors
from esper.networks.tasks.data_loading import load_data
from esper.networks.tasks.hosts import build_host
from esper.networks.tasks.probe import probe_task
from esper.networks.tasks.splits import Splits
from esper.networks.tasks.task import Task
from esper.studies.harvest.grown import Grown
from esper.studies.harvest.model import grown_seeds
from esper.studies.harvest.structure import Provenance
from tests.networks.tasks.models import FEATURES, features, task

PROVENANCE = Provenance(run="a_run", env=3, round=2, step=7, policy="heuristic", seed=0, version="1.0")
LATENTS = 4
BLENDS = (Blend.ADD, Blend.MULTIPLY, Blend.GATE)


def grow_everywhere(task: Task, alpha: float = 0.75) -> tuple[Grown, GrowingNetwork]:
    """Return a network with a seed in every slot, with varied blueprints and blends, and the live one it comes from."""
    data = load_data(task, None)
    profile = probe_task(task, data)
    network = GrowingNetwork(build_host(task, 0, 0, 0).model, profile.sites, GateConfig()).eval()
    generator = torch.Generator().manual_seed(0)
    for index, slot in enumerate(network.slots):
        kind = Blend.ADD if slot.site.is_causal else BLENDS[index % len(BLENDS)]
        slot.germinate(slot.site.blueprints[-1 - index], kind, AlphaCurve.LINEAR, 0, alpha, generator)
        slot.stage = Stage.FOSSILIZED
        with torch.no_grad():
            for parameter in slot.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return Grown.build(task, data[0], grown_seeds(network.slots), copy_tensors(network), PROVENANCE), network


class Vae(nn.Module):
    """A variational autoencoder of vectors, with other random numbers besides. It returns the means and variances."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(FEATURES, 2 * LATENTS)
        self.drop = nn.Dropout()
        self.decode = nn.Linear(LATENTS, FEATURES)

    def forward(self, x_BF: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        noisy_BF = F.dropout(x_BF + 0.1 * torch.rand(x_BF.shape[0], 1), training=True)
        mean_BL, log_variance_BL = self.encode(self.drop(noisy_BF)).chunk(2, 1)
        latents_BL = mean_BL + torch.randn_like(mean_BL) * torch.exp(0.5 * log_variance_BL)
        return self.decode(latents_BL), mean_BL, log_variance_BL


class Jittery(Vae):
    """A model with a number that PyTorch does not draw, and which becomes a constant in a program."""

    def forward(self, x_BF: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return super().forward(x_BF * random.random())


class Branching(Vae):
    """A model whose operations depend on a value of its input, so that it has no program."""

    def forward(self, x_BF: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if x_BF.sum() > 1e6:
            x_BF = x_BF / 2
        return super().forward(x_BF)


def vae_task(model: type[Vae] = Vae) -> Task:
    """Return a task that reconstructs its inputs, with a slot at the encoder."""

    def autoencoded(_: Path | None) -> Splits:
        splits = features()
        return Splits(**{name: (x, x) for name, (x, _) in vars(splits).items()})

    def loss(output: tuple[Tensor, Tensor, Tensor], y_BF: Tensor) -> Tensor:
        found_BF, mean_BL, log_variance_BL = output
        divergence_BL = mean_BL.square() + log_variance_BL.exp() - 1 - log_variance_BL
        return (found_BF - y_BF).square().sum(1) + 0.5 * divergence_BL.sum(1)

    def score(output: tuple[Tensor, Tensor, Tensor], y_BF: Tensor) -> Tensor:
        return 1 / (1 + (output[0] - y_BF).square().mean(1))

    return task(model, {"encoder": "encode"}, data=autoencoded, loss=loss, score=score)
