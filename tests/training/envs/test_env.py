"""One env: the data of an epoch, the parameters that train, clipping, and the learning rate."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.common.domain import Op, Stage
from esper.networks.seeds.blend import BLEND_STYLES, Blend
from esper.networks.tasks.optimizers import SGD, AnyOptimizer
from esper.networks.tasks.schedules import FINAL_LR_FRACTION, cooldown, lr_factor
from esper.networks.tasks.splits import Splits
from esper.networks.tasks.task import Task
from esper.training.envs.env import Env
from esper.training.envs.epoch_result import EpochResult
from esper.training.policy.actions import Action
from tests.training.engine.populations import population

GERMINATE = Action(Op.GERMINATE, slot=1, blueprint=4)
WAIT = Action(Op.WAIT)


def one_batch(task: Task) -> Task:
    return replace(task, samples_per_epoch=task.batch_size)


def measure(env: Env, step: int) -> EpochResult:
    """Train for an epoch and validate."""
    return env.unpack_results(env.train_epoch(step).tolist(), env.validate(last=False).tolist())


def epoch(env: Env, step: int, action: Action = WAIT) -> EpochResult:
    """Run one step: action, epoch, validation and the end of the epoch."""
    env.apply_action(action, step)
    measured = measure(env, step)
    env.tick()
    return measured


def until(env: Env, stage: Stage, step: int = 0) -> int:
    """Grow a seed in the middle slot up to a stage; return the index of the next step."""
    slot = env.network.slots[1]
    while slot.stage is not stage:
        epoch(env, step, GERMINATE if slot.can_germinate else Action(Op.ADVANCE, slot=1) if slot.can_advance else WAIT)
        step += 1
    return step


def scramble(env: Env) -> None:
    """Change the seed's weights at random, so that it is not the identity."""
    noise = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in env.network.slots[1].parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=noise))


def values(parameters: Iterable[Tensor]) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in parameters]


