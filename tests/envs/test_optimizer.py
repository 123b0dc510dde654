"""FusedSGD compared with PyTorch's SGD."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from esper.envs.optimizer import FusedSGD
from esper.tasks.optimizers import SGD

MOMENTUM, DECAY = 0.9, 0.01


def parameters() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((4, 3), (5,))]


def backward(trained: list[nn.Parameter], batch: int) -> Tensor:
    """Set the gradients of a batch and return their norm."""
    for parameter in trained:
        parameter.grad = parameter.detach().sin() * (batch + 1)
    return torch.linalg.vector_norm(torch.cat([p.grad.flatten() for p in trained if p.grad is not None]))


def sgd(trained: list[nn.Parameter], clip: float) -> FusedSGD:
    return FusedSGD(trained, SGD(0.1, MOMENTUM, DECAY), clip)


@pytest.mark.parametrize("lr_scale", [1.0, 0.25])
def test_sgd_equals_clipped_nesterov_momentum(lr_scale: float) -> None:
    ours, theirs = parameters(), parameters()
    optimizer = sgd(ours, clip=3.0)
    optimizer.lr_scale = lr_scale
    reference = torch.optim.SGD(theirs, lr=0.1 * lr_scale, momentum=MOMENTUM, weight_decay=DECAY, nesterov=True)
    clipped = set[bool]()
    for batch in range(5):
        norm = backward(ours, batch)
        clipped.add(norm.item() > 3.0)
        optimizer.step(optimizer.gradients(), norm, None)
        backward(theirs, batch)
        torch.nn.utils.clip_grad_norm_(theirs, 3.0)
        reference.step()
        torch.testing.assert_close(ours, theirs)
    assert clipped == {False, True}


def test_sgd_skipped_step_changes_nothing() -> None:
    ours, theirs = parameters(), parameters()
    optimizer, other = (sgd(each, clip=1e9) for each in (ours, theirs))
    for batch, skipped in enumerate((1.0, 0.0, 1.0, 0.0)):
        norm = backward(ours, batch)
        optimizer.step(optimizer.gradients(), norm, torch.tensor(skipped))
        if not skipped:
            norm = backward(theirs, batch)
            other.step(other.gradients(), norm, torch.tensor(0.0))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_sgd_leaves_parameters_without_gradient_unchanged() -> None:
    trained = parameters()
    optimizer = sgd(trained, clip=1e9)
    norm, before = backward(trained, 0), trained[1].detach().clone()
    trained[1].grad = None
    optimizer.step(optimizer.gradients(), norm, None)
    assert torch.equal(trained[1], before)
