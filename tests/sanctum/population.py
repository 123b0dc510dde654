"""Deterministic events of a growing population: every stage, a NaN, a diverged scale, a head without choices."""

from __future__ import annotations

import math

from esper.common.domain import Severity, StageName
from esper.recordings import events as ev
from tests.factory import run_started, stamp

LIFE: tuple[tuple[StageName, int], ...] = (
    ("germinated", 2),
    ("training", 3),
    ("blending", 6),
    ("probationary", 10),
    ("fossilized", 13),
)
BLUEPRINTS = ("conv_small", "conv_light", "norm", "depthwise", "bottleneck", "attention")
PARAMETERS = {"conv_small": 1168, "conv_light": 592, "norm": 32, "depthwise": 240, "bottleneck": 416, "attention": 72}
SCALES = {0: 32768.0, 1: 512.0, 2: 0.0}
HEADS = ("op", "slot", "blueprint", "style", "tempo", "alpha_target", "alpha_speed", "alpha_curve")


def population(envs: int = 16, rounds: int = 14, steps: int = 25, stop: int = 17) -> list[ev.AnyEvent]:
    """Events of a run of 100 rounds up to step `stop` of round `rounds`. Only that round has step events."""
    started = run_started(envs, 100, steps)
    run: list[ev.AnyEvent] = [started]
    for round_ in range(1, rounds):
        run.append(ev.RoundStarted(round=round_))
        run += [_episode(round_, env) for env in range(envs)]
        run.append(_update(round_))
        if round_ % 5 == 0:
            path = f"telemetry/{started.run}/checkpoints/{round_:05d}-{steps:03d}"
            run.append(
                ev.CheckpointSaved(
                    round=round_,
                    step=steps,
                    path=path,
                    bytes=3_400_000 + round_ * 1000,
                    score=0.8 + round_ / 1000,
                    seconds=0.05,
                    origin="schedule",
                )
            )
    run.append(ev.RoundStarted(round=rounds))
    for step in range(1, stop + 1):
        run += step_events(envs, rounds, step)
    run += anomalies()
    return stamp(run)


def step_events(envs: int, round_: int, step: int) -> list[ev.AnyEvent]:
    """Events of one step of every env."""
    events: list[ev.AnyEvent] = []
    for env in range(envs):
        events.append(stepped(env, round_, step))
        events += _moves(env, round_, step)
    for lane in range(2):
        busy = 0.962 - lane * 0.011 - step * 0.001
        events.append(
            ev.DeviceSampled(
                device=f"cpu:{lane}", envs=envs // 2, busy=busy, allocated=1_410_000_000 + step * 65536,
                used=6_700_000_000, total=24 * 2**30,
            )
        )  # fmt: skip
    events.append(ev.PhaseTimed(round=round_, step=step, wall=0.136, phases={"train": 0.1, "validate": 0.02}))
    return events


def stage_of(env: int, slot: int, step: int) -> tuple[StageName, int]:
    """Stage and age of a slot's seed at a step. Later slots germinate later; some stay dormant."""
    delay = env % 4 + slot * (5 + env % 3)
    if (env + 2 * slot) % 5 == 4:
        return "dormant", 0
    stage: StageName = "dormant"
    born = 0
    for name, at in LIFE:
        if step >= at + delay:
            stage, born = name, LIFE[0][1] + delay
    if (env, slot) == (7, 1) and stage in {"probationary", "fossilized"}:
        stage = "culled"
    if (env, slot) == (12, 0) and stage == "fossilized":
        return "embargoed", 0
    return stage, step - born


def stepped(env: int, round_: int, step: int) -> ev.EnvStepped:
    """Event of one step of one env."""
    slots = [_reading(env, slot, step) for slot in range(3)]
    grown = sum((reading.alpha or 0.0) for reading in slots)
    ceiling = 0.38 + 0.2 * grown - (env % 5) * 0.01
    accuracy = max(0.09, min(ceiling, 0.985) * (1 - math.exp(-step / (4 + env % 3))))
    parts = {"score": 0.02 * (env % 7) - 0.03, "dependence": 0.05 * grown, "rent": -0.004 * grown}
    broken = (env, step) == (9, 17)
    acts = step % 3 == 0
    probabilities = {"wait": 0.38, "advance": 0.62} if acts else {"wait": 0.62, "germinate": 0.3, "cull": 0.08}
    return ev.EnvStepped(
        round=round_, step=step, env=env,
        op="advance" if acts else "wait", target="mid" if acts else None, op_probabilities=probabilities,
        decision={"slot": ev.HeadChoice(choice="mid", probability=0.55)} if acts else {},
        train_loss=2.2 - 1.5 * accuracy, train_score=min(accuracy + 0.03, 1.0), loss=2.3 - 1.6 * accuracy,
        score=accuracy, reward=sum(parts.values()), reward_parts=parts, value=0.31, op_probability=0.62,
        grad_norm=math.nan if broken else 0.35 + 0.11 * env + 0.02 * step, parameter_ratio=1 + 0.9 * grown,
        loss_scale=None if env == 5 else 512.0 if env == 7 else 32768.0,
        skipped_batches=3 * (env == 7), overflows_by_owner={"host": 3} if env == 7 else {}, slots=slots,
    )  # fmt: skip