def equal(left: list[Tensor], right: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def same_objects(left: Sequence[Tensor], right: Sequence[Tensor]) -> bool:
    return list(map(id, left)) == list(map(id, right))


# Data of an epoch


def numbered(splits: Splits) -> Splits:
    """Set the first pixel of every training picture to its index."""
    x, y = splits.train
    x = x.clone()
    x[:, 0, 0, 0] = torch.arange(len(x), dtype=torch.float32)
    return replace(splits, train=(x, y))


def batches(env: Env, step: int) -> list[Tensor]:
    """Return the pictures of each batch of an epoch."""
    seen: list[Tensor] = []
    handle = env.network.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    env.train_epoch(step)
    handle.remove()
    return seen


def seen_in(env: Env, step: int) -> list[int]:
    """Return the indices of the samples of an epoch, in order."""
    return torch.cat(batches(env, step))[:, 0, 0, 0].int().tolist()


def test_epoch_uses_its_fraction_of_the_split_once() -> None:
    with population(splits=numbered) as pool:
        (env,) = pool.envs
        seen = seen_in(env, 0)
        assert len(seen) == len(set(seen)) == env.samples_per_epoch < len(env.splits.train[1])


def test_images_are_stored_in_the_training_dtype() -> None:
    with population(amp="bf16") as pool, population(amp="bf16") as other:
        (env,), (casting,) = pool.envs, other.envs
        assert env.splits.train[0].dtype is torch.bfloat16
        assert env.splits.validation[0].dtype is torch.float32
        casting.splits = casting.task.data(None)
        assert casting.splits.train[0].dtype is torch.float32
        for one in (env, casting):
            one.reset(one.key._replace(round=0))
        assert measure(env, 0) == measure(casting, 0)


def test_epoch_is_at_most_the_training_split() -> None:
    with population(splits=numbered, task=lambda task: replace(task, samples_per_epoch=10**6)) as pool:
        seen = seen_in(pool.envs[0], 0)
        assert sorted(seen) == list(range(len(pool.envs[0].splits.train[1])))


def test_data_order_depends_on_seed_env_round_and_step() -> None:
    alone = {"policy": "static", "splits": numbered}  # every env has its own host and data order
    with population(envs=2, **alone) as pool, population(seed=1, **alone) as other:
        first, second = pool.envs
        order = seen_in(first, 0)
        assert seen_in(first, 0) == order
        others = [seen_in(second, 0), seen_in(first, 1), seen_in(other.envs[0], 0)]
        first.enter(first.key._replace(round=1))
        others.append(seen_in(first, 0))
        assert all(different != order for different in others)
        assert len({tuple(different) for different in others}) == len(others)


def test_epoch_weighs_samples_equally() -> None:
    """The last batch is smaller than the others, and its samples must not weigh more."""
    still = {"optimizer": SGD(1e-30), "batch_size": 100, "samples_per_epoch": 250}
    with population(task=lambda task: replace(task, **still), splits=numbered) as pool:
        (env,) = pool.envs
        pictures = batches(env, 0)
        assert [len(batch) for batch in pictures] == [100, 100, 50]
        logits = torch.cat([env.network(batch, env.network.alphas()) for batch in pictures])
        labels = env.splits.train[1][torch.cat(pictures)[:, 0, 0, 0].int()]
        measured = measure(env, 0)
        assert measured.train_loss == pytest.approx(F.cross_entropy(logits, labels).item(), rel=1e-5)
        hits = (logits.argmax(dim=1) == labels).float()
        assert measured.train_score == pytest.approx(hits.mean().item(), rel=1e-6)


# Who trains whom


def test_training_seed_leaves_its_host_unchanged() -> None:
    with population() as pool, population() as bare_pool:
        env, bare = pool.envs[0], bare_pool.envs[0]
        env.reset(env.key._replace(round=0))
        bare.reset(bare.key._replace(round=0))
        step = until(env, Stage.TRAINING)
        for earlier in range(step):
            epoch(bare, earlier)
        scramble(env)
        seed = values(env.network.slots[1].parameters())
        for later in range(step, step + 3):
            grown, plain = epoch(env, later), epoch(bare, later)
            assert grown.slot_grad_norms.keys() == {1}
            assert replace(grown, slot_grad_norms={}) == plain
        assert equal(values(env.network.host_parameters()), values(bare.network.host_parameters()))
        assert torch.equal(env.validate(last=False), bare.validate(last=False))
        assert not equal(values(env.network.slots[1].parameters()), seed)


def test_gradients_are_freed_even_if_backward_fails() -> None:
    with population(task=one_batch) as pool:
        (env,) = pool.envs
        env.reset(env.key._replace(round=0))
        twin = copy.deepcopy(env)
        failing = env.network.host_parameters()[0].register_hook(run_out_of_memory)
        with pytest.raises(torch.OutOfMemoryError):
            env.train_epoch(0)
        failing.remove()
        for each in (env, twin):
            each.train_epoch(0)
            assert all(parameter.grad is None for parameter in each.network.parameters())
        assert equal(values(env.network.host_parameters()), values(twin.network.host_parameters()))


def run_out_of_memory(gradient: Tensor) -> None:
    """Fail as a backward hook, after the gradients of later layers were computed."""
    raise torch.OutOfMemoryError


def test_germinated_seed_is_not_trained() -> None:
    with population() as pool:
        (env,) = pool.envs
        env.reset(env.key._replace(round=0))
        env.apply_action(GERMINATE, 0)
        before = values(env.network.slots[1].parameters())
        env.train_epoch(0)
        assert env.network.slots[1].stage is Stage.GERMINATED
        assert equal(values(env.network.slots[1].parameters()), before)


def test_blended_seed_and_host_receive_gradients() -> None:
    with population() as pool:
        (env,) = pool.envs
        env.reset(env.key._replace(round=0))
        step = until(env, Stage.BLENDING)
        host, seed = values(env.network.host_parameters()), values(env.network.slots[1].parameters())
        epoch(env, step)
        assert not equal(values(env.network.host_parameters()), host)
        assert not equal(values(env.network.slots[1].parameters()), seed)


def test_new_blend_gate_is_trained_and_momenta_are_kept() -> None:
    gated, plain = (
        next(i for i, style in enumerate(BLEND_STYLES) if style.blend is blend) for blend in (Blend.GATE, Blend.ADD)
    )
    with population() as pool:
        (env,) = pool.envs
        env.reset(env.key._replace(round=0))
        step = until(env, Stage.PROBATIONARY)
        slot, seed = env.network.slots[1], list(env.network.slots[1].parameters())
        momenta = values(env.slot_optimizers[1].state["momentum"])
        env.apply_action(Action(Op.SET_ALPHA, slot=1, style=gated, alpha_target=2), step)
        assert slot.gate is not None
        assert same_objects(env.slot_optimizers[1].parameters, [*seed, *slot.gate.parameters()])
        assert equal(values(env.slot_optimizers[1].state["momentum"][: len(seed)]), momenta)
        before = values(slot.gate.parameters())
        measure(env, step)
        assert not equal(values(slot.gate.parameters()), before)
        env.tick()
        momenta = values(env.slot_optimizers[1].state["momentum"])[: len(seed)]
        env.apply_action(Action(Op.SET_ALPHA, slot=1, style=plain, alpha_target=2), step + 1)
        assert same_objects(env.slot_optimizers[1].parameters, seed)
        assert equal(env.slot_optimizers[1].state["momentum"], momenta)
        env.apply_action(Action(Op.SET_ALPHA, slot=1, style=gated, alpha_target=2), step + 1)
        assert equal(values(slot.gate.parameters()), before)
        assert equal(env.slot_optimizers[1].state["momentum"][: len(seed)], momenta)
        assert not any(momentum.any() for momentum in env.slot_optimizers[1].state["momentum"][len(seed) :])


# Clipping


def reference_gradients(env: Env, step: int) -> tuple[list[Tensor], list[Tensor]]:
    """Return the gradients of the host and the middle slot's seed for the first batch of an epoch, by autograd."""
    batch_x = batches(copy.deepcopy(env), step)[0]
    labels = env.splits.train[1][batch_x[:, 0, 0, 0].int()]
    network = copy.deepcopy(env.network).train()
    F.cross_entropy(network(batch_x, network.alphas()), labels).backward()
    host, seed = (
        [parameter.grad for parameter in parameters if parameter.grad is not None]
        for parameters in (network.host_parameters(), list(network.slots[1].parameters()))
    )
    return host, seed


def norm(gradients: list[Tensor]) -> float:
    return torch.cat([gradient.flatten() for gradient in gradients]).norm().item()


@pytest.mark.parametrize(("host_clip", "seed_clip"), [(1e-3, 1e3), (1e3, 1e-3), (1e3, 1e3)])
def test_host_and_seed_are_clipped_by_their_own_norms(host_clip: float, seed_clip: float) -> None:
    """One batch of SGD with Nesterov momentum from rest: p − lr (1 + μ) (clipped gradient + decay p)."""

    def clipped(task: Task) -> Task:
        return replace(one_batch(task), clip=host_clip, seed_clip=seed_clip)

    with population(task=clipped, splits=numbered) as pool:
        (env,) = pool.envs
        env.reset(env.key._replace(round=0))
        step = until(env, Stage.TRAINING)
        scramble(env)
        for optimizer in (env.host_optimizer, *env.slot_optimizers.values()):
            optimizer.reset_state()
        host, seed = reference_gradients(env, step)
        owners: list[tuple[Callable[[], list[nn.Parameter]], list[Tensor], float, AnyOptimizer]] = [
            (env.network.host_parameters, host, host_clip, env.task.optimizer),
            (lambda: list(env.network.slots[1].parameters()), seed, seed_clip, env.task.seed_optimizer),
        ]
        expected: list[Tensor] = []
        for parameters, gradients, clip, spec in owners:
            assert isinstance(spec, SGD)
            scale = min(1.0, clip / (norm(gradients) + 1e-6))
            for parameter, gradient in zip(parameters(), gradients, strict=True):
                step_of = scale * gradient + spec.weight_decay * parameter.detach()
                expected.append(parameter.detach() - spec.learning_rate * (1 + spec.momentum) * step_of)
        measured = measure(env, step)
        found = [*values(env.network.host_parameters()), *values(env.network.slots[1].parameters())]
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
        norms = [measured.grad_norm, measured.slot_grad_norms[1]]
        assert norms == pytest.approx([norm(host), norm(seed)], rel=1e-4)  # before clipping


def test_learning_rate_falls_in_the_last_quarter() -> None:
    shares = [lr_factor(cooldown, step, 40, 0, 1) for step in range(40)]
    assert shares[:30] == [1.0] * 30
    assert shares[34] == pytest.approx((1 + FINAL_LR_FRACTION) / 2)
    assert shares[39] == pytest.approx(FINAL_LR_FRACTION)
    assert lr_factor(cooldown, 0, 1, 0, 1) == pytest.approx(FINAL_LR_FRACTION)


def test_host_and_seed_use_the_learning_rate_of_the_step() -> None:
    """Train one batch in a step that is early in one episode and the last one of another."""
    moved = list[list[Tensor]]()
    for steps in (40, 4):
        with population(task=one_batch, steps=steps) as pool:
            pool.reset(0)
            env = pool.envs[0]
            assert until(env, Stage.TRAINING) <= 3
            before = values(env.network.parameters())
            env.train_epoch(3)
            moved.append([now - then for now, then in zip(env.network.parameters(), before, strict=True)])
    early, last = moved
    assert sum(bool(change.any()) for change in early) > len(list(env.network.slots[1].parameters()))
    torch.testing.assert_close(last, [FINAL_LR_FRACTION * change for change in early], rtol=1e-3, atol=1e-6)
