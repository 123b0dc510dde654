"""Computes the summary of a whole run from its recording."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from esper.recordings import events as ev
from esper.recordings.history.history import History
from esper.recordings.history.measures import measure_state, measure_summary
from esper.recordings.history.run_status import find_writer, judge_run
from esper.recordings.history.summary import BestResult, BlueprintSummary, RunSummary, summarise_round
from esper.recordings.state.series import five_numbers


def summarise(history: History, now: float) -> RunSummary | None:
    """Return the summary of a recording; None if it does not contain the start of the run.

    Args:
        history: History of the run.
        now: Current time, in seconds since the epoch.

    Raises:
        ReadError: A file cannot be read.
        OSError: The lock file of the run cannot be opened.
    """
    state = history.state_at(history.length)
    started = state.started
    if started is None:
        return None
    directory = history.path if history.path.is_dir() else history.path.parent
    writer = find_writer(directory, state.time, now)
    status = judge_run(state, writer, silence=now - state.time, directory=directory)
    summary = RunSummary(
        run=started.run,
        path=str(history.path),
        state=status.name,
        health=status.brief,
        reason=state.reason,
        task=started.task,
        policy=started.policy,
        seed=started.seed,
        lanes=started.lanes,
        host_parameters=started.host_parameters,
        versions=started.versions,
        config=started.config,
        task_defaults=started.task_defaults,
        started=state.start_time,
        duration=state.elapsed,
        rounds=started.rounds,
        steps=started.steps,
        score_name=started.score_name,
        score_scale=started.score_scale,
        steps_done=state.steps_done,
        seeds={blueprint: BlueprintSummary.from_stats(record) for blueprint, record in state.blueprints.items()},
        habits=state.habits,
        phases=state.phases,
        search=state.search,
    )
    _SummaryBuilder(summary).add_all(history.events())
    summary.measures = measure_state(state) | measure_summary(summary)
    summary.notices = history.notices  # complete after all events were read
    return summary


class _SummaryBuilder:
    """Adds the events of a run to its summary."""

    def __init__(self, summary: RunSummary) -> None:
        self._summary = summary
        self._episodes: dict[int, ev.EpisodeEnded] = {}
        """Ended episodes of the round in progress, keyed by env index."""
        self._metrics: dict[int, dict[str, float]] = {}
        """Metrics of the last step of each env, keyed by env index."""
        self._steps: dict[int, int] = {}
        """Last step of each env, keyed by env index."""
        self._num_players = len(summary.lanes)
        """Number of envs that play in the round in progress; in a growth, an env without a training is idle."""
        self._best_of: dict[str, BestResult] = {}
        """Best result of the completed trainings of each candidate of a growth, keyed by its name."""
        self._anomalies = Counter[str]()
        self._overflows = Counter[str]()

    def add_all(self, events: Iterable[ev.AnyEvent]) -> None:
        """Add all events of the run."""
        summary, wall_s = self._summary, 0.0
        for event in events:
            match event:
                case ev.EnvStepped():
                    self._add_step(event)
                case ev.RoundStarted():
                    self._episodes = {}
                    self._num_players = len(summary.lanes) if summary.search is None else 0
                case ev.TrialStarted():
                    self._num_players += 1
                case ev.TrialEnded():
                    self._add_training(event)
                case ev.PhaseTimed():
                    wall_s += event.wall
                case ev.EpisodeEnded():
                    self._add_episode(event)
                case ev.AnomalyFound():
                    self._anomalies[event.rule] += 1
                case ev.GovernorRolledBack():
                    summary.rollbacks += 1
                case ev.Paused():
                    summary.pauses += 1
                case ev.CheckpointSaved():
                    summary.checkpoints += 1
                    summary.last_checkpoint = event.path
                case _:
                    pass  # the other events are not counted
        if summary.search is not None:
            answer = summary.search.result
            summary.best = None if answer is None else self._best_of.get(answer.name)
            summary.metrics = {}
        summary.env_steps_per_second = summary.env_steps / wall_s if wall_s > 0 else None
        summary.anomalies = dict(self._anomalies.most_common())
        summary.overflows_by_owner = dict(self._overflows)

    def _add_step(self, event: ev.EnvStepped) -> None:
        self._summary.env_steps += 1
        self._steps[event.env] = event.step
        self._note_score(event)
        if event.metrics:
            self._metrics[event.env] = event.metrics
        if event.skipped_batches:
            self._summary.skipped_batches += event.skipped_batches
            self._overflows.update(event.overflows_by_owner)

    def _note_score(self, event: ev.EnvStepped | ev.EpisodeEnded) -> None:
        best = self._summary.best
        if math.isfinite(event.score) and (
            best is None or self._summary.score_scale.is_better(event.score, best.score)
        ):
            step = self._steps.get(event.env, 0)
            self._summary.best = BestResult(score=event.score, env=event.env, round=event.round, step=step)

    def _add_training(self, event: ev.TrialEnded) -> None:
        best, score, step = self._best_of.get(event.candidate), event.score, event.best_step
        if event.outcome != "done" or score is None or step is None:
            return
        if best is not None and not self._summary.score_scale.is_better(score, best.score):
            return
        self._best_of[event.candidate] = BestResult(score=score, env=event.env, round=event.round, step=step)

    def _add_episode(self, event: ev.EpisodeEnded) -> None:
        self._note_score(event)  # measured again if the env was rolled back
        self._episodes[event.env] = event
        if len(self._episodes) < self._num_players:
            return
        names = dict.fromkeys(name for metrics in self._metrics.values() for name in metrics)
        self._summary.metrics = {
            name: five_numbers([metrics[name] for metrics in self._metrics.values() if name in metrics])
            for name in names
        }
        self._summary.finished.append(summarise_round(event.round, self._episodes.values()))
