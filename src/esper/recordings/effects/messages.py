"""Messages between the dashboard and the process that simulates episodes for it, one line of JSON each."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from esper.recordings.effects.episode import RecordedEpisode
from esper.recordings.effects.references import HostReference
from esper.recordings.effects.results import Simulation


class SimulationRequest(msgspec.Struct, frozen=True, kw_only=True, tag="episode"):
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


class RoundsRequest(msgspec.Struct, frozen=True, kw_only=True, tag="rounds"):
    """Another first and only message: what `known_references` or `episodes_to_measure` misses in rounds is wanted."""

    recording: str
    """Path of the run directory, or of one file of events."""
    rounds: list[int]
    """Rounds, from 1, in the order in which they are simulated."""
    aim: Literal["references", "seeds"]
    """Episodes without growth of each host, or the effects of the seeds of a sample of episodes."""
    task: str | None = None
    """As in `SimulationRequest`."""


AnyRequest: TypeAlias = SimulationRequest | RoundsRequest
"""Requests to the process."""


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
    references: list[HostReference] | None = None
    """All references of a round, once they are known."""
    warning: str | None = None
    """Why results could not be stored: one sentence for the user."""
    error: str | None = None
    """Why the simulation ended early: one sentence for the user."""
