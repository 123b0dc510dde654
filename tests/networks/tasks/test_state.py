"""State of a model: it is refused if a checkpoint would not contain it, and accepted in every usual place."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune
from torch.utils.checkpoint import checkpoint

from esper.common.configuration.config import TaskError
from esper.networks.seeds.blueprints import BLUEPRINTS, blueprint
from esper.networks.tasks.probe import probe_task
from esper.networks.tasks.splits import Splits
from esper.networks.tasks.task import Slot, Task
from tests.networks.tasks.models import CLASSES, FEATURES, VOCABULARY, InPlace, features, mlp, pictures, task, tokens


class Stateful(nn.Module):
    """Two linear layers, and a function that shifts the inputs of the first one and can keep state in the module."""

    def __init__(self, shift: Callable[[Any, Tensor], Any], start: Callable[[Any], object] = lambda _: None) -> None:
        super().__init__()
        self.a = nn.Linear(FEATURES, FEATURES)
        self.head = nn.Linear(FEATURES, CLASSES)
        self.before: Any = None
        self._shift = shift
        start(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.a(x + self._shift(self, x)).relu())


def stateful(shift: Callable[[Any, Tensor], Any], start: Callable[[Any], object] = lambda _: None) -> Task:
    return task(partial(Stateful, shift, start), {"a": "a"})


def refusal(own: Task) -> str:
    with pytest.raises(TaskError) as error:
        probe_task(own, (own.data(None),))
    assert "\n" not in str(error.value)
    return str(error.value)


def last_batch(model: Any, x: Tensor) -> Any:
    """Return the mean of the inputs of the call before."""
    before, model.before = model.before, x.mean(0)
    return 0 if before is None else before


def first_batch(model: Any, x: Tensor) -> Tensor:
    """Return the mean of the inputs of the first call."""
    if model.before is None:
        model.before = x.mean(0)
    return model.before


def last_training_batch(model: Any, x: Tensor) -> Any:
    """Return the mean of the last training batch, in evaluation mode."""
    if model.training:
        model.before = x.mean(0)
        return 0
    return model.before


def draw_shift(model: Any) -> None:
    model.shift = torch.randn(FEATURES)


def own_generator(model: Any) -> None:
    model.generator = torch.Generator().manual_seed(0)


@pytest.mark.parametrize(
    "own",
    [
        stateful(last_batch),
        stateful(first_batch),
        stateful(last_training_batch),
        stateful(lambda model, _: model.shift, draw_shift),
        stateful(lambda model, x: torch.rand(x.shape, generator=model.generator), own_generator),
        stateful(lambda _, x: float(np.random.default_rng().normal())),
    ],
    ids=["last batch", "first batch", "last training batch", "drawn attribute", "own generator", "unseeded generator"],
)
def test_state_outside_the_buffers_is_refused_with_the_remedy(own: Task) -> None:
    sentence = refusal(own)
    assert sentence.startswith("model of task own: equal weights, buffers, inputs and random seeds give different out")
    assert "keep state in buffers (register_buffer), and draw random numbers from the generators of torch" in sentence


def longer_queue(model: Any, x: Tensor) -> int:
    model.queue = torch.cat((model.queue, x.detach().mean(0, keepdim=True)))[-5:]
    return 0


def late_buffer(model: Any, x: Tensor) -> int:
    if not hasattr(model, "mean"):
        model.register_buffer("mean", x.detach().mean(0))
    return 0


def empty_queue(model: Any) -> None:
    model.register_buffer("queue", torch.zeros(0, FEATURES))


def test_buffer_that_changes_its_size_is_refused_by_name() -> None:
    problem = "the buffer 'queue' is float32 [1, 12] instead of float32 [0, 12] after a forward pass; create it with"
    assert problem in refusal(stateful(longer_queue, empty_queue))
    assert "the buffer 'mean' is float32 [12] instead of None after a forward" in refusal(stateful(late_buffer))


def test_networks_of_different_sizes_are_refused() -> None:
    def of_random_width() -> nn.Module:
        width = int(torch.randint(10, 1000, ()))
        return nn.Sequential(nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, CLASSES))

    sentence = refusal(task(of_random_width, {"a": "1"}))
    assert sentence.startswith("model of task own: the parameter '0.weight' is float32 [")
    assert sentence.endswith("in the second call of the function; build equal layers in each call")


def counted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that receives its number of calls as its last argument."""
    calls: list[None] = []

    def call(*arguments: Any) -> Any:
        calls.append(None)
        return function(*arguments, len(calls))

    return call


@pytest.mark.parametrize(
    ("field", "function"),
    [
        ("loss", lambda output, y, n: nn.functional.cross_entropy(output / n, y)),
        ("score", lambda output, y, n: output.softmax(1)[:, 0] / n),
        ("augment", lambda x, y, _, n: (x + n, y)),
    ],
)
def test_function_of_a_task_with_state_is_refused(field: str, function: Callable[..., Any]) -> None:
    problem = f"{field} of task own: equal arguments and random seeds give different results, so it has state"
    assert problem in refusal(task(**{field: counted(function)}))


class Seed(nn.Module):
    """A seed that adds what a function returns for it."""

    def __init__(self, channels: int, shift: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(channels, 1, 1))
        self.drawn = float(torch.rand(()))
        self.before: Any = None
        self._shift = shift

    def forward(self, x: Tensor) -> Tensor:
        return x + self._shift(self, x)


