"""The thresholds of the anomalies: the table `[anomalies]` of the configuration."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from esper.config_base import NonNegativeWeight, Positive, Section, StepCount, UnitFraction, unit


class AnomalyConfig(Section, frozen=True, kw_only=True):
    """Thresholds of the anomalies. They apply from recording on: an old recording keeps the anomalies that it has."""

    recovery: Annotated[float, Meta(gt=0, lt=1)] = 0.8
    """fraction of its threshold below which a value must fall before an anomaly ends; a minimum is divided by it"""
    explosion_factor: Annotated[float, Meta(gt=1)] = 10.0
    """multiple of its median in the episode above which a gradient norm explodes"""
    explosion_steps: Annotated[StepCount, unit("steps")] = 3
    """consecutive steps with such a norm, above the clipping norm, of a host or a seed that affects the output"""
    chance_factor: Annotated[float, Meta(ge=1)] = 1.02
    """multiple of the chance loss above which a training loss is too high"""
    chance_steps: Annotated[int, Meta(ge=2, le=50), unit("steps")] = 5
    """consecutive steps in which the training loss of an env is too high, and does not fall"""
    skipped_steps: Annotated[StepCount, unit("steps")] = 3
    """consecutive steps of an env with skipped batches"""
    dead_gradient: NonNegativeWeight = 1e-8
    """gradient norm below which a policy head or a seed is dead"""
    dead_seed_steps: Annotated[StepCount, unit("steps")] = 3
    """consecutive steps in which a seed is dead"""
    stalled_steps: Annotated[StepCount, unit("steps")] = 10
    """steps without a better score, at the end of an episode, from which on an env is stalled"""
    stalled_gap: Annotated[UnitFraction, unit("score")] = 0.1
    """distance of a stalled env's final score to the median of all envs; in a family, to that of its structure"""
    stalled_envs: UnitFraction = 0.25
    """fraction of the envs that stall, two envs or more"""
    stalled_rounds: Annotated[int, Meta(ge=1, le=10), unit("rounds")] = 3
    """consecutive rounds in which so many envs stall"""
    kl: Annotated[Positive, unit("nats")] = 0.1
    """KL divergence of a policy update that is a spike"""
    entropy: UnitFraction = 0.05
    """normalised entropy below which a policy head has stopped exploring"""
    memory: UnitFraction = 0.9
    """fraction of a device's memory in use above which it is nearly full"""
    memory_growth: Annotated[float, Meta(gt=0, le=1_000)] = 0.03
    """growth of the run's memory over five rounds, as a fraction; an anomaly if the memory grew in each of the five and
    may be full before the last round"""
    straggler_ratio: Annotated[float, Meta(gt=1)] = 1.5
    """multiple of the other lanes' time per env, over ten steps, above which a lane straggles"""
    stale_steps: Annotated[float, Meta(ge=1), unit("steps")] = 10.0
    """duration without an event, in usual steps, above which the dashboard calls the engine silent; at least five
    seconds"""
