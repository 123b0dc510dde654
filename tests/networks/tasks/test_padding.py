"""Padding: positions appended to a batch change no output of a network with seeds, and the dry run finds seeds that do."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper.common.domain import Stage
from esper.networks.seeds.blend import Blend
from esper.networks.seeds.blueprints import BLUEPRINTS
from esper.networks.seeds.blueprints.registry import Implementation
from esper.networks.seeds.layouts import Layout
from esper.networks.seeds.lifecycle import GateConfig
from esper.networks.seeds.network import GrowingNetwork, call_model
from esper.networks.tasks.hosts import build_host
from esper.networks.tasks.probe import probe_task
from esper.networks.tasks.profile import TaskProfile
from esper.networks.tasks.task import Slot, Task
from tests.networks.seeds.hosts import grow
from tests.networks.tasks.models import (
    MaskedTransformer,
    TextCNN,
    generator,
    padded_tokens,
    text_task,
    transformer_task,
)
from tests.networks.tasks.models import task as make_task

MASKED = [text_task, transformer_task]
INPUTS = {"mask": False, "padding": True}
"""Value of each input at padded positions."""


def probe(of: Task) -> TaskProfile:
    return probe_task(of, (of.data(None),))


def lengthened(inputs: dict[str, Tensor], by: int) -> dict[str, Tensor]:
    """Return inputs with random tokens appended, which are marked as padding."""
    samples = len(inputs["tokens"])
    added = {name: torch.full((samples, by), INPUTS.get(name, False)) for name in inputs}
    added["tokens"] = torch.randint(1, 20, (samples, by), generator=generator())
    return {name: torch.cat((value, added[name]), 1) for name, value in inputs.items()}


def network_of(task: Task) -> GrowingNetwork:
    return GrowingNetwork(build_host(task, 0, 0, 0).model, probe(task).sites, GateConfig()).eval()


@pytest.mark.parametrize("make", MASKED)
@pytest.mark.parametrize("blend", Blend)
def test_padding_changes_no_logit_of_a_grown_network(make: Callable[[], Task], blend: Blend) -> None:
    task = make()
    network, (x, _) = network_of(task), task.data(None).validation
    bare = network(x, [0.0] * 3)
    for blueprint in network.slots[0].site.blueprints:
        for stage in (Stage.TRAINING, Stage.BLENDING, Stage.PROBATIONARY, Stage.FOSSILIZED):
            for index, slot in enumerate(network.slots):
                slot.reset()
                grow(slot, stage, blueprint, blend, target=0.7 + 0.1 * index, seed=index)
            for mode in (True, False):
                copied = copy.deepcopy(network).eval()
                for slot in copied.slots:
                    slot.train(mode)
                with torch.no_grad():
                    before, after = (copied(inputs, copied.alphas()) for inputs in (x, lengthened(x, 5)))
                torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-5)
                assert torch.equal(before, bare) == (stage is Stage.TRAINING)
