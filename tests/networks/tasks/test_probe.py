"""The probe: it finds layouts, causality and how to measure, and refuses what cannot grow in one sentence."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from esper.common.configuration.config import TaskError
from esper.common.domain import Stage
from esper.networks.seeds.layouts import Layout
from esper.networks.seeds.lifecycle import GateConfig
from esper.networks.seeds.network import GrowingNetwork
from esper.networks.tasks.data_loading import load_data
from esper.networks.tasks.probe import probe_task
from esper.networks.tasks.profile import TaskProfile
from esper.networks.tasks.splits import Splits
from esper.networks.tasks.task import Chance, Slot, Task
from tests.networks.seeds.hosts import grow
from tests.networks.tasks.models import (
    CLASSES,
    FEATURES,
    LENGTH,
    VOCABULARY,
    Causal,
    Function,
    InPlace,
    causal_task,
    features,
    mlp,
    pictures,
    task,
    tokens,
)


def probe(of: Task) -> TaskProfile:
    return probe_task(of, (of.data(None),))


class Shifting(nn.Sequential):
    """Subtracts the mean of its inputs in place."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, CLASSES))

    def forward(self, input: Tensor) -> Tensor:
        input -= input.mean()
        return super().forward(input)


def refusal(of: Task) -> str:
    with pytest.raises(TaskError) as error:
        probe(of)
    text = str(error.value)
    assert "\n" not in text
    return text


def test_slots_are_ordered_by_the_forward_pass() -> None:
    profile = probe(task(slots={"later": "3", "sooner": "1"}))
    assert [(site.name, site.module, site.channels) for site in profile.sites] == [
        ("sooner", "1", 16),
        ("later", "3", 16),
    ]
    assert {site.layout for site in profile.sites} == {Layout.BC}
    assert profile.blueprints == ("norm", "linear_lowrank", "mlp")
    assert profile.shares_prefix
    assert not profile.is_causal
    assert not profile.channels_last


def test_only_selected_slots_are_used() -> None:
    own = task()
    assert [site.name for site in probe_task(own, (own.data(None),), ["second"]).sites] == ["second"]


def test_causal_model_is_found_and_offers_causal_seeds_only() -> None:
    profile = probe(causal_task())
    assert profile.is_causal
    assert [site.layout for site in profile.sites] == [Layout.BTC, Layout.BTC]
    assert "attention" not in profile.blueprints
    assert "self_attention" in profile.blueprints


class Ahead(Causal):
    """The same network without the mask of its attention."""

    def forward(self, x_BT: Tensor) -> Tensor:
        h = self.embedding(x_BT)
        mixed, _ = self.attention(h, h, h, need_weights=False)
        return self.head(self.mix(h + mixed))


MIX = {"mix": Slot("mix", layout="BTC")}


def test_model_that_looks_ahead_is_not_causal() -> None:
    assert not probe(task(Ahead, MIX, tokens)).is_causal


def map_splits(change: Callable[[Tensor], Tensor]) -> Splits:
    """Return token sequences and next tokens, both changed by a function."""
    return Splits(**{name: (change(x), change(y)) for name, (x, y) in vars(tokens()).items()})


@pytest.mark.parametrize(("model", "is_causal"), [(Causal, True), (Ahead, False)])
@pytest.mark.parametrize("length", [LENGTH, VOCABULARY])
def test_causality_is_found_if_classes_come_before_positions(model: type[Causal], is_causal: bool, length: int) -> None:
    class ClassesFirst(model):
        def forward(self, x_BT: Tensor) -> Tensor:
            return super().forward(x_BT).transpose(1, 2)

    def sequences(_: object = None) -> Splits:
        return map_splits(lambda x: x.repeat(1, 3)[:, :length])

    def correct(output: Tensor, y: Tensor) -> Tensor:
        return (output.argmax(1) == y).float().mean(1)

    own = task(ClassesFirst, MIX, sequences, loss=nn.functional.cross_entropy, score=correct)
    assert probe(own).is_causal == is_causal


@pytest.mark.parametrize(("model", "is_causal"), [(Causal, True), (Ahead, False)])
def test_causality_is_found_with_tokens_of_two_kinds(model: type[Causal], is_causal: bool) -> None:
    assert probe(task(model, MIX, lambda _: map_splits(lambda x: x % 2))).is_causal == is_causal


