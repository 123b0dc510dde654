"""Telemetry events: everything that a run records about itself.

Each event is one line of JSON with a `type`, a sequence number `seq` (from 1, without gaps) and a wall-clock `time` in
seconds since the epoch. Rounds and steps are counted from 1, envs from 0. Scores, fractions and alphas are between
0 and 1, durations are in seconds, and sizes are in bytes.

A field that was not measured is `None`, and is absent from the JSON. A measured value that is not finite is written as
the string "NaN", "Infinity" or "-Infinity", as in the JSON mapping of protobuf.
"""

from __future__ import annotations

from typing import TypeAlias

from esper.recordings.events.anomaly import AnomalyEnded, AnomalyFound, AnomalyJoined, AnomalyLeft
from esper.recordings.events.base import Event as Event
from esper.recordings.events.control import ControlRequested, Paused, Resumed
from esper.recordings.events.env import (
    DecisionExplained,
    EnvStepped,
    EpisodeEnded,
    EpisodeStarted,
    GateOpened,
    GateRefused,
    GovernorRolledBack,
    SeedMoved,
)
from esper.recordings.events.env import GateCheck as GateCheck
from esper.recordings.events.env import HeadChoice as HeadChoice
from esper.recordings.events.env import SlotReading as SlotReading
from esper.recordings.events.run import (
    CallEnded,
    CallOverdue,
    CheckpointSaved,
    ClockChanged,
    DeviceSampled,
    Logged,
    PhaseTimed,
    PolicyUpdated,
    RoundStarted,
    RunEnded,
    RunStarted,
)
from esper.recordings.events.run import HeadReading as HeadReading
from esper.recordings.events.run import StructureInfo as StructureInfo
from esper.recordings.events.search import CandidateMeasured, NetworkTested, SearchEnded, TrialEnded, TrialStarted
from esper.recordings.events.search import SearchEvent as SearchEvent
from esper.recordings.events.search import SearchInfo as SearchInfo

SCHEMA_VERSION = 2
"""Version of the events. It increases when an event or field is removed or changes its meaning, not for new ones."""

EnvEvent: TypeAlias = (
    EpisodeStarted
    | EnvStepped
    | SeedMoved
    | GateRefused
    | GateOpened
    | GovernorRolledBack
    | EpisodeEnded
    | DecisionExplained
)
"""Union of the events that concern one env."""

AnyEvent: TypeAlias = (
    RunStarted
    | RoundStarted
    | EpisodeStarted
    | EnvStepped
    | SeedMoved
    | GateRefused
    | GateOpened
    | PolicyUpdated
    | DeviceSampled
    | PhaseTimed
    | AnomalyFound
    | AnomalyJoined
    | AnomalyLeft
    | AnomalyEnded
    | GovernorRolledBack
    | EpisodeEnded
    | CheckpointSaved
    | ControlRequested
    | DecisionExplained
    | Paused
    | Resumed
    | Logged
    | CallOverdue
    | CallEnded
    | ClockChanged
    | TrialStarted
    | TrialEnded
    | CandidateMeasured
    | NetworkTested
    | SearchEnded
    | RunEnded
)
