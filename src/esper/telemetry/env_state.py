"""State of one env and of one policy head, parts of RunState."""

from __future__ import annotations

import msgspec

from esper.telemetry import events as ev
from esper.telemetry.series import DownsampledSeries, StepTrace


class EnvState(msgspec.Struct, kw_only=True, omit_defaults=True):
    """State of one env. `revision` is the sequence number of the last event that changed it."""

    env: int
    lane: str
    revision: int = 0
    stepped: ev.EnvStepped | None = None
    """Last step of this episode; None before the first."""
    previous: ev.EnvStepped | None = None
    """Last step of the previous episode, until this episode has a step."""
    episode_return: float = 0.0
    scores: list[float] = []
    """Validation score of each step of this episode."""
    rewards: list[float] = []
    returns: list[float] = []
    """Return of each of the last finished episodes."""
    best_score: float | None = None
    """Maximum validation score over all steps, and over all ends of episodes: a rollback changes the network."""
    best_after: int = 0
    """Number of completed steps of the run after which it was measured first."""
    moves: list[ev.SeedMoved] = []
    """Stage transitions of this episode."""
    refusals: dict[str, ev.GateRefused] = {}
    """Gate that refuses the seed of a slot, keyed by slot."""
    trace: list[StepTrace] = []
    """Traces of the steps of this episode."""
    context: ev.EpisodeStarted | None = None
    """Context of this episode; None if the task is not a family."""
    rolled_back: ev.GovernorRolledBack | None = None
    """Rollback that made the env inactive in this round; None while it is active."""
    explained: ev.DecisionExplained | None = None
    """Last explanation of a decision of this episode; None without one."""

    @property
    def latest(self) -> ev.EnvStepped | None:
        """Last step of this episode, or of the previous one until this one has a step."""
        return self.stepped or self.previous


class HeadState(msgspec.Struct, kw_only=True, omit_defaults=True):
    """State of one policy head. None in a series stands for an update without a gradient, or without a choice."""

    grad_norm: list[float | None] = []
    entropy: list[float | None] = []
    course: DownsampledSeries = msgspec.field(default_factory=DownsampledSeries)
    """Gradient norm over the whole run."""
