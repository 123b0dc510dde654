"""A small run as a sequence of events, for tests of the code that reads runs."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Iterator
from typing import TypeVar

import msgspec

from esper.common.domain import StageName
from esper.common.intervals import IntervalEstimate, t_interval
from esper.recordings import events as ev
from esper.recordings.candidates.candidates import (
    BARE_HOST,
    FROM_SCRATCH,
    Candidate,
    Origin,
    Outcome,
    choose,
    describe_answer,
)
from esper.recordings.health.detector import AnomalyDetector
from esper.recordings.state.search_state import SearchState

T = TypeVar("T")

START = 1_790_000_000.0
"""Wall-clock time of the first event."""
SLOTS = ["early", "mid", "late"]
HEADS = ["op", "slot", "blueprint", "style", "tempo", "alpha_target", "alpha_speed", "alpha_curve"]
BLUEPRINTS = ["conv_small", "conv_light", "norm"]


def example_run(envs: int = 4, rounds: int = 2, steps: int = 5) -> list[ev.AnyEvent]:
    """Return the events of a whole run with a refused gate, a NaN gradient and a dead head. Always the same."""
    draw = random.Random(0)
    run: list[ev.AnyEvent] = [run_started(envs, rounds, steps)]
    for round_ in range(1, rounds + 1):
        run.append(ev.RoundStarted(round=round_))
        for step in range(1, steps + 1):
            run += _step(draw, envs, round_, step)
            if step == steps:
                run += [_episode(draw, round_, env) for env in range(envs)]
                run.append(policy_updated(round_))
                run.append(_checkpoint(round_, step))
            run.append(
                ev.PhaseTimed(round=round_, step=step, wall=0.2, phases={"train": 0.12, "validate": 0.05, "act": 0.01})
            )
    run.append(ev.RunEnded(outcome="done"))
    inspector = AnomalyDetector()
    return stamp(said for event in run for said in (event, *inspector.check(event)))


GROWTH_STEPS = 5
"""Number of steps of a trial of `growth_run`."""
FINALISTS = (BARE_HOST, "pretrained", "2:conv_small@mid", FROM_SCRATCH)
"""Candidates of `growth_run` that are trained on fresh hosts."""


def growth_run(envs: int = 4, trials: int = 12, fresh: int = 3, stop: int | None = None) -> list[ev.AnyEvent]:
    """Return the events of a growth; always the same.

    Of its trials, the bare host is the first one, a policy the second; one is pruned, one breaks down and one fails in
    each eight. `FINALISTS` are then trained on fresh hosts, tested, and the search ends.

    Args:
        envs: Number of envs.
        trials: Number of trials, at least 4.
        fresh: Number of fresh hosts; 0 ends the recording after the trials.
        stop: Round after whose second step the recording ends; None for the whole growth.
    """
    started = msgspec.structs.replace(
        run_started(envs, 10**9, GROWTH_STEPS), policy="pretrained",
        search=ev.SearchInfo(trials=trials, fresh=fresh * len(FINALISTS), objective="return"),
    )  # fmt: skip
    waves: list[list[tuple[str, Origin, int | None]]]
    waves = [[(name, origin, None) for name, origin in wave] for wave in _batched(list(_proposals(trials)), envs)]
    finals: list[tuple[str, Origin, int | None]]
    finals = [(name, origin, host) for host in range(1, fresh + 1) for name, origin in _FINAL_ORIGINS.items()]
    waves += _batched(finals, envs)
    run: list[ev.AnyEvent] = [started]
    for round_, wave in enumerate(waves, 1):
        run += _wave(round_, wave, None if round_ != stop else 2)
        if round_ == stop:
            return stamp(run)
    if fresh:
        search = SearchState(info=ev.SearchInfo(trials=trials, objective="return"))
        for event in run:
            if isinstance(event, ev.TrialStarted | ev.TrialEnded):
                search.apply(event)
        found = [one for one in map(search.find, FINALISTS) if one is not None]
        for event in map(_measured, found, itertools.repeat(found[0])):
            search.apply(event)
            run.append(event)
        run += [ev.NetworkTested(candidate=name, test_score=_quality(name)[0] - 0.01) for name in FINALISTS]
        chosen, answer = choose(found, "return"), describe_answer(search.candidates, "return", GROWTH_STEPS)
        run.append(ev.SearchEnded(answer=answer, candidate=chosen.name if chosen else None))
        run.append(ev.RunEnded(outcome="done"))
    return stamp(run)


def _measured(one: Candidate, host: Candidate) -> ev.CandidateMeasured:
    score = t_interval(one.fresh_scores)
    gain = t_interval([value - host.values("return")[number] for number, value in one.values("return").items()])
    score_gain = t_interval([value - own for value, own in zip(one.fresh_scores, host.fresh_scores, strict=True)])
    is_finalist = one.name not in (BARE_HOST, FROM_SCRATCH)
    return ev.CandidateMeasured(
        candidate=one.name,
        score=score,
        test=IntervalEstimate(mean=score.mean - 0.01, low=score.low - 0.01, high=score.high - 0.01),
        gain=gain if is_finalist else None,
        score_gain=score_gain if is_finalist else None,
    )


_FINAL_ORIGINS: dict[str, Origin] = dict(zip(FINALISTS, ("host", "policy", "known", "comparison"), strict=True))


def _proposals(trials: int) -> Iterator[tuple[str, Origin]]:
    yield from list(_FINAL_ORIGINS.items())[:3]
    for number in range(3, trials):
        origin: Origin = "variation" if number % 4 == 0 else "drawn"
        yield f"{number % 4 + 1}:{BLUEPRINTS[number % 3]}@{SLOTS[number % 2]} {number + 1}:norm@late", origin


def _batched(items: list[T], size: int) -> list[list[T]]:
    return [items[first : first + size] for first in range(0, len(items), size)]


def _quality(name: str) -> tuple[float, float]:
    """Return score and parameters (× host) of a candidate."""
    known = {
        BARE_HOST: (0.78, 1.0),
        "pretrained": (0.82, 1.2),
        "2:conv_small@mid": (0.86, 1.53),
        FROM_SCRATCH: (0.85, 1.53),
    }
    draw = random.Random(f"trial {name}")
    return known.get(name) or (draw.uniform(0.6, 0.84), draw.uniform(1.05, 2.4))


def _wave(round_: int, wave: list[tuple[str, Origin, int | None]], steps: int | None) -> Iterator[ev.AnyEvent]:
    """Yield the events of a round of a growth, up to a step; None for all."""
    yield ev.RoundStarted(round=round_)
    for env, (name, origin, host) in enumerate(wave):
        yield ev.TrialStarted(round=round_, env=env, candidate=name, origin=origin, fresh=host)
    outcomes: list[tuple[Outcome, int]] = [
        _OUTCOMES.get((round_, env), ("done", GROWTH_STEPS)) for env in range(len(wave))
    ]
    for step in range(1, (steps or GROWTH_STEPS) + 1):
        for env, (name, _, host) in enumerate(wave):
            outcome, last = outcomes[env]
            best, ratio = _quality(name)
            score = (best + 0.01 * ((host or 2) - 2)) * (0.5 + step / 10)
            if step <= last and outcome != "failed":
                yield env_stepped(env, round_, step, score=score, parameter_ratio=ratio)
            if step == last and outcome == "broke down":
                yield ev.GovernorRolledBack(round=round_, step=step, env=env, reason="the loss is NaN", value=math.nan)
            if step == last:
                yield _ended(round_, step, env, name, host, outcome, score, ratio)
        yield device_sampled("cpu:0")
        yield ev.PhaseTimed(round=round_, step=step, wall=3.0, phases={"train": 2.0, "validate": 1.0})
    if steps is None:
        for env, (name, _, host) in enumerate(wave):
            yield _episode_of_trial(round_, env, name, host, outcomes[env][1])


def _episode_of_trial(round_: int, env: int, name: str, host: int | None, last: int) -> ev.EpisodeEnded:
    best, ratio = _quality(name)
    score = (best + 0.01 * ((host or 2) - 2)) * (0.5 + last / 10)
    return ev.EpisodeEnded(
        round=round_, env=env, score=score, best_score=score, episode_return=score - 0.5 - 0.1 * (ratio - 1),
        parameter_ratio=ratio, fossilized=0, culled=0,
    )  # fmt: skip


_OUTCOMES: dict[tuple[int, int], tuple[Outcome, int]] = {
    (1, 3): ("pruned", 2),
    (2, 1): ("failed", 1),
    (2, 2): ("broke down", 3),
    (2, 3): ("pruned", 1),
    (3, 1): ("done", 3),
}
"""Outcome and last step of a trial, keyed by round and env; all others are done."""


def _ended(
    round_: int, step: int, env: int, name: str, host: int | None, outcome: Outcome, score: float, ratio: float
) -> ev.TrialEnded:
    is_measured = outcome != "failed"
    reason = {"failed": "RuntimeError: out of memory", "broke down": "loss is NaN"}.get(outcome)
    return ev.TrialEnded(
        round=round_, step=step, env=env, candidate=name, fresh=host, outcome=outcome, reason=reason,
        score=score if is_measured else None, best_step=step if is_measured else None,
        net_return=score - 0.5 - 0.1 * (ratio - 1) if outcome == "done" else None,
        parameter_ratio=ratio if is_measured else None, seeds=["conv_small in mid"] if "conv" in name else [],
    )  # fmt: skip


def stamp(run: Iterable[ev.AnyEvent], first: int = 1, start: float = START) -> list[ev.AnyEvent]:
    """Number and timestamp events like the hub, 0.01 s apart."""
    return [msgspec.structs.replace(event, seq=first + i, time=start + i / 100) for i, event in enumerate(run)]


def run_started(envs: int = 4, rounds: int = 2, steps: int = 5) -> ev.RunStarted:
    """Return the first event of a run on two CPU lanes."""
    return ev.RunStarted(
        run="digits_impaired-20261121-015300",
        task="digits_impaired",
        policy="ppo",
        rounds=rounds,
        steps=steps,
        slot_names=SLOTS,
        lanes=[f"cpu:{env % 2}" for env in range(envs)],
        seed=0,
        host_parameters=370,
        score_name="accuracy",
        chance_loss=math.log(10),
        chance_score=0.1,
        batches=8,
        growth_interval=2000,
        versions={"esper-sanctum": "0.1.0", "python": "3.11.7", "torch": "2.15.0"},
        config={"envs": envs, "rounds": rounds, "steps": steps},
    )


def env_stepped(env: int = 0, round: int = 1, step: int = 1, **changes: object) -> ev.EnvStepped:
    """Return an ordinary step of one env with one blending seed; arguments override fields."""
    event = ev.EnvStepped(
        round=round,
        step=step,
        env=env,
        op="wait",
        train_loss=2.1,
        train_score=0.3,
        loss=2.0,
        score=0.35,
        reward=0.125,
        reward_parts={"score": 0.15, "rent": -0.025},
        value=0.2,
        op_probability=0.4,
        grad_norm=0.8,
        parameter_ratio=1.4,
        slots=[
            ev.SlotReading(stage="dormant"),
            ev.SlotReading(
                stage="blending", blueprint="conv_small", alpha=0.5, age=3, parameters=148, grad_norm=0.2,
                dependence=0.04, dependence_se=0.01,
            ),
            ev.SlotReading(stage="embargoed", age=4),
        ],
    )  # fmt: skip
    return msgspec.structs.replace(event, **changes)


def policy_updated(round: int = 1, **changes: object) -> ev.PolicyUpdated:
    """Return an ordinary update; arguments override fields. `alpha_curve` had no choice, `tempo` no gradient."""
    heads = {name: ev.HeadReading(grad_norm=0.1 + i / 50, entropy=0.9) for i, name in enumerate(HEADS)}
    heads["tempo"] = ev.HeadReading(entropy=0.8)
    heads["alpha_curve"] = ev.HeadReading()
    event = ev.PolicyUpdated(
        round=round,
        policy_loss=-0.01,
        value_loss=0.4,
        entropy=0.9,
        kl=0.012,
        clip_fraction=0.08,
        explained_variance=0.1,
        within_step_explained_variance=0.05,
        grad_norm=0.6,
        learning_rate=3e-4,
        minibatches=16,
        stopped_early=False,
        episode_return=0.7,
        heads=heads,
    )
    return msgspec.structs.replace(event, **changes)


def device_sampled(device: str = "cpu:0", **changes: object) -> ev.DeviceSampled:
    """Return a sample of a CPU lane with plenty of free memory; arguments override fields."""
    event = ev.DeviceSampled(device=device, envs=2, active=2, busy=0.8, allocated=2**29, used=2**32, total=2**34)
    return msgspec.structs.replace(event, **changes)


def _step(draw: random.Random, envs: int, round_: int, step: int) -> list[ev.AnyEvent]:
    events: list[ev.AnyEvent] = []
    for env in range(envs):
        accuracy = min(0.1 + 0.1 * step + draw.random() / 10, 1.0)
        if step == 2:
            events.append(_move(round_, step, env, SLOTS[env % 3], "dormant", "germinated", "op germinate"))
        if step == 3 and env == 0:
            check = ev.GateCheck(name="age", passed=False, value=1.0, threshold=2.0)
            events.append(ev.GateRefused(round=round_, step=step, env=env, slot=SLOTS[0], gate="G2", checks=[check]))
        if step == 4:
            events.append(_move(round_, step, env, SLOTS[env % 3], "germinated", "training", "G1 open"))
        broken = round_ == 1 and step == 3 and env == 1
        grad_norm = math.nan if broken else draw.random()
        reward = draw.uniform(-0.1, 0.3)
        parts = {"score": reward + 0.05, "rent": -0.05}
        events.append(
            env_stepped(env, round_, step, score=accuracy, grad_norm=grad_norm, reward=reward, reward_parts=parts)
        )
    events += [device_sampled(f"cpu:{lane}", used=2**32 + step * 2**20) for lane in range(2)]
    return events


def _move(
    round_: int, step: int, env: int, slot: str, before: StageName, after: StageName, reason: str
) -> ev.SeedMoved:
    blueprint = BLUEPRINTS[env % 3]
    return ev.SeedMoved(
        round=round_, step=step, env=env, slot=slot, before=before, after=after, blueprint=blueprint, reason=reason
    )


def _episode(draw: random.Random, round_: int, env: int) -> ev.EpisodeEnded:
    accuracy = 0.5 + draw.random() / 3
    return ev.EpisodeEnded(
        round=round_, env=env, score=accuracy, best_score=accuracy, episode_return=0.6, parameter_ratio=1.4,
        fossilized=0, culled=0,
    )  # fmt: skip


def _checkpoint(round_: int, step: int) -> ev.CheckpointSaved:
    path = f"checkpoints/{round_:05d}-{step:03d}"
    return ev.CheckpointSaved(round=round_, step=step, path=path, bytes=3_000_000, seconds=0.05, origin="schedule")
