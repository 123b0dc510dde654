"""Structure of `state.json`: all state of a run that is not in tensors."""

from __future__ import annotations

from typing import Any

import msgspec

from esper.recordings.checkpoints.manifest import CheckpointError


class ScheduleState(msgspec.Struct):
    """Ramp of a slot's alpha."""

    start: float
    target: float
    steps: int
    epochs_started: int
    curve: str


class SlotState(msgspec.Struct):
    """Lifecycle state of a slot."""

    stage: str
    epochs_in_stage: int
    blueprint: str | None
    blend: str
    schedule: ScheduleState | None
    age: int
    grad_norm: float | None
    dependence: float | None
    dependence_se: float | None
    dependence_velocity: float | None
    gate_seed: int
    cull_reason: str | None


class ViewState(msgspec.Struct):
    """The part of an env's status that is not in its slots."""

    step: int
    losses: list[float]
    scores: list[float]
    train_loss: float | None
    train_score: float | None
    grad_norm: float | None
    parameter_ratio: float
    rent: float
    last_op: int
    last_moved: bool


class RewardState(msgspec.Struct):
    """Reward function of an episode."""

    steps_taken: int
    score: float
    potential: float
    deferred_parts: dict[str, float]


class EpisodeState(msgspec.Struct):
    """Episode of an env."""

    view: ViewState
    reward: RewardState
    episode_return: float
    culled: int
    inactive: bool
    unhealthy_steps: int
    gate_refusals: dict[str, list[str]]
    slots: list[SlotState]
    host_env: int
    host_round: int
    host_width: float


class SavedState(msgspec.Struct):
    """Content of `state.json`."""

    agent: dict[str, Any]
    """State of the policy that is not in tensors; its structure depends on the policy."""
    episodes: list[EpisodeState]
    scalers: dict[str, dict[str, float]]
    """State of the loss scaler of each env, keyed by its index."""
    growth: dict[str, Any] = {}
    """State of the search of a growth; empty for another run."""


def check_state(state: Any, path: str) -> dict[str, Any]:
    """Return the decoded JSON of `state.json` if it has the structure of `SavedState`.

    Args:
        state: JSON as decoded by `json`, in which a measured NaN is allowed.
        path: Path of the file, for the message.

    Raises:
        CheckpointError: A value is missing or has another type; the message says where.
    """
    try:
        msgspec.convert(state, SavedState)
    except msgspec.ValidationError as error:
        raise CheckpointError(f"{path} is damaged: {error}") from None
    return state