def anomaly(env: int = 2, text: str | None = None, *, rule: str = "r", severity: Severity = "error") -> ev.AnomalyFound:
    """Event of an anomaly of an env."""
    text = text or f"env {env:02d} is broken"
    return ev.AnomalyFound(rule=rule, severity=severity, where=f"env {env}", env=env, value=1.0, text=text)


def moved(
    env: int, slot: str, before: StageName, after: StageName, blueprint: str | None, reason: str = "op"
) -> ev.SeedMoved:
    """Event of a transition in the first step."""
    return ev.SeedMoved(
        round=1, step=1, env=env, slot=slot, before=before, after=after, blueprint=blueprint, reason=reason
    )


def episode_ended(round_: int, env: int, score: float) -> ev.EpisodeEnded:
    """Event of the end of an episode without permanent seeds."""
    return ev.EpisodeEnded(
        round=round_, env=env, score=score, best_score=1.0, episode_return=0.0, parameter_ratio=1.0, fossilized=0,
        culled=0,
    )  # fmt: skip


def anomalies() -> list[ev.AnyEvent]:
    """Events of one error and two warnings."""
    return [
        ev.AnomalyFound(
            rule="scale_diverged", severity="warning", where="env 7", env=7, value=512.0, threshold=4.0,
            text="env 07: loss scale 2^9, the median of its lane is 2^15",
        ),
        ev.AnomalyFound(
            rule="stalled", severity="warning", where="env 12", env=12, value=9.0, threshold=8.0,
            text="env 12: no better for 9 steps",
        ),
        ev.AnomalyFound(
            rule="non_finite", severity="error", where="env 9", env=9, value=math.nan,
            text="env 09: the gradient of the host is NaN",
        ),
    ]  # fmt: skip


def _reading(env: int, slot: int, step: int) -> ev.SlotReading:
    stage, age = stage_of(env, slot, step)
    if stage in {"dormant", "culled", "embargoed"}:
        return ev.SlotReading(stage=stage, age=age)
    blueprint = BLUEPRINTS[(env + slot * 2) % len(BLUEPRINTS)]
    blends = stage in {"blending", "probationary", "fossilized"}
    alpha = min((age - 3) / 5, 1.0) if stage == "blending" else 1.0
    return ev.SlotReading(
        stage=stage, blueprint=blueprint, alpha=alpha if blends else None, age=age, parameters=PARAMETERS[blueprint],
        grad_norm=None if stage == "germinated" else 0.4 + 0.03 * age,
        dependence=0.124 - 0.03 * slot if blends else None, dependence_se=0.011 if blends else None,
    )  # fmt: skip


def _moves(env: int, round_: int, step: int) -> list[ev.AnyEvent]:
    events: list[ev.AnyEvent] = []
    reasons = {
        "germinated": "op germinate",
        "training": "G1 open",
        "blending": "op advance",
        "fossilized": "op fossilize",
    }
    for slot, name in enumerate(("early", "mid", "late")):
        before, after = stage_of(env, slot, step - 1)[0], stage_of(env, slot, step)[0]
        if before != after and step > 1:
            blueprint = BLUEPRINTS[(env + slot * 2) % len(BLUEPRINTS)]
            reason = reasons.get(after, "alpha at its target")
            events.append(
                ev.SeedMoved(
                    round=round_, step=step, env=env, slot=name, before=before, after=after, blueprint=blueprint,
                    reason=reason,
                )
            )  # fmt: skip
        if after == "training" and before != after:
            checks = [
                ev.GateCheck(name="age", passed=False, value=1, threshold=3),
                ev.GateCheck(name="gradient finite", passed=True),
            ]
            events.append(ev.GateRefused(round=round_, step=step, env=env, slot=name, gate="G2", checks=checks))
    return events


def _episode(round_: int, env: int) -> ev.EpisodeEnded:
    accuracy = min(0.42 + 0.04 * round_ + 0.012 * ((env * 7) % 11) - 0.05, 0.97)
    return ev.EpisodeEnded(
        round=round_, env=env, score=accuracy, best_score=accuracy, episode_return=0.6 + round_ / 40,
        parameter_ratio=2.4, fossilized=2, culled=0,
    )  # fmt: skip


def _update(round_: int) -> ev.PolicyUpdated:
    heads = {
        name: ev.HeadReading(
            grad_norm=(0.9 - 0.1 * i) * (1 + 0.5 * math.sin(round_ * 0.7 + i)),
            entropy=max(0.95 - 0.02 * round_ - 0.05 * i, 0),
        )
        for i, name in enumerate(HEADS)
    }
    heads["tempo"] = ev.HeadReading(grad_norm=0.0, entropy=0.0)
    heads["alpha_curve"] = ev.HeadReading()
    return ev.PolicyUpdated(
        round=round_, policy_loss=-0.01, value_loss=0.4, entropy=0.7, kl=0.0083, clip_fraction=0.112,
        explained_variance=0.46, within_step_explained_variance=0.12, grad_norm=0.61, learning_rate=3e-4,
        minibatches=16, stopped_early=False, episode_return=0.6 + round_ / 40, heads=heads,
    )  # fmt: skip
