"""Packed modules: same values, objects and strides; one address for life; buffers that a module replaces."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from esper.common.domain import Op, Stage
from esper.networks.seeds.blend import BLEND_STYLES, Blend
from esper.networks.seeds.tensors import module_tensors
from esper.networks.tasks.optimizers import SGD, AdamW
from esper.training.envs.env import Env
from esper.training.envs.env_state import env_state_tensors, export_states, load_lifecycle, load_tensor_states
from esper.training.envs.governor import LastGoodState
from esper.training.envs.packing import PackedModule, storage_id, view_in
from esper.training.envs.task_optimizer import make_optimizer
from esper.training.policy.actions import Action
from tests.training.engine.populations import population

GATED = next(i for i, style in enumerate(BLEND_STYLES) if style.blend is Blend.GATE)


class Mixed(nn.Module):
    """Tensors of several dtypes, sizes and layouts; two share their memory, one that of a plain attribute."""

    mean: Tensor
    wide: Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.conv = nn.Conv2d(3, 5, 3).to(memory_format=torch.channels_last)
        self.small = nn.Parameter(torch.randn(7).bfloat16())
        flat = torch.randn(12)
        self.left, self.right = nn.Parameter(flat[:5]), nn.Parameter(flat[5:])
        self.aliased = nn.Parameter(torch.randn(3))
        self.alias = self.aliased.detach()
        self.register_buffer("mean", torch.randn(4))
        self.register_buffer("count", torch.tensor(3))
        self.register_buffer("nothing", torch.empty(0))
        self.register_buffer("wide", torch.randn(1).expand(6))
        self.register_buffer("absent", None)


def pack(module: nn.Module, spec: SGD | AdamW) -> PackedModule:
    return PackedModule(
        module, partial(module_tensors, module), make_optimizer(spec, list(module.named_parameters()), 1.0)
    )


def tensors_of(packed: PackedModule, module: nn.Module) -> list[Tensor]:
    return [*module_tensors(module), *(value for values in packed.optimizer.state.values() for value in values)]


@pytest.mark.parametrize("spec", [SGD(0.1), AdamW(0.1)])
def test_packing_changes_only_the_memory(spec: SGD | AdamW) -> None:
    module, twin = Mixed(), Mixed()
    before = module_tensors(module)
    alone = [tensor.data_ptr() for tensor in (module.left, module.right, module.aliased, module.wide)]
    packed = pack(module, spec)
    assert [id(tensor) for tensor in before] == [id(tensor) for tensor in module_tensors(module)]
    for own, other in zip(module_tensors(module), module_tensors(twin), strict=True):
        assert torch.equal(own, other)
        assert own.stride() == other.stride()
    # One block of each dtype, the memory of `left` and `right`, that of `aliased`, and that of `wide`.
    assert len(packed.blocks) == 3 + 3
    assert [tensor.data_ptr() for tensor in (module.left, module.right, module.aliased, module.wide)] == alone
    live = tensors_of(packed, module)
    blocks = {storage_id(block): block for block in packed.blocks}
    assert {storage_id(tensor) for tensor in live} == blocks.keys()
    kept = (module.left, module.right, module.aliased, module.wide)
    assert all(tensor.data_ptr() % 64 == 0 for tensor in live if not any(tensor is one for one in kept))
    # Copies of the blocks contain everything.
    values = [tensor.detach().clone() for tensor in live]
    copies = {key: block.clone() for key, block in blocks.items()}
    for tensor in live:
        if tensor is not module.wide:
            tensor.detach().fill_(9)
    for key, block in blocks.items():
        block.copy_(copies[key])
    for tensor, value in zip(live, values, strict=True):
        assert torch.equal(tensor, value)
        assert torch.equal(view_in(copies[storage_id(tensor)], tensor), value)
    module.alias.fill_(4)
    assert module.aliased.eq(4).all()


def test_replaced_and_new_buffers_are_packed_again() -> None:
    module = Mixed()
    packed = pack(module, SGD(0.1))
    place, blocks = module.mean.data_ptr(), list(packed.blocks)
    for _ in range(2):
        packed.refresh()
        module.mean = module.mean * 2  # another tensor of the same shape moves to the place of the first one
        expected = module.mean.clone()
        packed.refresh()
        assert module.mean.data_ptr() == place
        assert torch.equal(module.mean, expected)
        module.mean.data = expected.neg()
        packed.refresh()
        assert module.mean.data_ptr() == place
        assert torch.equal(module.mean, -expected)
    assert list(map(id, packed.blocks)) == list(map(id, blocks))
    for size in (9, 10):
        module.mean = torch.randn(size)
        packed.refresh()
        assert len(packed.blocks) == len(blocks) + 1  # not a block more for each size
    module.register_buffer("late", torch.randn(2))
    module.absent = torch.ones(2)
    packed.refresh()
    assert list(map(id, packed.blocks[: len(blocks)])) == list(map(id, blocks))
    known = set(map(storage_id, packed.blocks))
    assert {storage_id(tensor) for tensor in tensors_of(packed, module)} == known


def addresses(env: Env) -> dict[str, int]:
    return {name: tensor.data_ptr() for name, tensor in env_state_tensors(env).items()}


@pytest.mark.parametrize("spec", [SGD(0.1), AdamW(0.01)])
def test_addresses_stay_for_the_life_of_an_env(spec: SGD | AdamW) -> None:
    """Through removal, a new seed, a blend gate that comes and goes, rollback, restore, and a new round."""
    with population(envs=2, task=lambda task: replace(task, seed_optimizer=spec)) as pool:
        env, other = pool.envs
        env.reset(env.key._replace(round=0))
        found = dict[str, int]()
        good = LastGoodState(env)
        saved = None
        for round_index in range(2):
            for step in range(3):
                germinated = (0, 2) if step == 0 else (0,)  # that of the last slot is fossilized
                for index in germinated:
                    env.apply_action(Action(Op.GERMINATE, slot=index, blueprint=4 + index, style=GATED), step)
                    state = env.slot_optimizers[index].state_tensors("slot")
                    assert not any(tensor.any() for tensor in state.values())
                    env.network.slots[index].stage = Stage.BLENDING if index == 0 else Stage.FOSSILIZED
                found = found or addresses(env)
                assert addresses(env) == found
                env.train_epoch(step)
                good.save()
                saved = export_states([env])
                assert [move.slot for move in good.rollback()] == ["early"]
                env.network.slots[0].stage = Stage.DORMANT
                env.train_epoch(step)
                assert addresses(env).items() <= found.items()
            env.reset(env.key._replace(round=round_index + 1))
        # A restored state has the values of the saved one, at the same addresses; in another env as well.
        assert saved is not None
        other.enter(env.key)
        for each in (env, other):
            load_lifecycle(each, saved[0])
            load_tensor_states([each], saved)
        assert addresses(env) == found
        ours, theirs = env_state_tensors(env), env_state_tensors(other)
        assert ours.keys() == theirs.keys() == found.keys()
        assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


def test_copied_env_has_memory_of_its_own() -> None:
    with population() as pool:
        (env,) = pool.envs
        env.reset(env.key._replace(round=0))
        env.apply_action(Action(Op.GERMINATE, slot=1, blueprint=4), 0)
        twin = copy.deepcopy(env)
        good = LastGoodState(twin)
        good.save()
        before = {name: value.clone() for name, value in env_state_tensors(twin).items()}
        for each in (env, twin):
            for value in env_state_tensors(each).values():
                value.fill_(2)
        good.rollback()
        assert all(torch.equal(value, before[name]) for name, value in env_state_tensors(twin).items())
        assert all(value.eq(2).all() for value in env_state_tensors(env).values())
