"""Builders of the engine's telemetry events."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

import msgspec
import torch

from esper.common.configuration.config import Config
from esper.common.control import Request
from esper.common.domain import HEADS, HEADS_BY_OP, VERSION, Op, Stage, StepNumber
from esper.common.user_code.references import TaskOrigin
from esper.networks.seeds.lifecycle import GateResult, StageTransition
from esper.networks.seeds.slot import Slot
from esper.networks.tasks.family import describe_recipe, structures_of
from esper.networks.tasks.profile import TaskProfile
from esper.networks.tasks.task import Task
from esper.recordings import events as ev
from esper.training.checkpoint.files import Checkpoint
from esper.training.engine.episode import Episode, StepOutcome
from esper.training.envs.env import Env
from esper.training.envs.epoch_result import EpochResult
from esper.training.envs.stopwatch import LaneLoad
from esper.training.lanes.device_stats import DeviceStats
from esper.training.lanes.lane import Lane
from esper.training.lanes.pool import EnvPool
from esper.training.policy.actions import Action, ChosenAction, decision_of_action
from esper.training.policy.agent import UpdateStats
from esper.training.policy.occlusion import Explanation

MEASUREMENT = ".5g"
"""Digits of recorded values: more than their precision. All 17 digits would double the files."""
NOISY = ".4g"
"""Digits of values that vary much from step to step, such as gradient norms."""
REWARD_PART = ".5f"
"""Digits of the parts of a reward: decimals, so that they add up to the reward."""
PROBABILITY = ".4f"
"""Digits of probabilities: they are numerous and only displayed, never computed with."""


def versions() -> dict[str, str]:
    """Return the versions of everything that the results of a run depend on."""
    return {
        "esper-sanctum": VERSION,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }


def seed_moved(move: StageTransition, env: int, at: StepNumber) -> ev.SeedMoved:
    """Build the event of a stage transition."""
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
    """Build the event of a rollback."""
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


def decision_explained(episode: Episode, found: Explanation, round_number: int) -> ev.DecisionExplained:
    """Build the event of the explanation of the last decision of an episode."""
    return ev.DecisionExplained(
        round=round_number,
        step=episode.view.step,
        env=episode.env.index,
        choices=_choices(episode, found.action, found.probabilities),
        without={
            group: {head: round_to(probability, PROBABILITY) for head, probability in by_head.items()}
            for group, by_head in found.without.items()
        },
    )


def gate_changed(result: GateResult, slot: str, env: int, at: StepNumber) -> ev.GateRefused | ev.GateOpened:
    """Build the event of a gate that refuses a seed, or passes again."""
    kind = ev.GateOpened if result.passed else ev.GateRefused
    checks = [ev.GateCheck(name=c.name, passed=c.passed, value=c.value, threshold=c.threshold) for c in result.checks]
    return kind(round=at.round, step=at.step, env=env, slot=slot, gate=result.gate, checks=checks)


def env_stepped(
    episode: Episode, decision: ChosenAction, measured: EpochResult, parts: dict[str, float], at: StepNumber
) -> ev.EnvStepped:
    """Build the event of a step of one env."""
    op = Op(decision.action.op)
    slots = episode.env.network.slots
    probabilities = decision.op_probabilities or {}
    rounded_parts = {name: round_to(part, REWARD_PART) for name, part in parts.items()}
    return ev.EnvStepped(
        round=at.round,
        step=at.step,
        env=episode.env.index,
        op=op.label,
        target=slots[decision.action.slot].name if "slot" in HEADS_BY_OP[op] else None,
        train_loss=round_to(measured.train_loss),
        train_score=round_to(measured.train_score),
        loss=round_to(measured.loss),
        score=round_to(measured.score),
        reward=sum(rounded_parts.values()),
        reward_parts=rounded_parts,
        value=round_to(decision.value, NOISY),
        op_probability=round_to(probabilities[op], PROBABILITY) if op in probabilities else None,
        op_probabilities={
            legal.label: round_to(probability, PROBABILITY) for legal, probability in probabilities.items()
        },
        decision=_decision(episode, decision),
        grad_norm=round_to(measured.grad_norm, NOISY),
        learning_rate=None if measured.grad_norm is None else episode.env.learning_rate(at.step - 1),
        parameter_ratio=round_to(episode.view.parameter_ratio),
        loss_scale=measured.loss_scale,
        growth_tracker=measured.growth_tracker,
        overflows_by_owner=measured.overflows_by_owner,
        metrics={name: round_to(value) for name, value in measured.metrics.items()},
        skipped_batches=measured.skipped_batches,
        slots=[_slot_reading(index, slot, measured) for index, slot in enumerate(slots)],
    )


def _decision(episode: Episode, decision: ChosenAction) -> dict[str, ev.HeadChoice]:
    """Return the choice of every used head except the op, in words."""
    by_head: dict[str, float] = dict(zip(HEADS, decision.head_probabilities or [], strict=False))
    chosen = _choices(episode, decision.action, by_head)
    return {head: choice for head, choice in chosen.items() if head != "op"}


def _choices(episode: Episode, action: Action, by_head: dict[str, float]) -> dict[str, ev.HeadChoice]:
    """Return the choice of every used head in words, with its probability, if there is one."""
    names = [slot.name for slot in episode.env.network.slots]
    return {
        head: ev.HeadChoice(choice=word, probability=round_to(by_head[head], PROBABILITY) if head in by_head else None)
        for head, word in decision_of_action(action, names, episode.env.profile.blueprints).choices.items()
    }


def _slot_reading(index: int, slot: Slot, measured: EpochResult) -> ev.SlotReading:
    """Return the current state of a slot and its measurements of the step, even if its seed has left since."""
    dependence, standard_error = measured.dependences.get(index, (None, None))
    return ev.SlotReading(
        stage=slot.stage.label,
        blueprint=slot.blueprint,
        blend=slot.blend.value if slot.blueprint is not None else None,
        alpha=round_to(slot.alpha) if slot.stage.is_blended else None,
        age=slot.age,
        parameters=slot.parameter_count,
        grad_norm=round_to(measured.slot_grad_norms.get(index), NOISY),
        dependence=round_to(dependence),
        dependence_se=round_to(standard_error, NOISY),
        shapley=round_to(measured.shapley.get(index)),
    )


@overload
def round_to(value: float, digits: str = MEASUREMENT) -> float: ...


@overload
def round_to(value: float | None, digits: str = MEASUREMENT) -> float | None: ...


def round_to(value: float | None, digits: str = MEASUREMENT) -> float | None:
    """Round to the digits of a format, which is faster than `round`."""
    return None if value is None else float(format(value, digits))


def run_started(
    run: str,
    config: Config,
    pool: EnvPool,
    origin: TaskOrigin | None,
    *,
    policy: str,
    lanes: list[str],
    task_defaults: dict[str, Any],
    search: ev.SearchInfo | None = None,
) -> ev.RunStarted:
    """Build the event of the start of a run.

    Args:
        origin: Source of the task; None for a built-in one.
        policy: Name of the policy for display.
        lanes: Lane of each env of all ranks.
        task_defaults: Slots and settings of the task itself.
        search: The search of a growth; None for another run.
    """
    env, profile = pool.envs[0], pool.profile
    return ev.RunStarted(
        run=run,
        task=config.task,
        policy=policy,
        rounds=config.rounds,
        steps=config.steps,
        slot_names=[site.name for site in profile.sites],
        lanes=lanes,
        seed=config.seed,
        host_parameters=profile.host_parameters,
        structures=structure_infos(pool.task, profile),
        score_name=env.task.score_name,
        score_scale=env.task.score_scale,
        chance_loss=env.profile.chance.loss,
        chance_score=env.profile.chance.score,
        batches=env.batches_per_epoch,
        growth_interval=env.scaler.growth_interval if env.scaler else None,
        versions=versions(),
        search=search,
        task_code=dict(origin.digests) if origin else {},
        recipe=describe_recipe(pool.task),
        task_defaults=task_defaults,
        config=msgspec.to_builtins(config),
    )


def episode_started(env: Env, round_number: int) -> ev.EpisodeStarted:
    """Build the event of the start of an episode of an env of a family."""
    drawn = env.context.settings.items()
    settings = {name: value if isinstance(value, str) else float(value) for name, value in drawn}
    return ev.EpisodeStarted(round=round_number, env=env.index, structure=env.task.name, settings=settings)


def structure_infos(task: Task, profile: TaskProfile) -> list[ev.StructureInfo]:
    """Return the structures of a family; none for another task."""
    return [
        ev.StructureInfo(
            name=structure.name,
            slots=len(found.sites),
            host_parameters=found.host_parameters,
            chance_loss=found.chance.loss,
        )
        for structure, found in zip(structures_of(task), profile.structures, strict=False)
    ]


def episode_ended(episode: Episode, round_number: int) -> ev.EpisodeEnded:
    """Build the event of the end of one env's episode."""
    view, stages = episode.view, [slot.stage for slot in episode.env.network.slots]
    return ev.EpisodeEnded(
        round=round_number,
        env=episode.env.index,
        score=round_to(view.scores[-1]),
        best_score=round_to(max(view.scores[1:] or view.scores, key=view.score_scale.gain)),
        episode_return=round_to(episode.episode_return),
        parameter_ratio=round_to(view.parameter_ratio),
        fossilized=stages.count(Stage.FOSSILIZED),
        culled=episode.culled,
    )


