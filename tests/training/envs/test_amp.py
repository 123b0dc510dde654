"""float16 training with an overflow in one env: skipped batches, loss scales, and the events that report them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from esper.common.configuration.config import TrainingConfig
from esper.common.domain import Op
from esper.recordings.checkpoints.catalog import find_checkpoint
from esper.training.envs.env import Env
from esper.training.policy.actions import Action
from tests.runs import LiveRun
from tests.training.engine.populations import measurements, population

WAIT = [Action(Op.WAIT)] * 2
FIRST_SCALE = 65536.0


@contextmanager
def overflowing(env: Env) -> Iterator[None]:
    """Scale the env's loss within this context, so that its gradients overflow in float16 and float32."""

    def blow_up(_: nn.Module, __: tuple[Tensor, ...], logits: Tensor) -> Tensor:
        return logits.float() * 1e30

    head = env.network.host.head
    assert isinstance(head, nn.Module)
    hook = head.register_forward_hook(blow_up)
    yield
    hook.remove()


def batches(env: Env) -> int:
    """Return the number of batches of an epoch."""
    return env.batches_per_epoch


def weights(env: Env) -> Tensor:
    return torch.cat([parameter.detach().flatten().clone() for parameter in env.network.host_parameters()])


def test_overflow_skips_a_batch_of_its_own_env_only() -> None:
    with population(envs=2, amp="fp16") as clean, population(envs=2, amp="fp16") as hit:
        for pool in (clean, hit):
            pool.reset(0)
        before = weights(hit.envs[1])
        expected = measurements(clean, WAIT, 0)
        with overflowing(hit.envs[1]):
            measured = measurements(hit, WAIT, 0)
        count = batches(hit.envs[1])
        assert measured[1].overflows_by_owner == {"host": count}
        assert measured[1].loss_scale == FIRST_SCALE / 2**count
        assert torch.equal(weights(hit.envs[1]), before)
        assert measured[0] == expected[0]
        assert torch.equal(weights(hit.envs[0]), weights(clean.envs[0]))


def test_shared_loss_scale_falls_for_all_envs() -> None:
    with population(envs=2, amp="fp16", scaler="device") as pool:
        pool.reset(0)
        with overflowing(pool.envs[1]):
            pool.step(WAIT, 0)
        after = measurements(pool, WAIT, 1)
        assert after[0].overflows_by_owner == {}
        assert after[0].loss_scale == FIRST_SCALE / 2 ** batches(pool.envs[1])


@pytest.mark.slow
def test_worker_envs_share_one_loss_scale() -> None:
    with population(envs=4, amp="fp16", scaler="device", lanes=("cpu:0", "cpu:1")) as pool:
        pool.reset(0)
        with torch.no_grad():
            next(iter(pool.envs[1].network.parameters())).fill_(math.nan)
        measured = measurements(pool, [*WAIT, *WAIT], 0)
        count = batches(pool.envs[1])
        assert measured[1].loss_scale == measured[3].loss_scale == FIRST_SCALE / 2**count
        assert measured[3].overflows_by_owner == {}
        assert (measured[2].loss_scale, measured[2].growth_tracker) == (FIRST_SCALE, 2 * count)


def test_seed_overflow_also_skips_its_host() -> None:
    with population(amp="fp16") as pool:
        pool.reset(0)
        env = pool.envs[0]
        env.apply_action(Action(Op.GERMINATE, 0, blueprint=env.profile.blueprints.index("conv_light")), 0)
        env.tick()
        seed = env.network.slots[0].seed
        assert seed is not None
        before = weights(env)
        for parameter in seed.parameters():
            parameter.register_hook(lambda grad: grad * float("inf"))
        measured = env.unpack_results(env.train_epoch(0).tolist(), env.validate(last=False).tolist())
        assert measured.overflows_by_owner == {"early": batches(env)}
        assert torch.equal(weights(env), before)


def test_run_emits_scales_skips_and_diverged_scales(tmp_path: Path) -> None:
    live = LiveRun(tmp_path, envs=2, rounds=1, steps=2, policy="static", amp="fp16", training=TrainingConfig())
    with overflowing(live.run.pool.envs[1]):
        state = live.start().finish()
    first, second = (env.stepped for env in state.envs)
    assert first is not None
    assert second is not None
    assert first.loss_scale == FIRST_SCALE
    assert first.overflows_by_owner == {}
    assert (first.skipped_batches, second.skipped_batches) == (0, batches(live.run.pool.envs[1]))
    assert state.started is not None
    assert (state.started.batches, state.started.growth_interval) == (batches(live.run.pool.envs[0]), 2000)
    assert (first.growth_tracker, second.growth_tracker) == (2 * batches(live.run.pool.envs[0]), 0)
    assert second.overflows_by_owner["host"] > 0
    assert second.loss_scale is not None
    assert second.loss_scale < FIRST_SCALE / 64
    assert "loss scales diverge cpu:0" in state.anomalies


def test_float16_run_resumes_with_its_loss_scales(tmp_path: Path) -> None:
    live = LiveRun(tmp_path, envs=2, rounds=1, steps=2, policy="static", amp="fp16")
    with overflowing(live.run.pool.envs[1]):
        live.start().finish()
    saved = [env.scaler.state_dict() for env in live.run.pool.envs if env.scaler]
    again = LiveRun(
        tmp_path, envs=2, rounds=2, steps=2, policy="static", amp="fp16", resume=find_checkpoint(live.run.directory)
    )
    assert [env.scaler.state_dict() for env in again.run.pool.envs if env.scaler] == saved
    again.start().finish()
