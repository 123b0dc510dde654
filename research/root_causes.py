"""How often does a simulation confirm the first likely cause of a drop of the score?

    python -m research.root_causes telemetry/RUN telemetry/demo-faults --rounds 1-20

Takes about two seconds for each episode with a drop. Such an episode is played up to its last drop, as recorded and
without each named decision. The analysis before `health/causes.py` named stage transitions: its decision is the op
behind the last transition within three steps.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from esper.effects.change import UNCHANGED, without_decision
from esper.effects.episode import WAIT, RecordedEpisode, read_round
from esper.effects.results import Simulation
from esper.effects.verdict import judge_cause
from esper.health.causes import list_score_drops
from esper.history.history import open_history
from esper.printed_table import PrintedTable
from esper.simulation.simulator import SimulationJob, Simulator
from esper.tasks.prepare import prepare_task

MAX_GAP_STEPS = 3
"""Maximum number of steps between a stage transition and a drop, in the analysis before this one."""


class Named(NamedTuple):
    """A drop, and the step of the decision that each analysis names; None if it names none."""

    step: int
    before: int | None
    now: int | None


def find_named(episode: RecordedEpisode) -> list[Named]:
    """Return the drops of an episode."""
    slots = episode.started.slot_names
    return [
        Named(
            drop.step,
            decision_behind_transition(episode, drop.step, slots),
            drop.candidates[0].decision_step if drop.candidates else None,
        )
        for drop in list_score_drops(episode.steps, slots)
    ]


def decision_behind_transition(episode: RecordedEpisode, step: int, slots: Sequence[str]) -> int | None:
    """Return the step of the last op on the slot that changed its stage last, at most `MAX_GAP_STEPS` before a step."""
    for index in range(step - 1, max(step - 2 - MAX_GAP_STEPS, 0), -1):
        before, after = episode.steps[index - 1].slots, episode.steps[index].slots
        moved = [slot for slot, old, new in zip(slots, before, after, strict=False) if old.stage != new.stage]
        for slot in reversed(moved):
            ops = [other.step for other in episode.steps[: index + 1] if other.op != WAIT and other.target == slot]
            if ops:
                return ops[-1]
    return None


def job_of(episode: RecordedEpisode, drops: Sequence[Named]) -> SimulationJob:
    """Return the simulation of an episode up to its last drop, without each decision that is named."""
    episode = episode._replace(steps=episode.steps[: drops[-1].step], ended=None)
    decisions = sorted({step for drop in drops for step in (drop.before, drop.now) if step is not None})
    return SimulationJob(episode=episode, changes=[without_decision(episode, step) for step in decisions])


class Count:
    """Counts of one analysis."""

    def __init__(self) -> None:
        self.named = self.confirmed = 0

    def __str__(self) -> str:
        part = f" ({self.confirmed / self.named:.0%})" if self.named else ""
        return f"{self.confirmed} of {self.named}{part}"


def count(path: Path, rounds: Sequence[int]) -> Iterator[str]:
    """Yield the columns of one run: name, episodes, exact ones, drops, and the confirmed decisions of both analyses."""
    history = open_history(path)
    rounds = rounds or range(1, history.state_at(history.length).round + 1)
    episodes = [episode for number in rounds for _, episode in sorted(read_round(history, number).items())]
    drops = [(episode, named) for episode in episodes if (named := find_named(episode))]
    jobs = [job_of(episode, named) for episode, named in drops]
    num_plays = sum(1 + len(job.changes) for job in jobs)
    simulator = Simulator(episodes[0].config, prepare_task(episodes[0].config), ["cpu:0"], num_plays, path.parent)
    results: dict[tuple[int, int, str], Simulation] = {}
    for found in simulator.simulate(jobs, lambda _: None):
        results[found.round, found.env, found.change.key] = found
    simulator.close()
    before, now, num_exact = Count(), Count(), 0
    for job, (_, named) in zip(jobs, drops, strict=True):
        episode = job.episode
        unchanged = results[episode.round, episode.env, UNCHANGED.key]
        num_exact += unchanged.is_exact
        for drop in named:
            for counts, step in ((before, drop.before), (now, drop.now)):
                if step is not None:
                    without = results[episode.round, episode.env, without_decision(episode, step).key]
                    verdict = judge_cause(unchanged.trajectory, without.trajectory, drop.step)
                    counts.named += 1
                    counts.confirmed += verdict is not None and verdict.is_confirmed
    num_drops = sum(len(named) for _, named in drops)
    yield from (path.name, str(len(jobs)), str(num_exact), str(num_drops), str(before), str(now))


def main() -> None:
    """Print a table with one row for each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--rounds", default="", help="FIRST-LAST; all by default")
    options = parser.parse_args()
    first, _, last = options.rounds.partition("-")
    rounds = range(int(first), int(last or first) + 1) if first else []
    head = ["run", "episodes with a drop", "exact", "drops", "confirmed, before", "confirmed, now"]
    print(*PrintedTable.from_cells(head, [list(count(run, rounds)) for run in options.runs]).lines(), sep="\n")


if __name__ == "__main__":
    main()
