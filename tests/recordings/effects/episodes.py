"""Recorded episodes without a run, and results for them."""

from __future__ import annotations

from collections.abc import Mapping

from esper.common.decisions import Decision
from esper.recordings import events as ev
from esper.recordings.effects.change import UNCHANGED, Change
from esper.recordings.effects.episode import RecordedEpisode
from esper.recordings.effects.results import Reproduction, Simulation, Trajectory
from tests.factory import env_stepped, run_started

STEPS = 8


def episode(decisions: Mapping[int, Decision], steps: int = STEPS) -> RecordedEpisode:
    """Return an episode of env 0 in round 1 that waits except in some steps, from 1."""
    events = [env_stepped(step=step, op="wait") for step in range(1, steps + 1)]
    for step, decision in decisions.items():
        heads = {head: ev.HeadChoice(choice=choice) for head, choice in decision.choices.items() if head != "op"}
        events[step - 1] = env_stepped(step=step, op=decision.op, target=decision.slot, decision=heads)
    return RecordedEpisode(run_started(steps=steps), 1, 0, events, None, None, None)


GROWN = episode(
    {
        2: Decision("germinate", "early", "norm", style="linear_gate", tempo="5", alpha_target="0.7"),
        3: Decision("germinate", "mid", "conv_light", style="linear_add", tempo="3"),
        5: Decision("cull", "early", alpha_speed="3", alpha_curve="linear"),
        6: Decision("advance", "mid"),
        7: Decision("germinate", "early", "norm", style="linear_add", tempo="3"),
        8: Decision("set_alpha", "early", alpha_target="0.5", style="linear_add", alpha_speed="5"),
    }
)
"""Two seeds in early, one after the other, and one in mid."""


def simulation(
    of: RecordedEpisode = GROWN,
    change: Change = UNCHANGED,
    *,
    net_return: float = 0.5,
    software: str = "now",
    steps: int | None = None,
    differs_from: int | None = None,
    repeat: int = 0,
) -> Simulation:
    """Return a result with a short trajectory."""
    steps = len(of.steps) if steps is None else steps
    is_reproduction = change == UNCHANGED and repeat == 0
    return Simulation(
        round=of.round,
        env=of.env,
        episode=of.digest(steps),
        steps=steps,
        software=software,
        change=change,
        repeat=repeat,
        trajectory=Trajectory(
            scores=[0.1, 0.6], net_return=net_return, costs=0.1, parameter_ratio=1.5, final_score=0.6
        ),
        reproduction=Reproduction(steps=steps, differs_from=differs_from) if is_reproduction else None,
    )
