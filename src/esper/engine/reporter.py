"""Builds the telemetry events of the engine, with memory by owner.

What a lane's worker has of an env is a copy, and counted once.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import overload

import torch
from torch import Tensor, nn

from esper.checkpoint.files import Checkpoint
from esper.domain import HEADS, VERSION, Op, Stage, StepNumber
from esper.engine.episode import Episode, StepOutcome
from esper.envs.env import Env, EpochResult
from esper.growth.lifecycle import GateResult, StageTransition
from esper.growth.slot import Slot
from esper.lanes.device_stats import DeviceStats
from esper.lanes.lane import Lane
from esper.policy.actions import HEADS_BY_OP, Decision, describe_action
from esper.policy.agent import Agent, UpdateStats
from esper.telemetry import events as ev

PROBABILITY_DECIMALS = 4
"""Decimals of the probabilities: they are looked at, not reckoned with, and there are many of them."""


def versions() -> dict[str, str]:
    """Of what the numbers depend on."""
    return {"esper-sanctum": VERSION, "python": platform.python_version(), "torch": str(torch.__version__)}


def seed_moved(move: StageTransition, env: int, at: StepNumber) -> ev.SeedMoved:
    """A transition."""
    return ev.SeedMoved(
        round=at.round,
        step=at.step,
        env=env,
        slot=move.slot,
        before=move.before.label,
        after=move.after.label,
        blueprint=move.blueprint,
        reason=move.reason,
    )


def rolled_back(outcome: StepOutcome, env: int, at: StepNumber) -> ev.GovernorRolledBack:
    """What the governor did."""
    assert outcome.breakdown is not None
    reason, value, threshold = outcome.breakdown
    return ev.GovernorRolledBack(
        round=at.round,
        step=at.step,
        env=env,
        reason=reason,
        value=value,
        threshold=threshold,
        penalty=-outcome.reward_parts["penalty"],
        culled=[move.slot for move in outcome.removed],
    )


def gate_changed(result: GateResult, slot: str, env: int, at: StepNumber) -> ev.GateRefused | ev.GateOpened:
    """A gate that holds a seed back, or does so no more."""
    kind = ev.GateOpened if result.passed else ev.GateRefused
    checks = [ev.GateCheck(name=c.name, passed=c.passed, value=c.value, threshold=c.threshold) for c in result.checks]
    return kind(round=at.round, step=at.step, env=env, slot=slot, gate=result.gate, checks=checks)


def env_stepped(
    episode: Episode, choice: Decision, measured: EpochResult, parts: dict[str, float], at: StepNumber
) -> ev.EnvStepped:
    """A step of one env."""
    op = Op(choice.action.op)
    slots = episode.env.network.slots
    probabilities = choice.op_probabilities or {}
    told = {name: round(part, 5) for name, part in parts.items()}  # decimals, not digits: they are to sum up
    return ev.EnvStepped(
        round=at.round,
        step=at.step,
        env=episode.env.index,
        op=op.label,
        target=slots[choice.action.slot].name if "slot" in HEADS_BY_OP[op] else None,
        train_loss=_round_significant(measured.train_loss),
        train_accuracy=_round_significant(measured.train_accuracy),
        loss=_round_significant(measured.loss),
        accuracy=_round_significant(measured.accuracy),
        reward=sum(told.values()),
        reward_parts=told,
        value=_round_significant(choice.value, 4),
        op_probability=round(probabilities[op], PROBABILITY_DECIMALS) if op in probabilities else None,
        op_probabilities={legal.label: round(share, PROBABILITY_DECIMALS) for legal, share in probabilities.items()},
        decision=_decision(episode, choice),
        grad_norm=_round_significant(measured.grad_norm, 4),
        parameter_ratio=_round_significant(episode.view.parameter_ratio),
        loss_scale=measured.loss_scale,
        growth_tracker=measured.growth_tracker,
        skipped=measured.overflows_by_owner,
        lost=measured.skipped_batches,
        slots=[_slot_reading(index, slot, measured) for index, slot in enumerate(slots)],
    )


def _decision(episode: Episode, choice: Decision) -> dict[str, ev.HeadChoice]:
    """The heads after the op, in words."""
    names = [slot.name for slot in episode.env.network.slots]
    chosen = describe_action(choice.action, names, episode.env.task.blueprints)
    shares = dict(zip(HEADS, choice.head_probabilities or [], strict=False))
    return {
        head: ev.HeadChoice(
            choice=word, probability=round(shares[head], PROBABILITY_DECIMALS) if head in shares else None
        )
        for head, word in chosen.items()
        if head != "op"
    }


def _slot_reading(index: int, slot: Slot, measured: EpochResult) -> ev.SlotReading:
    """The slot as it is now. What was measured in it is of the step, though its seed left at the end of that."""
    contribution, standard_error = measured.contributions.get(index, (None, None))
    return ev.SlotReading(
        stage=slot.stage.label,
        blueprint=slot.blueprint,
        alpha=_round_significant(slot.alpha) if slot.stage.is_blended else None,
        age=slot.age,
        parameters=slot.parameter_count,
        grad_norm=_round_significant(measured.slot_grad_norms.get(index), 4),
        contribution=_round_significant(contribution),
        contribution_se=_round_significant(standard_error, 4),
        shapley=_round_significant(measured.shapley.get(index)),
    )


@overload
def _round_significant(value: float, digits: int = 5) -> float: ...


@overload
def _round_significant(value: float | None, digits: int = 5) -> float | None: ...


def _round_significant(value: float | None, digits: int = 5) -> float | None:
    """A value in so many significant digits, which is more than it is good for. All 17 would double the files."""
    return None if value is None else float(f"{value:.{digits}g}")


def episode_ended(episode: Episode, round_number: int) -> ev.EpisodeEnded:
    """The end of one env's episode."""
    stages = [slot.stage for slot in episode.env.network.slots]
    return ev.EpisodeEnded(
        round=round_number,
        env=episode.env.index,
        accuracy=_round_significant(episode.view.accuracies[-1]),
        best_accuracy=_round_significant(max(episode.view.accuracies[1:] or episode.view.accuracies)),
        episode_return=_round_significant(episode.episode_return),
        parameter_ratio=_round_significant(episode.view.parameter_ratio),
        fossilized=stages.count(Stage.FOSSILIZED),
        culled=episode.culled,
    )


