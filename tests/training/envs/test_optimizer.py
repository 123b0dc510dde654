"""FusedSGD and FusedAdamW compared with PyTorch's SGD and AdamW."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from esper.networks.tasks.optimizers import SGD, AdamW
from esper.training.envs.optimizer import FusedOptimizer
from esper.training.envs.task_optimizer import make_optimizer

MOMENTUM, DECAY = 0.9, 0.01
BETAS, EPS = (0.8, 0.95), 1e-6
SPECS = [SGD(0.1, MOMENTUM, DECAY), AdamW(0.1, BETAS, EPS, DECAY)]
DTYPES = [torch.float32, torch.float64]


def parameters(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in ((4, 3), (5,))]


def backward(trained: list[nn.Parameter], batch: int) -> Tensor:
    """Set the gradients of a batch and return their norm."""
    for parameter in trained:
        parameter.grad = parameter.detach().sin() * (batch + 1)
    return torch.linalg.vector_norm(torch.cat([p.grad.flatten() for p in trained if p.grad is not None]))


def fused(spec: SGD | AdamW, trained: list[nn.Parameter], clip: float) -> FusedOptimizer:
    optimizer = make_optimizer(spec, [("", parameter) for parameter in trained], clip)
    assert isinstance(optimizer, FusedOptimizer)
    return optimizer


def train(optimizer: FusedOptimizer, trained: list[nn.Parameter], batches: range) -> None:
    for batch in batches:
        norm = backward(trained, batch)
        optimizer.step(optimizer.gradients(), norm, None)


def reference(
    spec: SGD | AdamW, trained: list[nn.Parameter], lr_scale: float = 1.0, *, is_fused: bool = False
) -> torch.optim.Optimizer:
    lr, kind = 0.1 * lr_scale, {"fused": True} if is_fused else {"foreach": False}
    if isinstance(spec, AdamW):
        return torch.optim.AdamW(trained, lr=lr, betas=BETAS, eps=EPS, weight_decay=DECAY, **kind)
    return torch.optim.SGD(trained, lr=lr, momentum=MOMENTUM, weight_decay=DECAY, nesterov=True, **kind)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lr_scale", [1.0, 0.25])
def test_optimizer_equals_torchs_with_clipped_gradients(lr_scale: float, dtype: torch.dtype, spec: SGD | AdamW) -> None:
    """The divisor of the gradients is a float32, so float64 agrees to float32's precision."""
    ours, theirs = parameters(dtype), parameters(dtype)
    optimizer = fused(spec, ours, clip=3.0)
    optimizer.lr_scale = lr_scale
    other = reference(spec, theirs, lr_scale)
    clipped = set[bool]()
    for batch in range(5):
        norm = backward(ours, batch)
        clipped.add(norm.item() > 3.0)
        optimizer.step(optimizer.gradients(), norm, None)
        backward(theirs, batch)
        torch.nn.utils.clip_grad_norm_(theirs, 3.0)
        other.step()
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    assert clipped == {False, True}


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_optimizer_has_the_bits_of_torchs_fused_one(dtype: torch.dtype, spec: SGD | AdamW) -> None:
    ours, theirs = parameters(dtype), parameters(dtype)
    optimizer = fused(spec, ours, clip=1e9)
    optimizer.lr_scale = 0.25
    other = reference(spec, theirs, 0.25, is_fused=True)
    for batch in range(5):
        train(optimizer, ours, range(batch, batch + 1))
        backward(theirs, batch)
        other.step()
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_rate_is_read_from_one_tensor() -> None:
    """A recorded graph reads the tensor, so a change of the rate must not make another one."""
    optimizer = fused(SPECS[0], parameters(), clip=1e9)
    first = optimizer.rate()
    assert first.item() == 0.1
    optimizer.learning_rate, optimizer.lr_scale = 0.3, 0.5
    assert optimizer.rate() is first
    assert first.item() == 0.3 * 0.5


