"""In how many drops of the score does a simulation confirm one of the decisions before it?

    python -m research.root_causes telemetry/RUN telemetry/demo-faults --rounds 1-20

Takes a second for each simulated episode. An episode with a drop is played up to its last drop, as recorded and without
each decision that moved an alpha since the best score before a drop.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from esper.common.printed_table import PrintedTable
from esper.networks.tasks.prepare import prepare_task
from esper.recordings.effects.change import UNCHANGED, without_decision
from esper.recordings.effects.episode import RecordedEpisode, read_round
from esper.recordings.effects.results import Simulation
from esper.recordings.effects.verdict import judge_cause
from esper.recordings.health.causes import PossibleCause, drop_starts, find_candidates
from esper.recordings.history.history import open_history
from esper.recordings.state.series import StepTrace
from esper.studies.simulation.simulator import SimulationJob, Simulator


class Drop(NamedTuple):
    """A drop of the score: the step in which it begins, and the decisions since the best score, newest first."""

    step: int
    candidates: list[PossibleCause]


def find_drops(episode: RecordedEpisode) -> list[Drop]:
    """Return the drops of an episode."""
    trace = [StepTrace.from_event(step) for step in episode.steps]
    slots = episode.started.slot_names
    return [
        Drop(
            trace[index].step,
            find_candidates(trace[: index + 1], slots, trace[best_index].step, episode.round, episode.env),
        )
        for index, best_index in drop_starts(trace, episode.started.score_scale, episode.started.chance_score)
    ]


def job_of(episode: RecordedEpisode, drops: Sequence[Drop]) -> SimulationJob:
    """Return the simulation of an episode up to its last drop, without each possible cause of a drop."""
    episode = episode._replace(steps=episode.steps[: drops[-1].step], ended=None)
    decisions = sorted({cause.decision_step for drop in drops for cause in drop.candidates})
    return SimulationJob(episode=episode, changes=[without_decision(episode, step) for step in decisions])


def count(path: Path, rounds: Sequence[int]) -> Iterator[str]:
    """Yield the columns of one run."""
    history = open_history(path)
    rounds = rounds or range(1, history.state_at(history.length).round + 1)
    episodes = [episode for number in rounds for _, episode in sorted(read_round(history, number).items())]
    drops = [(episode, found) for episode in episodes if (found := find_drops(episode))]
    jobs = [job_of(episode, found) for episode, found in drops]
    num_plays = sum(1 + len(job.changes) for job in jobs)
    simulator = Simulator(episodes[0].config, prepare_task(episodes[0].config), ["cpu:0"], num_plays, path.parent)
    results: dict[tuple[int, int, str], Simulation] = {}
    for found in simulator.simulate(jobs, lambda _: None):
        results[found.round, found.env, found.change.key] = found
    simulator.close()
    num_exact = first = confirmed = 0
    for job, (_, found) in zip(jobs, drops, strict=True):
        episode = job.episode
        unchanged = results[episode.round, episode.env, UNCHANGED.key]
        num_exact += unchanged.is_exact
        for drop in found:
            verdicts = [
                judge_cause(
                    unchanged.trajectory,
                    results[episode.round, episode.env, change.key].trajectory,
                    drop.step,
                    episode.started.score_scale,
                )
                for change in (without_decision(episode, cause.decision_step) for cause in drop.candidates)
            ]
            tests = [verdict is not None and verdict.is_confirmed for verdict in verdicts]
            first += any(tests[:1])
            confirmed += any(tests)
    every = [drop for _, found in drops for drop in found]
    named = sum(bool(drop.candidates) for drop in every)
    yield from map(str, (path.name, len(jobs), num_exact, num_plays, len(every), named, first, confirmed))


def main() -> None:
    """Print a table with one row for each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--rounds", default="", help="FIRST-LAST; all by default")
    options = parser.parse_args()
    first, _, last = options.rounds.partition("-")
    rounds = range(int(first), int(last or first) + 1) if first else []
    head = ["run", "episodes with a drop", "exact", "simulated", "drops", "with a decision"]
    head += ["the newest is confirmed", "one is confirmed"]
    print(*PrintedTable.from_cells(head, [list(count(run, rounds)) for run in options.runs]).lines(), sep="\n")


if __name__ == "__main__":
    main()
