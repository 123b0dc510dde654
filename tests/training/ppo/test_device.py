"""A policy on another device than the envs'.

The device is PyTorch's `meta`, whose tensors have shapes but no values: an operation on tensors of two devices is
refused as on a GPU, so that the test finds tensors left on the CPU without a GPU.
"""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from esper.common.configuration.config import PPOConfig
from esper.common.domain import HEADS, Op
from esper.networks.seeds.network import GrowingNetwork
from esper.training.policy import masks
from esper.training.policy.agent import EnvStatus
from esper.training.policy.observation import ObservationShape
from esper.training.ppo.agent import CPU, PPOAgent
from esper.training.ppo.rollout import InputBuffer, InputStaging
from tests.networks.seeds.hosts import network, site

META = torch.device("meta")
ENVS, STEPS, SLOTS = 3, 2, 3
SHAPE = ObservationShape(SLOTS, blueprints=2)
FROM_ENVS = {"rollout.reward_ET", "rollout.counts_ET", "rollout.terminal_ET"}


def agent_on(device: torch.device) -> PPOAgent:
    return PPOAgent(
        envs=ENVS,
        steps=STEPS,
        sites=[site(f"slot{index}", 4) for index in range(SLOTS)],
        blueprints=("norm", "conv_light"),
        config=PPOConfig(hidden=16, horizon="continuing"),
        rounds=1,
        generator=torch.Generator().manual_seed(0),
        device=device,
    )


def views(step: int) -> list[EnvStatus]:
    hosts: list[GrowingNetwork] = [network() for _ in range(ENVS)]
    return [
        EnvStatus(
            env=env,
            slots=host.slots,
            steps=STEPS,
            chance_loss=2.3,
            chance_score=0.1,
            step=step,
            losses=[2.0],
            scores=[0.3],
        )
        for env, host in enumerate(hosts)
    ]


def test_policy_decides_and_learns_on_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "validate_masks", False)  # the check reads values
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # `meta` has no autocast
    monkeypatch.setattr(torch.Tensor, "cpu", lambda values: torch.ones_like(values, device=CPU))  # nor values
    agent = agent_on(META)
    agent.begin_round(torch.rand(ENVS, STEPS, len(HEADS)))
    for step in range(STEPS):
        decided = agent._decide(step, views(step), slice(ENVS))
        assert (decided.device, decided.shape) == (META, (ENVS, 2 * len(HEADS) + 1 + len(Op)))
        agent.record_rewards(step, views(step), [0.0] * ENVS, [False] * ENVS)
    assert agent._bootstrap(views(STEPS)).device == META
    rollout = agent.rollout
    obs_ETF = agent.observations.normalise(rollout.obs_ETF)
    batches = rollout.batch(obs_ETF, rollout.value_ET, rollout.value_ET).minibatches(2, torch.Generator())
    for batch in batches:
        loss = agent.learner.evaluate(batch, 0.1)
        assert loss.total.device == META
        loss.total.backward()
    assert {parameter.grad.device for parameter in agent.network.parameters() if parameter.grad is not None} == {META}


def test_policy_state_is_on_its_device() -> None:
    agent = agent_on(META)
    assert {name for name, tensor in agent.state_tensors().items() if tensor.device != META} == FROM_ENVS


def test_default_device_is_the_cpu_without_copies() -> None:
    agent = agent_on(CPU)
    assert {tensor.device for tensor in agent.state_tensors().values()} == {CPU}
    staging = InputStaging(ENVS, SHAPE, CPU)
    assert staging.to_device().obs_EF is staging.host.obs_EF


def test_situation_is_moved_in_one_copy() -> None:
    source, target = (InputBuffer(ENVS, SHAPE, CPU) for _ in range(2))
    here, there = source.inputs, target.inputs
    here.obs_EF.normal_()
    here.known_E.normal_()
    here.blueprint_ES.random_(0, 9)
    for mask in here.masks:
        mask.random_(0, 2)
    target.copy_(source)
    assert torch.equal(there.obs_EF, here.obs_EF)
    assert torch.equal(there.known_E, here.known_E)
    assert torch.equal(there.blueprint_ES, here.blueprint_ES)
    for mask, wanted in zip(there.masks, here.masks, strict=True):
        assert mask.any()
        assert torch.equal(mask, wanted)
        assert mask.data_ptr() != wanted.data_ptr()