def control_requested(request: Request, ignored: str | None) -> ev.ControlRequested:
    """Build the event of a request; `ignored` is the reason why it has no effect."""
    kind, origin = request.kind.value, request.origin
    return ev.ControlRequested(kind=kind, origin=origin, path=request.path, env=request.env, ignored=ignored)


def checkpoint_saved(
    path: Path, size: int, saved: Checkpoint, seconds: float | None, origin: str, written: float | None
) -> ev.CheckpointSaved:
    """Build the event of a checkpoint on disk.

    Args:
        seconds: Duration of writing it; None for a restored checkpoint.
        origin: Sender of the request, or the schedule.
        written: Time of writing in seconds since the epoch, for a restored checkpoint; None for a new one.
    """
    return ev.CheckpointSaved(
        round=saved.step_number.round,
        step=saved.step_number.step,
        path=str(path),
        bytes=size,
        score=round_to(saved.score),
        seconds=seconds,
        written=written,
        origin=origin,
    )


def policy_updated(stats: UpdateStats, episode_return: float, round_number: int) -> ev.PolicyUpdated:
    """Build the event of a policy update."""
    heads = {
        name: ev.HeadReading(grad_norm=norm, entropy=stats.head_entropies[name])
        for name, norm in stats.head_grad_norms.items()
    }
    return ev.PolicyUpdated(
        round=round_number,
        policy_loss=stats.policy_loss,
        value_loss=stats.value_loss,
        entropy=stats.entropy,
        kl=stats.kl,
        clip_fraction=stats.clip_fraction,
        explained_variance=stats.explained_variance,
        within_step_explained_variance=stats.within_step_explained_variance,
        grad_norm=stats.grad_norm,
        learning_rate=stats.learning_rate,
        minibatches=stats.minibatches,
        stopped_early=stats.stopped_early,
        episode_return=episode_return,
        heads=heads,
    )