def test_tuple_output_is_a_slot_and_tied_weights_are_stored_once() -> None:
    profile = probe(causal_task())
    network = GrowingNetwork(Causal(), profile.sites, GateConfig())
    for slot in network.slots:
        grow(slot, Stage.PROBATIONARY, "mlp")
    x, _ = tokens().train
    output = network(x, network.alphas())
    assert not torch.equal(output, network(x, [0.0, 0.0]))
    assert len([name for name in network.state_tensors() if name.endswith(("embedding.weight", "head.weight"))]) == 1


SLOT_A = {"a": "a"}


@pytest.mark.parametrize(
    ("function", "shares"),
    [
        (lambda a, x, _: a, True),
        (lambda a, x, _: a - a.mean(0), False),  # the mean over the batch
        (lambda a, x, _: a + x, False),  # the input has fewer rows after a slot
        (lambda a, x, _: a.reshape(x.shape[0], -1), False),
    ],
)
def test_prefix_is_shared_only_where_samples_are_independent(function: Any, shares: bool) -> None:
    profile = probe(task(lambda: Function(function), SLOT_A))
    assert profile.shares_prefix == shares
    assert bool(profile.prefix_problem) != shares


def test_repeated_ablations_equal_shared_ones() -> None:
    own = task()
    profile = probe(own)
    torch.manual_seed(0)
    network = GrowingNetwork(own.model(), profile.sites, GateConfig()).double().eval()
    for slot in network.slots:
        grow(slot, Stage.PROBATIONARY, "mlp")
    network.double()
    x = features().validation[0].double()
    shared = network.forward_ablations(x, network.alphas(), [0, 1])
    subsets = network.forward_subsets(x, network.alphas(), [0, 1])
    network.shares_prefix = False
    for ours, theirs in zip(shared, network.forward_ablations(x, network.alphas(), [0, 1]), strict=True):
        torch.testing.assert_close(ours, theirs)
    for ours, theirs in zip(subsets, network.forward_subsets(x, network.alphas(), [0, 1]), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert not torch.allclose(shared[0], shared[1])


def test_copy_of_a_network_uses_its_own_seeds() -> None:
    own = task()
    network = GrowingNetwork(own.model(), probe(own).sites, GateConfig()).eval()
    grow(network.slots[0], Stage.PROBATIONARY, "mlp")
    copied = copy.deepcopy(network)
    x = features().validation[0]
    before = copied(x, copied.alphas())
    with torch.no_grad():
        for parameter in network.slots[0].parameters():
            parameter.fill_(3.0)
    assert torch.equal(copied(x, copied.alphas()), before)
    assert not torch.equal(network(x, network.alphas()), before)


def test_in_place_layer_after_a_slot_trains_straight_through() -> None:
    own = task(InPlace, {"conv": "conv"}, pictures)
    plain, seeded = (GrowingNetwork(InPlace(), probe(own).sites, GateConfig()) for _ in range(2))
    seeded.host.load_state_dict(plain.host.state_dict())
    grow(seeded.slots[0], Stage.TRAINING, "conv_light")
    x = pictures().train[0]
    outputs = [network.train()(x, [0.0]) for network in (plain, seeded)]
    assert torch.equal(*outputs)
    outputs[1].square().sum().backward()
    assert any(parameter.grad is not None and parameter.grad.any() for parameter in seeded.slots[0].parameters())


class Sequence(nn.Module):
    """A recurrent network whose head reads its outputs, or its last state, which are two tensors."""

    def __init__(self, reads: str) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.rnn = nn.LSTM(8, 8, batch_first=True)
        self.head = nn.Linear(8, CLASSES)
        self._reads = reads

    def forward(self, x: Tensor) -> Tensor:
        outputs, (last, _) = self.rnn(self.embedding(x))
        return self.head(outputs.mean(1) if self._reads == "outputs" else last[-1])


def sequence_classes(_: object = None) -> Splits:
    parts = tokens()
    return Splits(**{name: (x, x[:, 0] % CLASSES) for name, (x, _) in vars(parts).items()})


def without_targets(_: object = None) -> Splits:
    """Return token sequences; the first sequence of the test split has no target that counts."""
    splits = tokens()
    splits.test[1][0] = -100
    return splits


def as_many_tokens_as_letters(_: object = None) -> Splits:
    """Return token sequences whose length is the number of different tokens."""
    return map_splits(lambda x: x.repeat(1, 3)[:, :VOCABULARY])


def in_bfloat16(splits: Splits) -> Splits:
    return Splits(**{name: (x.bfloat16(), y) for name, (x, y) in vars(splits).items()})


class Hidden(nn.Sequential):
    """Returns its hidden features and the logits."""

    def __init__(self, wrap: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, CLASSES))
        self._wrap = wrap

    def forward(self, input: Tensor) -> Any:
        hidden = self[1](self[0](input))
        return self._wrap(hidden, self[2](hidden))


