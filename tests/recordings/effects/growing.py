"""Events of one env that plants, blends and culls."""

from __future__ import annotations

import msgspec

from esper.common.domain import StageName
from esper.recordings import events as ev
from tests.factory import env_stepped, run_started, stamp

DECISIONS: dict[int, tuple[str, str | None, str | None]] = {
    2: ("germinate", "early", "depthwise"),
    4: ("advance", "early", None),
    5: ("germinate", "mid", "norm"),
    7: ("cull", "mid", None),
}
"""Op, slot and blueprint of each decision, keyed by step."""

STAGES: dict[str, tuple[StageName, StageName]] = {
    "germinate": ("dormant", "germinated"),
    "advance": ("training", "blending"),
    "cull": ("training", "culled"),
}
"""Stages before and after each op."""


def growing_run(steps: int = 9, rounds: int = 1, *, ends: bool = True) -> list[ev.AnyEvent]:
    """Return the events of a run of one env with `DECISIONS` in every round."""
    started = msgspec.structs.replace(run_started(1, rounds, steps), growth_interval=None)  # without loss scaling
    run: list[ev.AnyEvent] = [started]
    for round_ in range(1, rounds + 1):
        run.append(ev.RoundStarted(round=round_))
        for step in range(1, steps + 1):
            run += decided(round_, step)
            run.append(ev.PhaseTimed(round=round_, step=step, wall=0.2, phases={"train": 0.12}))
        if ends:
            run.append(
                ev.EpisodeEnded(
                    round=round_, env=0, score=0.9, best_score=0.9, episode_return=0.5, parameter_ratio=1.4,
                    fossilized=0, culled=1,
                )
            )  # fmt: skip
    return stamp(run)


def decided(round_: int, step: int) -> list[ev.AnyEvent]:
    """Return the events of a step: the decision, and the transition that it made."""
    op, slot, blueprint = DECISIONS.get(step, ("wait", None, None))
    names = {"slot": slot, "blueprint": blueprint}
    decision = {head: ev.HeadChoice(choice=name, probability=0.5) for head, name in names.items() if name}
    score = 0.1 + 0.8 * step / 9 if step <= 9 else 0.9
    events: list[ev.AnyEvent] = [
        env_stepped(0, round_, step, op=op, target=slot, decision=decision, score=score, reward=0.05)
    ]
    if slot is not None and op != "wait":
        before, after = STAGES[op]
        events.append(
            ev.SeedMoved(
                round=round_, step=step, env=0, slot=slot, before=before, after=after, blueprint=blueprint, reason=op
            )
        )  # fmt: skip
    return events