def checkpoint_saved(
    path: Path, size: int, saved: Checkpoint, seconds: float | None, origin: str, written: float | None
) -> ev.CheckpointSaved:
    """A checkpoint that is on disk, whole: `seconds` to write it, or, if it was there before, when that was."""
    return ev.CheckpointSaved(
        round=saved.step_number.round,
        step=saved.step_number.step,
        path=str(path),
        bytes=size,
        accuracy=_round_significant(saved.accuracy),
        seconds=seconds,
        written=written,
        origin=origin,
    )


def policy_updated(learned: UpdateStats, episode_return: float, round_number: int) -> ev.PolicyUpdated:
    """An update of the policy."""
    heads = {
        name: ev.HeadReading(grad_norm=norm, entropy=learned.head_entropies[name])
        for name, norm in learned.head_grad_norms.items()
    }
    return ev.PolicyUpdated(
        round=round_number,
        policy_loss=learned.policy_loss,
        value_loss=learned.value_loss,
        entropy=learned.entropy,
        kl=learned.kl,
        clip_fraction=learned.clip_fraction,
        explained_variance=learned.explained_variance,
        grad_norm=learned.grad_norm,
        learning_rate=learned.learning_rate,
        minibatches=learned.minibatches,
        stopped_early=learned.stopped_early,
        episode_return=episode_return,
        heads=heads,
    )


def device_sampled(
    lane: Lane,
    reading: DeviceStats,
    busy: float,
    measured: Sequence[EpochResult | None],
    owners: dict[str, int],
    *,
    shares: bool,
) -> ev.DeviceSampled:
    """State of a lane's device, the share of the step that the lane worked, the loss scales of its envs, bytes by
    owner; `shares`: other lanes may have trained its envs, and it theirs.
    """
    trained = [m for m in measured if m]
    scales = [m.loss_scale for m in trained if m.loss_scale is not None]
    return ev.DeviceSampled(
        device=lane.name,
        envs=len(measured),
        active=None if shares else len(trained),
        busy=busy,
        scale_min=min(scales, default=None),
        scale_max=max(scales, default=None),
        owners=owners,
        **reading._asdict(),
    )


class MemoryAccountant:
    """Keeps the books of a run's tensors. What has not changed since the last look is not counted again.

    Args:
        lanes: of the run.
        envs: of the run, dealt round-robin over the lanes.
        agent: whose tensors are the policy's.
    """

    def __init__(self, lanes: Sequence[Lane], envs: Sequence[Env], agent: Agent) -> None:
        self._lanes = lanes
        self._envs = envs
        self._agent = agent
        self._topology: dict[int, object] = {}
        self._of_env: dict[int, dict[str, int]] = {}
        self._round = -1
        self._of_policy: dict[int, int] = {}

    def bytes_by_lane(self, round_index: int) -> list[dict[str, int]]:
        """For each lane, bytes by owner, as `DeviceSampled.owners` has them.

        What is there once for all lanes of a device, the data and the policy, counts to the first of them.
        """
        if self._round != round_index:
            self._round, self._of_policy = round_index, self._policy()
        return [self._of_lane(index) for index in range(len(self._lanes))]

    def _of_lane(self, index: int) -> dict[str, int]:
        counted = [self._count(env) for env in self._envs[index :: len(self._lanes)]]
        owners = {name: sum(env[name] for env in counted) for name in ("hosts", "seeds", "optimizers")}
        if index in self._of_policy:
            owners["policy"] = self._of_policy[index]
        lane = self._lanes[index]
        if index == self._first_on(lane.device):
            owners["data"] = _bytes(vars(lane.splits).values())
        return owners

    def _count(self, env: Env) -> dict[str, int]:
        # A host has been trained whenever this is asked, a seed from its first gradient norm on. The gradients may be a
        # worker's: they are reckoned, as large as the parameters, not looked for.
        slots = env.network.slots
        topology = [(slot.stage, slot.parameter_count, slot.grad_norm is None) for slot in slots]
        if self._topology.get(env.index) != topology:
            self._topology[env.index] = topology
            self._of_env[env.index] = {
                "hosts": _module_bytes(env.network.host, trained=True),
                "seeds": sum(_module_bytes(slot, trained=slot.grad_norm is not None) for slot in slots),
                "optimizers": sum(_bytes(each.momenta) for each in (env.host_optimizer, *env.slot_optimizers.values())),
            }
        return self._of_env[env.index]

    def _policy(self) -> dict[int, int]:
        """Bytes of the policy, by the lane that they count to; none where no lane has the policy's device."""
        found: dict[int, int] = {}
        for tensor in self._agent.state_tensors().values():
            index = self._first_on(tensor.device)
            if index is not None:
                found[index] = found.get(index, 0) + tensor.nbytes
        return found

    def _first_on(self, device: torch.device) -> int | None:
        return next((index for index, lane in enumerate(self._lanes) if lane.device == device), None)


def _module_bytes(module: nn.Module, *, trained: bool) -> int:
    """Parameters, with their gradients if there are any, and buffers."""
    return (2 if trained else 1) * _bytes(module.parameters()) + _bytes(module.buffers())


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)