def device_sampled(
    lane: Lane,
    reading: DeviceStats,
    load: LaneLoad,
    measured: Sequence[EpochResult | None],
    owners: dict[str, int],
    *,
    is_interchangeable: bool,
) -> ev.DeviceSampled:
    """Build the event of the state of a lane and its device after a step.

    Args:
        measured: Results of the envs of the lane; None for inactive ones.
        is_interchangeable: Other lanes may have trained envs of this lane, and the reverse.
    """
    results = [result for result in measured if result]
    if lane.worker_memory and reading.allocated is not None:  # of a GPU: torch counts this process only
        reading = reading._replace(allocated=reading.allocated + lane.worker_memory)
    scales = [result.loss_scale for result in results if result.loss_scale is not None]
    return ev.DeviceSampled(
        device=lane.name,
        envs=len(measured),
        active=None if is_interchangeable else len(results),
        busy=load.busy,
        launching=None if lane.device.type == "cpu" else load.launching,
        graphs=lane.recorded_graphs,
        scale_min=min(scales, default=None),
        scale_max=max(scales, default=None),
        owners=owners,
        allocated=reading.allocated,
        reserved=reading.reserved,
        used=reading.used,
        total=reading.total,
        utilisation=reading.utilisation,
        temperature=reading.temperature,
        power=reading.power,
        processes=dict(reading.processes),
    )
