"""Padding changes no output of a network with seeds, and the dry run finds the seeds that it would change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper.common.configuration.config import TaskError
from esper.common.domain import Stage
from esper.networks.seeds.blend import Blend
from esper.networks.seeds.blueprints import BLUEPRINTS
from esper.networks.seeds.blueprints.registry import Implementation
from esper.networks.seeds.layouts import Layout
from esper.networks.seeds.lifecycle import GateConfig
from esper.networks.seeds.network import GrowingNetwork
from esper.networks.tasks.hosts import build_host
from esper.networks.tasks.probe import probe_task
from esper.networks.tasks.profile import TaskProfile
from esper.networks.tasks.splits import Splits
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
                slot.train(stage is Stage.TRAINING)
            before, after = (network(inputs, network.alphas()) for inputs in (x, lengthened(x, 5)))
            torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-5)
            assert torch.equal(before, bare) == (stage is Stage.TRAINING)


def test_slot_without_a_mask_offers_only_seeds_that_do_not_read_padding() -> None:
    profile = probe(transformer_task(None))
    assert {site.blueprints for site in profile.sites} == {("norm", "linear_lowrank", "mlp")}
    assert profile.blueprints == ("norm", "linear_lowrank", "mlp")
    assert profile.warnings[-1] == (
        "slots['both'] of task own: these seeds read padding, which the model itself ignores, and are not offered "
        "there: depthwise, conv_light, self_attention; to use them, write esper.Slot('encoder', layout='BTC', "
        "mask='~padding')"
    )
    assert not probe(transformer_task()).warnings


class PerPosition(nn.Module):
    """A seed with a layer for each position."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layer = nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layer(x)


class Averaging(PerPosition):
    def forward(self, x: Tensor) -> Tensor:
        return x + self.layer(x).mean(1, keepdim=True)


class AveragingReal(PerPosition):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is None:
            return x + self.layer(x).mean(1, keepdim=True)
        return x + (self.layer(x) * mask[:, :, None]).sum(1, keepdim=True) / mask.sum(1)[:, None, None].clamp(min=1)


def test_own_blueprint_is_offered_at_a_mask_if_it_leaves_padding_out(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {"per_position": PerPosition, "averaging": Averaging, "averaging_real": AveragingReal}
    for name, kind in kinds.items():
        monkeypatch.setitem(BLUEPRINTS, name, {Layout.BTC: Implementation(kind, "never", None)})
    profile = probe(transformer_task(blueprints=list(kinds)))
    assert {site.blueprints for site in profile.sites} == {("per_position", "averaging_real")}
    assert "not offered there: averaging; to use them, add a second argument `mask`" in profile.warnings[0]


def test_dry_run_makes_no_claim_if_the_model_itself_depends_on_padding() -> None:
    class Averaged(MaskedTransformer):
        def forward(self, tokens: Tensor, padding: Tensor) -> Tensor:
            return self.head(self.encoder(self.embedding(tokens)).mean(1) + padding[:, :1])

    slots = {"encoder": Slot("encoder", layout="BTC")}
    profile = probe(make_task(Averaged, slots, padded_tokens("padding", is_inverted=True)))
    assert "self_attention" in profile.blueprints
    assert not profile.warnings


def text_slot(
    path: str = "conv", layout: str = "BCL", mask: Any = "mask", data: Any = None, model: Any = TextCNN
) -> Task:
    return make_task(model, {"a": Slot(path, layout=layout, mask=mask)}, data or padded_tokens())


def unnamed(_: object) -> Splits:
    splits = padded_tokens()(None)
    return Splits(**{name: (x["tokens"], y) for name, (x, y) in vars(splits).items()})


def marked(change: Callable[[Tensor], Tensor]) -> Callable[[object], Splits]:
    """Return data whose mask is changed by a function."""
    splits = padded_tokens()(None)
    changed = {name: ({**x, "mask": change(x["mask"])}, y) for name, (x, y) in vars(splits).items()}
    return lambda _: Splits(**changed)


class Unmasked(TextCNN):
    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().forward(tokens, tokens != 0)


@pytest.mark.parametrize(
    ("own", "sentence"),
    [
        (lambda: text_slot(mask="msk"), "the model has no input 'msk' for mask='msk'; did you mean mask?"),
        (lambda: text_slot(mask=True), "mask must be the name of an input, not a bool"),
        (
            lambda: text_slot("head", "BC"),
            "mask='mask' is for sequences, layout BCL, BTC or TBC, and the layout is BC; leave it out",
        ),
        (
            lambda: text_slot(data=unnamed, model=Unmasked),
            "mask='mask' names an input, and the inputs are one tensor; return a dict of inputs from `data`",
        ),
        (
            lambda: text_slot(data=marked(lambda mask: mask[:, :, None]), model=Unmasked),
            "the input 'mask' has shape [6, 7, 1], and the slot has [6, 7] samples and positions; name an input [B, T]",
        ),
        (
            lambda: text_slot(data=marked(lambda mask: 2.0 * mask), model=Unmasked),
            "the input 'mask' of torch.float32 has values other than 0 and 1; pass a bool tensor",
        ),
        (
            lambda: text_slot(mask="~mask"),
            "mask='~mask' marks the padded positions as real; write esper.Slot('conv', layout='BCL', mask='mask')",
        ),
        (
            lambda: text_slot(mask=None),
            "not offered there: norm, attention, depthwise, conv_light, conv_heavy; "
            "to use them, write esper.Slot('conv', layout='BCL', mask='mask')",
        ),
    ],
)
def test_wrong_mask_is_refused_in_one_sentence(own: Callable[[], Task], sentence: str) -> None:
    with pytest.raises(TaskError) as error:
        probe(own())
    assert str(error.value).startswith("slots['a'] of task own: ")
    assert sentence in str(error.value)
