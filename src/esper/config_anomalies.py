"""The thresholds of the anomalies: the table `[anomalies]` of the configuration."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from esper.config_base import NonNegativeWeight, Positive, Section, StepCount, UnitFraction


class AnomalyConfig(Section, frozen=True, kw_only=True):
    """Thresholds of the anomalies. They apply from recording on: an old recording keeps the anomalies that it has."""

    recovery: Annotated[
        float,
        Meta(
            gt=0,
            lt=1,
            description="fraction of its threshold below which a value must fall before an anomaly ends; a minimum is "
            "divided by it",
        ),
    ] = 0.8
    explosion_factor: Annotated[
        float,
        Meta(gt=1, description="multiple of its median in the episode above which a gradient norm explodes"),
    ] = 10.0
    explosion_steps: Annotated[
        StepCount,
        Meta(
            description="consecutive steps with such a norm, above the clipping norm, of a host or a seed that affects "
            "the output",
            extra={"unit": "steps"},
        ),
    ] = 3
    chance_factor: Annotated[
        float, Meta(ge=1, description="multiple of the loss of guessing above which a training loss is too high")
    ] = 1.02
    chance_steps: Annotated[
        int,
        Meta(
            ge=2,
            le=50,
            description="consecutive steps in which the training loss of an env is too high, and does not fall",
            extra={"unit": "steps"},
        ),
    ] = 5
    skipped_steps: Annotated[
        StepCount, Meta(description="consecutive steps of an env with skipped batches", extra={"unit": "steps"})
    ] = 3
    dead_gradient: Annotated[
        NonNegativeWeight, Meta(description="gradient norm below which a policy head or a seed is dead")
    ] = 1e-8
    dead_seed_steps: Annotated[
        StepCount, Meta(description="consecutive steps in which a seed is dead", extra={"unit": "steps"})
    ] = 3
    stalled_steps: Annotated[
        StepCount,
        Meta(
            description="steps without a better accuracy, at the end of an episode, from which on an env is stalled",
            extra={"unit": "steps"},
        ),
    ] = 10
    stalled_gap: Annotated[
        UnitFraction,
        Meta(
            description="distance of a stalled env's final accuracy to the median of all envs; in a family, to that "
            "of its structure",
            extra={"unit": "accuracy"},
        ),
    ] = 0.1
    stalled_envs: Annotated[UnitFraction, Meta(description="fraction of the envs that stall, two envs or more")] = 0.25
    stalled_rounds: Annotated[
        int,
        Meta(ge=1, le=10, description="consecutive rounds in which so many envs stall", extra={"unit": "rounds"}),
    ] = 3
    kl: Annotated[
        Positive, Meta(description="KL divergence of a policy update that is a spike", extra={"unit": "nats"})
    ] = 0.1
    entropy: Annotated[
        UnitFraction, Meta(description="normalised entropy below which a policy head has stopped exploring")
    ] = 0.05
    memory: Annotated[
        UnitFraction, Meta(description="fraction of a device's memory in use above which it is nearly full")
    ] = 0.9
    memory_growth: Annotated[
        float,
        Meta(
            gt=0,
            le=1_000,
            description="growth of the run's memory over five rounds, as a fraction; an anomaly if the memory grew in "
            "each of the five and may be full before the last round",
        ),
    ] = 0.03
    straggler_ratio: Annotated[
        float,
        Meta(
            gt=1, description="multiple of the other lanes' time per env, over ten steps, above which a lane straggles"
        ),
    ] = 1.5
    stale_steps: Annotated[
        float,
        Meta(
            ge=1,
            description="duration without an event, in usual steps, above which the dashboard calls the engine silent; "
            "at least five seconds",
            extra={"unit": "steps"},
        ),
    ] = 10.0