@pytest.mark.parametrize("spec", SPECS)
def test_skipped_overflow_changes_nothing(spec: SGD | AdamW) -> None:
    """Infinite gradients reach neither the parameters nor the state, and the numbers of steps do not count a skip."""
    ours, theirs = parameters(), parameters()
    optimizer, other = (fused(spec, each, clip=3.0) for each in (ours, theirs))
    for batch, skipped in enumerate((1.0, 0.0, 1.0, 0.0)):
        norm = backward(ours, batch)
        if skipped:
            assert ours[0].grad is not None
            ours[0].grad[0] = torch.inf
            norm = torch.tensor(torch.inf)
        optimizer.step(optimizer.gradients(), norm, torch.tensor(skipped))
        if not skipped:
            norm = backward(theirs, batch)
            other.step(other.gradients(), norm, torch.tensor(0.0))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    torch.testing.assert_close(optimizer.state, other.state, rtol=0, atol=0)


def test_adamw_counts_steps_of_each_parameter_with_a_gradient() -> None:
    trained = parameters()
    optimizer = fused(SPECS[1], trained, clip=1e9)
    for batch in range(4):
        norm = backward(trained, batch)
        if batch in {0, 2}:
            trained[0].grad = None
        optimizer.step(optimizer.gradients(), norm, None)
    assert [step.item() for step in optimizer.state["step"]] == [2.0, 4.0]


@pytest.mark.parametrize("spec", SPECS)
def test_parameters_that_come_and_go_keep_their_own_state(spec: SGD | AdamW) -> None:
    """The first parameter has no gradient in two batches: the state of the second may not be used for it."""
    ours, theirs = parameters(), parameters()
    optimizer = fused(spec, ours, clip=1e9)
    other = reference(spec, theirs)
    for batch in range(5):
        norm = backward(ours, batch)
        backward(theirs, batch)
        if batch in {1, 3}:
            ours[0].grad = theirs[0].grad = None
        optimizer.step(optimizer.gradients(), norm, None)
        other.step()
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("spec", SPECS)
def test_joint_optimizer_trains_with_the_state_of_its_parts(spec: SGD | AdamW) -> None:
    trained = parameters()
    parts = [fused(spec, [parameter], 1e9) for parameter in trained]
    joint = fused(spec, trained, clip=1e9)
    joint.share_state(parts)
    train(joint, trained, range(3))
    for name, values in joint.state.items():
        for value, part in zip(values, parts, strict=True):
            assert part.state[name][0] is value
            assert value.any()


@pytest.mark.parametrize("spec", SPECS)
def test_training_continues_from_copied_state_with_the_same_bits(spec: SGD | AdamW) -> None:
    ours, theirs = parameters(), parameters()
    optimizer = fused(spec, ours, clip=3.0)
    train(optimizer, ours, range(3))
    other = fused(spec, theirs, clip=3.0)
    saved = {name: value.clone() for name, value in optimizer.state_tensors("host").items()}
    with torch.no_grad():
        for own, value in other.state_tensors("host").items():
            value.copy_(saved[own])
        for mine, value in zip(theirs, ours, strict=True):
            mine.copy_(value)
    train(optimizer, ours, range(3, 6))
    train(other, theirs, range(3, 6))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_state_has_the_names_of_checkpoints() -> None:
    """Checkpoints store these names: a renamed tensor could not be resumed."""
    names = [list(fused(spec, parameters(), 1.0).state_tensors("slot1")) for spec in SPECS]
    assert names[0] == ["momentum.slot1.0", "momentum.slot1.1"]
    assert names[1] == [f"{name}.slot1.{index}" for name in ("exp_avg", "exp_avg_sq", "step") for index in (0, 1)]


@pytest.mark.parametrize("spec", SPECS)
def test_reset_state_is_that_of_a_new_optimizer(spec: SGD | AdamW) -> None:
    trained = parameters()
    optimizer = fused(spec, trained, clip=3.0)
    tensors = optimizer.state_tensors("host")
    train(optimizer, trained, range(2))
    optimizer.reset_state()
    fresh = fused(spec, parameters(), clip=3.0)
    torch.testing.assert_close(tensors, fresh.state_tensors("host"), rtol=0, atol=0)


@pytest.mark.parametrize("spec", SPECS)
def test_optimizer_without_parameters_does_nothing(spec: SGD | AdamW) -> None:
    optimizer = fused(spec, [], clip=1.0)
    optimizer.step(optimizer.gradients(), torch.tensor(0.0), torch.tensor(0.0))
    optimizer.zero_grad()
    optimizer.reset_state()
    assert optimizer.state_tensors("host") == {}