class Bags(nn.Sequential):
    """Bags of tokens, whose embeddings have sparse gradients."""

    def __init__(self) -> None:
        table = nn.EmbeddingBag(VOCABULARY, 8, sparse=True)
        super().__init__(table, nn.ReLU(), nn.Linear(8, CLASSES))


class Phases(nn.Module):
    """Multiplies inputs by complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.phases = nn.Parameter(torch.polar(torch.ones(FEATURES), torch.rand(FEATURES)))
        self.body = mlp()

    def forward(self, x: Tensor) -> Tensor:
        return self.body((x * self.phases).real)


def traced() -> nn.Module:
    activation: Any = torch.jit.trace(nn.ReLU(), torch.zeros(2, 16))
    return nn.Sequential(nn.Linear(FEATURES, 16), activation, nn.Linear(16, CLASSES))


def shares(_: object = None) -> Splits:
    """Vectors, and the softmax of a part of them, as NumPy computes it."""
    splits = vars(features())
    return Splits(**{name: (x, x[:, :CLASSES].double().softmax(1).numpy()) for name, (x, _) in splits.items()})


def with_train(change: Callable[[Tensor, Tensor], tuple[Any, Any]]) -> Task:
    """Return a task whose training split is changed."""
    return task(data=lambda _: replace(features(), train=change(*features().train)))


REFUSALS: list[tuple[Callable[[], Task], str]] = [
    (lambda: task(slots={"a": "sevn"}), "the model has no submodule 'sevn'; "),
    (lambda: task(slots={"first": "1", "again": "first"}), "slots['again'] of task own: the model has no submodule"),
    (lambda: task(lambda: Function(lambda a, x, layer: layer(a)), SLOT_A), "calls 'a' several times per forward pass"),
    (lambda: task(lambda: Function(lambda a, x, _: x), SLOT_A), "does not depend on the output of 'a'"),
    (lambda: task(lambda: Sequence("outputs"), {"a": "rnn"}, sequence_classes), "pass layout= BCL, BTC or TBC"),
    (
        lambda: task(lambda: Sequence("outputs"), {"a": Slot("rnn", layout="TBC")}, sequence_classes),
        "axis 0 is the batch, not axis 1 as in TBC",
    ),
    (
        lambda: task(lambda: Sequence("state"), {"a": Slot("rnn", layout="BTC")}, sequence_classes),
        "does not depend on the output of 'rnn'",
    ),
    (lambda: task(slots={"a": Slot("1", layout="BX")}), "unknown layout 'BX'"),
    (
        lambda: task(lambda: mlp().bfloat16(), data=lambda _: in_bfloat16(features())),
        "slots['first'] of task own: '1' returns torch.bfloat16, and seeds are float32; convert the model",
    ),
    (lambda: task(slots={"a": Slot("1", layout="BCHW")}), "layout BCHW has 4 axes"),
    (
        lambda: task(blueprints=["conv_light"]),
        "these fit: norm, linear_lowrank, mlp",
    ),
    (lambda: task(blueprints=["mpl"]), "unknown blueprint 'mpl'; did you mean mlp"),
    (
        lambda: task(score=lambda output, targets: output.mean()),
        "score of task own: returned torch.float32 of shape [] for 6 samples; return one float each, [B]",
    ),
    (lambda: task(augment=lambda x, y, generator: 1 / 0), "augment of task own: ZeroDivisionError: division by zero ("),
    (
        lambda: task(augment=lambda x, y, generator: x),
        "augment of task own: returned a Tensor; return a pair, inputs and",
    ),
    (
        lambda: task(augment=lambda x, y, generator: (x[:, 1:], y)),
        "augment of task own: its result cannot be trained on: RuntimeError: ",
    ),
    (
        lambda: task(augment=lambda x, y, generator: (x, y[1:])),
        "augment of task own: its result cannot be trained on: ValueError: Expected input batch_size (16)",
    ),
    (lambda: task(score=lambda output, targets: 0.5), "score of task own: returned a float for 6 samples; return one"),
    (lambda: task(metrics={"m": lambda *_: 1}), "metrics['m'] of task own: returned an int for 6 samples; return one"),
    (lambda: task(loss=lambda output, targets: 0.5), "loss of task own: TypeError: the loss returned a float; return"),
    (lambda: task(score=lambda output, targets: output.argmax(1) == targets), "returned torch.bool of shape [6]"),
    (lambda: task(metrics={"m": lambda output, targets: output.argmax(1)}), "returned torch.int64 of shape [6]"),
    (lambda: task(Shifting, {"a": "0"}), "model of task own: it changes its inputs in place"),
    (lambda: task(score=lambda output, targets: 7 + output[:, 0]), "scores must lie in [0, 1]"),
    (lambda: task(loss=lambda output, targets: output.argmax(1)), "loss of task own: "),
    (lambda: task(loss=lambda output, targets: output.nonsense), "AttributeError"),
    (
        lambda: task(loss=lambda output, targets: output.mean().detach()),
        "loss of task own: its gradient reaches no weight",
    ),
    (
        lambda: task(metrics={"m": lambda output, targets: output}),
        "metrics['m'] of task own: returned torch.float32 of shape [6, 5]",
    ),
    (
        lambda: task(lambda: nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.Linear(16, CLASSES)), {"a": "1"}),
        "model of task own: returned lazy layers without sizes; call the module once before returning it",
    ),
    (lambda: task(train=["9"]), "train of task own: the model has no submodule '9'"),
    (
        lambda: task(
            data=lambda _: Splits(train=(torch.zeros(3, 2), torch.zeros(4)), validation=([], []), test=([], []))
        ),
        "the split 'train' have 3 and 4 samples",
    ),
    (lambda: with_train(lambda x, y: (x.log(), y)), "the split 'train' has values that are not finite"),
    (
        lambda: with_train(lambda x, y: (x, y + 7)),
        "targets of the split 'train' are 7 to 11, and the model has 5 out",
    ),
    (
        lambda: with_train(lambda x, y: (x, y.masked_fill(y == 0, -100))),
        "data of task own: the split 'train' has samples whose targets are all -100; leave them out",
    ),
    (lambda: replace(causal_task(), data=without_targets), "has samples whose targets are all -100"),
    (
        lambda: task(Causal, MIX, as_many_tokens_as_letters),
        "loss of task own: ValueError: the axis of the classes is ambiguous in logits [6, 20, 20], because",
    ),
    (
        lambda: task(Causal, MIX, as_many_tokens_as_letters, loss=nn.functional.cross_entropy),
        "score of task own: ValueError: the axis of the classes is ambiguous in logits [6, 20, 20], because",
    ),
    (
        lambda: with_train(lambda x, y: (x.numpy().astype("float64"), y)),
        "the inputs of the split 'train' are float64, as NumPy makes them; convert those of all splits: "
        "x = torch.as_tensor(x, dtype=torch.float32)",
    ),
    (
        lambda: task(data=shares, loss=nn.functional.mse_loss, score=lambda output, y: (output - y).abs().mean(1)),
        "the targets of the split 'train' are float64, as NumPy makes them; convert those of all splits: "
        "y = torch.as_tensor(y, dtype=torch.float32)",
    ),
    (
        lambda: with_train(lambda x, y: ((10 * x.abs()).byte(), y)),
        "data of task own: the inputs of the split 'train' are torch.uint8, and the weights of the model torch.float32"
        "; convert them: x = torch.as_tensor(x, dtype=torch.float32)",
    ),
    (
        lambda: task(lambda: mlp().bfloat16()),
        "model of task own: the inputs of the split 'train' are torch.float32, and the weights of the model torch."
        "bfloat16; return model.float(), and choose the precision of a run with --amp",
    ),
    (
        lambda: task(lambda: Hidden(lambda hidden, logits: (hidden, logits)), {"a": "1"}),
        "model of task own: returned a tuple in training mode, and the cross-entropy needs a tensor of logits; pass "
        "loss=lambda output, y: esper.cross_entropy(output[1], y) and "
        "score=lambda output, y: esper.accuracy(output[1], y)",
    ),
    (
        lambda: task(lambda: Hidden(lambda hidden, logits: {"hidden": hidden, "scores": logits}), {"a": "1"}),
        "loss=lambda output, y: esper.cross_entropy(output['scores'], y) and",
    ),
    (
        lambda: task(lambda: Hidden(lambda hidden, logits: SimpleNamespace(h=hidden, logits=logits)), {"a": "1"}),
        "score=lambda output, y: esper.accuracy(output.logits, y)",
    ),
    (
        lambda: task(lambda: Hidden(lambda *_: None), {"a": "1"}),
        "returned a NoneType in training mode, and the cross-entropy needs a tensor of logits; return them from",
    ),
    (
        lambda: task(Bags, {"a": "1"}, sequence_classes),
        "model of task own: the gradient of the parameter '0.weight' is sparse, which no optimizer of a run accepts; ",
    ),
    (
        lambda: task(Phases, {"a": "body.1"}),
        "model of task own: the parameter 'phases' is complex, and the optimizers of a run are for real numbers; store",
    ),
    (
        lambda: task(traced, {"a": "1"}),
        "slots['a'] of task own: '1' is compiled by torch.jit, which has no hooks; name",
    ),
    (lambda: with_train(lambda x, y: (x, y > 2)), "the targets of the split 'train' must be class indices, integers"),
    (lambda: with_train(lambda x, y: (x, y.float())), "the targets of the split 'train' must be class indices"),
    (lambda: with_train(lambda x, y: (x, y[:, None])), "the targets of the split 'train' have shape [1] per sample"),
    (lambda: with_train(lambda x, y: (x[:0], y[:0])), "the split 'train' is empty"),
    (lambda: with_train(lambda x, y: (x[:, 1:], y)), "model of task own: RuntimeError"),
    (
        lambda: task(loss=lambda output, y: nn.functional.cross_entropy(output, y) - 9),
        "it must be above 0: add a constant to the loss",
    ),
    (
        lambda: task(chance=Chance(loss=0.0, score=0.2)),
        "chance of task own: the chance loss is 0; it must be above 0",
    ),
]


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize(("own", "sentence"), REFUSALS)
def test_probe_refuses_in_one_sentence(own: Callable[[], Task], sentence: str) -> None:
    assert sentence in refusal(own())


def test_factory_that_returns_the_same_parameters_is_refused() -> None:
    shared = nn.Linear(FEATURES, CLASSES)
    assert "returned the same parameters twice" in refusal(task(lambda: nn.Sequential(shared, nn.ReLU()), {"a": "0"}))


def test_nested_tensors_are_refused() -> None:
    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(20, 8)
            layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2)
            self.head = nn.Linear(8, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            h = self.encoder(self.embedding(x), src_key_padding_mask=torch.arange(x.shape[1]).expand(x.shape) > 4)
            return self.head(h.mean(1))

    slots = {"a": Slot("encoder.layers.0", layout="BTC")}
    assert "pass enable_nested_tensor=False" in refusal(task(Padded, slots, sequence_classes))


def test_model_that_does_not_run_in_channels_last_stays_contiguous() -> None:
    class Flat(InPlace):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4 * 64, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.conv(x).view(x.shape[0], -1))

    assert not probe(task(Flat, {"conv": "conv"}, pictures)).channels_last
    assert probe(task(InPlace, {"conv": "conv"}, pictures)).channels_last


def test_model_with_a_five_dimensional_weight_stays_contiguous() -> None:
    class Video(InPlace):
        """Convolves pictures, as frames of one channel, along time."""

        def __init__(self) -> None:
            super().__init__()
            self.time = nn.Conv3d(1, 1, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(self.time(x[:, None])[:, 0])

    assert not probe(task(Video, {"conv": "conv"}, pictures)).channels_last


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.BatchNorm1d(16), nn.Linear(16, CLASSES))


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({"batch_size": 21}, "64 samples in batches of 21 leave 1 for the last one"),
        ({"samples_per_epoch": 33}, "33 samples in batches of 16 leave 1 for the last one"),
        ({"batch_size": 1}, "64 samples in batches of 1 leave 1 for the last one"),
    ],
)
def test_last_batch_that_is_too_small_for_batch_norm_is_refused(options: dict[str, Any], sizes: str) -> None:
    own = task(normed, {"a": "0"}, **options)
    sentence = refusal(own)
    assert sentence.startswith(f"batch_size of task own: {sizes}, which fails: ValueError: Expected more than 1 value")
    assert sentence.endswith("; change batch_size or samples_per_epoch")
    probe(replace(own, train=["2"]))  # a frozen batch norm stays in evaluation mode


class Broken(InPlace):
    def forward(self, x: Tensor) -> Tensor:
        return {"present": super().forward(x)}["missing"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"model": Broken}, "model of task own: KeyError: 'missing'"),
        ({"loss": lambda output, targets: output.nonsense}, "loss of task own: AttributeError"),
    ],
)
def test_error_of_a_picture_task_is_reported_in_one_sentence(options: dict[str, Any], sentence: str) -> None:
    assert sentence in refusal(task(**{"model": InPlace, "slots": {"conv": "conv"}, "data": pictures, **options}))


def test_chance_is_measured_over_the_whole_split() -> None:
    def sorted_by_class(_: object) -> Splits:
        found = features()
        order = found.validation[1].argsort()
        return replace(found, validation=(found.validation[0][order], found.validation[1][order]))

    few = probe(task(data=sorted_by_class, validation_batch=32)).chance
    assert few.loss == pytest.approx(probe(task()).chance.loss, abs=0.1)


def test_structure_without_any_of_the_chosen_slots_is_refused() -> None:
    own = task()
    with pytest.raises(TaskError, match="slots of task own: it has none of the slots other; it has"):
        probe_task(own, (own.data(None),), ["other"])


def test_chance_is_measured_from_constant_outputs() -> None:
    own = task()
    counts = torch.bincount(features().validation[1]).double()
    frequencies = counts / counts.sum()
    entropy = -(frequencies * frequencies.log()).sum().item()
    assert probe(own).chance.loss == pytest.approx(entropy, rel=1e-3)
    assert probe(own).chance.score == pytest.approx(frequencies.max().item())
    assert probe(replace(own, chance=Chance(1.5, 0.2))).chance == Chance(1.5, 0.2)


def test_chance_of_a_regression_is_the_variance() -> None:
    def data(_: object) -> Splits:
        return Splits(**{name: (x, x[:, :CLASSES].contiguous()) for name, (x, _) in vars(features()).items()})

    own = task(
        data=data,
        loss=lambda output, targets: (output - targets).square().mean(1),
        score=lambda output, targets: torch.exp(-(output - targets).square().mean(1)),
    )
    targets = data(None).validation[1]
    assert probe(own).chance.loss == pytest.approx(targets.var(0, correction=0).mean().item(), rel=1e-5)
    assert math.isfinite(probe(own).chance.score)


def test_probe_leaves_the_global_generators_as_they_were() -> None:
    def draws() -> list[float]:
        return [torch.rand(()).item(), float(np.random.rand()), random.random()]

    def seed() -> None:
        torch.manual_seed(3)
        np.random.seed(3)
        random.seed(3)

    seed()
    expected = draws()
    seed()
    probe(task(augment=lambda x, y, _: (x + draws()[0], y)))
    assert draws() == expected


def test_data_are_the_same_at_each_call_and_faults_are_one_sentence() -> None:
    def unseeded(_: object) -> Splits:
        split = (torch.randn(8, FEATURES), torch.randint(CLASSES, (8,)))
        return Splits(train=split, validation=split, test=split)

    first, second = (load_data(task(data=unseeded), None) for _ in range(2))
    assert torch.equal(first[0].train[0], second[0].train[0])
    with pytest.raises(TaskError, match="data of task own: ZeroDivisionError"):
        load_data(task(data=lambda _: 1 / 0), None)
    with pytest.raises(TaskError, match="data of task own returned a list; return esper"):
        load_data(task(data=lambda _: []), None)