def wider_mean(seed: Any, x: Tensor) -> Tensor:
    seed.mean = x.mean(0)
    return seed.mean


@pytest.mark.parametrize(
    ("shift", "problem"),
    [
        (lambda seed, _: seed.drawn, "equal weights, buffers, inputs and random seeds give different outputs"),
        (last_batch, "equal weights, buffers, inputs and random seeds give different outputs"),
        (wider_mean, "the buffer 'mean' is float32 [4, 8, 8] instead of float32 [4, 1, 1]"),
    ],
)
def test_seed_with_state_is_refused(monkeypatch: pytest.MonkeyPatch, shift: Any, problem: str) -> None:
    monkeypatch.setitem(BLUEPRINTS, "own", {})
    blueprint("own", "BCHW")(partial(Seed, shift=shift))
    sentence = refusal(task(InPlace, {"conv": "conv"}, pictures, blueprints=["own"]))
    assert f"slots['conv'] of task own: the blueprint 'own' does not run there: {problem}" in sentence


# Models whose state and random numbers are in usual places.


def changed(change: Callable[[Any], object]) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        model = mlp()
        change(model)
        return model

    return build


def pruned(model: Any) -> None:
    prune.random_unstructured(model[2], "weight", amount=0.4)


def with_own_hooks(model: Any) -> None:
    model[1].register_forward_hook(lambda *call: 2 * call[-1])
    model.register_forward_pre_hook(lambda *_: None)


def running_mean(model: Any, x: Tensor) -> Tensor:
    """Replace one buffer and change another one in place."""
    model.mean = 0.9 * model.mean + 0.1 * x.detach().mean(0)
    model.count += 1
    return model.mean / model.count


def add_buffers(model: Any) -> None:
    model.register_buffer("mean", torch.zeros(FEATURES))
    model.register_buffer("count", torch.tensor(0), persistent=False)


def share_buffer(model: Any) -> None:
    add_buffers(model)
    model.a.register_buffer("mean", model.mean)


class Recomputed(Stateful):
    """The same layers; the second one runs in an activation checkpoint."""

    def __init__(self, use_reentrant: bool) -> None:
        super().__init__(lambda *_: 0)
        self._use_reentrant = use_reentrant

    def forward(self, x: Tensor) -> Any:
        layers = lambda h: self.head(torch.dropout(h, 0.1, self.training))  # noqa: E731
        return checkpoint(layers, self.a(x), use_reentrant=self._use_reentrant)


class FrozenNorm(Stateful):
    """Its batch norm stays in evaluation mode."""

    def __init__(self) -> None:
        super().__init__(lambda model, x: model.norm(x))
        self.norm = nn.BatchNorm1d(FEATURES)

    def train(self, mode: bool = True) -> FrozenNorm:
        super().train(mode)
        self.norm.eval()
        return self


def sometimes(model: Any, x: Tensor) -> Any:
    """Stochastic depth: a layer that is left out at random in training."""
    return 0 if model.training and torch.rand(()) < 0.3 else model.a(x)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 8)
        self.rnn = nn.LSTM(8, 8, 2, batch_first=True, dropout=0.2)
        self.head = nn.Linear(8, VOCABULARY)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(self.embedding(x))[0])


def weighted_features(_: object) -> Splits:
    return Splits(**{name: (x, {"y": y, "weight": x[:, 0].abs()}) for name, (x, y) in vars(features()).items()})


USUAL: dict[str, Task] = {
    "weight norm": task(changed(lambda model: parametrizations.weight_norm(model[2]))),
    "spectral norm": task(changed(lambda model: parametrizations.spectral_norm(model[2]))),
    "pruning": task(changed(pruned)),
    "own hooks": task(changed(with_own_hooks)),
    "DataParallel": task(lambda: nn.Sequential(nn.DataParallel(mlp())), {"a": "0.module.1"}),
    "LSTM": task(Recurrent, {"a": Slot("rnn", layout="BTC")}, tokens),
    "activation checkpoint": task(partial(Recomputed, use_reentrant=False), {"a": "a", "within": "head"}),
    "re-entrant activation checkpoint": task(partial(Recomputed, use_reentrant=True), {"a": "a", "within": "head"}),
    "frozen batch norm": task(FrozenNorm, {"a": "a"}),
    "buffers": stateful(running_mean, add_buffers),
    "shared buffer": stateful(lambda model, x: model.a.mean.add_(x.detach().mean(0)), share_buffer),
    "stochastic depth": task(partial(Stateful, sometimes), {"head": "head"}),
    "NumPy noise": stateful(lambda _, x: torch.from_numpy(np.random.normal(size=x.shape)).float()),
    "weighted samples": task(
        data=weighted_features,
        loss=lambda output, t: nn.functional.cross_entropy(output, t["y"], reduction="none") * t["weight"],
        score=lambda output, t: (output.argmax(1) == t["y"]).float(),
    ),
    "last batch of one sample": task(batch_size=21),
    "noise in augment": task(augment=lambda x, y, generator: (x.add_(torch.rand(x.shape, generator=generator)), y)),
}


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("kind", USUAL)
def test_usual_models_are_accepted(kind: str) -> None:
    own = USUAL[kind]
    assert probe_task(own, (own.data(None),)).sites
