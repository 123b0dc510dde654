"""Loss scaling compared with GradScaler, and the atomic skip, which GradScaler does not have."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper.networks.tasks import TASK_NAMES, load_task
from esper.training.envs.precision import LossScaler, autocast, resolve_amp
from tests.training.engine.populations import population

CPU = torch.device("cpu")


def pair() -> tuple[nn.Linear, torch.optim.SGD]:
    torch.manual_seed(0)
    layer = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9, fused=True)
    for parameter in layer.parameters():  # as in FusedSGD: a skipped first step would leave them uninitialised
        optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return layer, optimizer


def norms(*layers: nn.Module) -> Tensor:
    grads = [[p.grad for p in layer.parameters() if p.grad is not None] for layer in layers]
    return torch.stack([nn.utils.get_total_norm(each) for each in grads])


def step(scaler: LossScaler, pairs: list[tuple[nn.Linear, torch.optim.SGD]]) -> None:
    """Step all optimizers as Env does."""
    scaler.unscale_grads_([parameter for layer, _ in pairs for parameter in layer.parameters()])
    skip = scaler.update(norms(*(layer for layer, _ in pairs)))
    for _, optimizer in pairs:
        optimizer.found_inf = skip  # pyright: ignore[reportAttributeAccessIssue]
        optimizer.step()


@pytest.mark.parametrize("poisoned", [set(), {2}, {0, 1, 5}])
def test_scaler_with_one_optimizer_equals_grad_scaler(poisoned: set[int]) -> None:
    ours, our_optimizer = pair()
    theirs, their_optimizer = pair()
    scaler, reference = LossScaler(CPU), torch.amp.GradScaler("cpu")
    for batch in range(8):
        x = torch.randn(5, 4) * (math.inf if batch in poisoned else 1.0)
        our_optimizer.zero_grad()
        scaler.scale_loss(ours(x).square().mean()).backward()
        step(scaler, [(ours, our_optimizer)])
        their_optimizer.zero_grad()
        reference.scale(theirs(x).square().mean()).backward()
        reference.unscale_(their_optimizer)
        reference.step(their_optimizer)
        reference.update()
        assert torch.equal(ours.weight, theirs.weight)
        assert scaler.current() == reference.get_scale()


def test_overflow_of_one_owner_skips_all() -> None:
    host, host_optimizer = pair()
    seed, seed_optimizer = pair()
    before = host.weight.clone()
    scaler = LossScaler(CPU)
    start = scaler.current().item()
    loss = host(torch.randn(5, 4)).mean() + (seed(torch.randn(5, 4)) * math.inf).mean()
    scaler.scale_loss(loss).backward()
    step(scaler, [(host, host_optimizer), (seed, seed_optimizer)])
    assert norms(host, seed).isfinite().tolist() == [True, False]
    assert torch.equal(host.weight, before)
    assert scaler.current() == start / 2


def test_scaler_continues_from_a_snapshot() -> None:
    layer, optimizer = pair()
    scaler = LossScaler(CPU)
    for x in (torch.ones(2, 4), torch.full((2, 4), math.inf), torch.ones(2, 4)):
        optimizer.zero_grad()
        scaler.scale_loss(layer(x).mean()).backward()
        step(scaler, [(layer, optimizer)])
    other = LossScaler(CPU)
    other.load_state_dict(scaler.state_dict())
    assert other.state_dict() == scaler.state_dict()
    assert other.state_dict()["_growth_tracker"] == 1


@pytest.mark.parametrize(
    ("amp", "device", "float32_defaults", "dtype"),
    [
        ("auto", "cpu", False, None),
        ("auto", "cuda:0", False, None),
        ("auto", "cuda:1", False, torch.bfloat16),
        ("auto", "cuda:1", True, None),
        ("bf16", "cuda:1", True, torch.bfloat16),
        ("fp16", "cpu", True, torch.float16),
        ("tf32", "cuda:1", False, None),
        ("off", "cuda:1", False, None),
    ],
)
def test_precision_depends_on_device_and_task(
    amp: str, device: str, float32_defaults: bool, dtype: torch.dtype | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: {0: (7, 5), 1: (9, 0)}[device.index])
    assert resolve_amp(amp, torch.device(device), float32_defaults=float32_defaults) is dtype


@pytest.mark.parametrize(("amp", "precision"), [("tf32", "tf32"), ("bf16", "ieee"), ("off", "ieee")])
def test_a_population_sets_the_precision_of_float32(amp: str, precision: str) -> None:
    backends: Any = torch.backends
    with population(amp=amp):
        assert (backends.cudnn.conv.fp32_precision, backends.cudnn.rnn.fp32_precision) == (precision, precision)
        assert backends.cuda.matmul.fp32_precision == precision
        assert backends.cudnn.allow_tf32 == (amp == "tf32")  # other libraries read the older flag


def test_built_in_tasks_are_float32_except_cifar() -> None:
    assert {name for name in TASK_NAMES if not load_task(name).float32_defaults} == {"cifar10", "cifar_impaired"}


def test_autocast_is_off_without_a_dtype() -> None:
    with autocast(CPU, None):
        assert not torch.is_autocast_enabled("cpu")
    with autocast(CPU, torch.bfloat16):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.bfloat16
