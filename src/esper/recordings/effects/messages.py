"""Messages between the dashboard and the process that simulates an episode for it, one line of JSON each."""

from __future__ import annotations

import msgspec

from esper.recordings.effects.episode import RecordedEpisode
from esper.recordings.effects.results import Simulation


class SimulationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """First and only message to the process: the effects of decisions of one episode are wanted."""

    recording: str
    """Path of the run directory, or of one file of events."""
    round: int
    """Round of the episode, from 1."""
    env: int
    without: list[int] | None = None
    """Steps, from 1, whose decisions are left out, each on its own; None: those of all decisions."""
    task: str | None = None
    """Reference of the task, if the user named it; None: the built-in task of the run."""


class SimulationUpdate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Message of the process. It has one of the fields."""

    episode: RecordedEpisode | None = None
    """The episode, before its simulation begins."""
    decisions: int | None = None
    """Number of decisions whose effects are wanted; then, without those whose effects are known."""
    progress: tuple[int, int] | None = None
    """Number of env-steps so far, and maximum number of all of them."""
    simulation: Simulation | None = None
    """A result, which is stored already."""
    warning: str | None = None
    """Why results could not be stored: one sentence for the user."""
    error: str | None = None
    """Why the simulation ended early: one sentence for the user."""
