"""Questions about a recording as users ask them: their episodes and changes, simulated and answered."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from esper.common.configuration.config import ConfigError
from esper.recordings.checkpoints.catalog import find_checkpoint
from esper.recordings.effects.change import (
    NOTHING,
    RECORDED,
    WITHOUT_GROWTH,
    Change,
    changes_of,
    parse_do,
    parse_without,
    without_seed,
    without_steps,
)
from esper.recordings.effects.episode import RecordedEpisode, read_episode, read_round
from esper.recordings.effects.paying import paying_plantings
from esper.recordings.effects.references import episodes_to_measure, known_references
from esper.recordings.effects.report import (
    Report,
    change_report,
    describe_simulation,
    episode_report,
    growth_report,
    sample_report,
)
from esper.recordings.effects.results import Simulation, reproduced_round
from esper.recordings.effects.store import EffectStore
from esper.recordings.files.runs import resolve_run
from esper.recordings.history.history import History, open_history
from esper.studies.simulation.recording import RecordingSimulator
from esper.training.engine.start_checks import resolve_policy
from esper.training.policy.loading import POLICY_NAMES
from esper.training.policy.plan import PLAN, PREFIX, split_plan

RUN_POLICY = "policy"
"""Value of `Question.then`: the policy of the run; if it was trained, that of the newest checkpoint."""
SAMPLE_SEED = 0
"""Random seed of the sample of episodes."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A question about a recording.

    Attributes:
        run: Run name, path, or `last`.
        round: Round, from 1; None: the last round that has ended.
        env: Env; None: the one with the best final score of the round.
        rounds: First and last round of a sample of episodes; None: one episode.
        sample: Maximum number of episodes of the sample; None: all.
        growth: Ask whether growth helped: in `rounds`, by default all that have ended.
        without: Decisions to leave out together: `step:17` or `seed:early:17`.
        do: Decisions to take instead: `12:depthwise@early`.
        plan: Plan that replaces all decisions; None: none does.
        then: Decisions after the change: `recorded`, `wait`, `policy`, or the reference of a policy.
        repeats: Number of other hosts and data orders on which it is simulated too.
        task: Reference of the task; must be given if it is the user's own code.
        devices: Devices of the lanes.
    """

    run: str = "last"
    round: int | None = None
    env: int | None = None
    rounds: tuple[int, int] | None = None
    sample: int | None = None
    growth: bool = False
    without: Sequence[str] = ()
    do: Sequence[str] = ()
    plan: str | None = None
    then: str = RECORDED
    repeats: int = 0
    task: str | None = None
    devices: Sequence[str] = ("auto",)

    @property
    def has_change(self) -> bool:
        """True for a question about one change; False for one about all decisions."""
        return bool(self.without or self.do or self.plan is not None)


class Inquiry:
    """A question that is being answered.

    Args:
        telemetry_dir: Directory of the runs.
        in_cache: Store the results in the user's cache instead of beside the run.

    Raises:
        ConfigError: The question does not fit the recording, or the task must be named.
        TaskError: The task cannot be loaded, is not that of the run, or its data are missing or damaged.
        ReadError: The recording does not exist, or cannot be read.
        CheckpointError: The run has no checkpoint whose policy could follow.
        OSError: The stored results cannot be read.
    """

    def __init__(self, question: Question, telemetry_dir: Path, *, in_cache: bool = False) -> None:
        check_question(question)
        self._question = question
        self._path = resolve_run(question.run, telemetry_dir)
        self._history = history = open_history(self._path)
        self._change: Change | None = None
        self._rounds = range(0)
        """Rounds of a question about growth."""
        self._known: list[Simulation] = []
        """Results for a question about growth: stored ones, then new ones."""
        self._simulator: RecordingSimulator | None = None
        episodes: list[tuple[RecordedEpisode, list[Change]]]
        if question.growth:
            end = history.state_at(history.length)
            if end.search is not None:
                raise ConfigError(f"{history.path} is a growth: show prints its candidates and the bare network")
            first, last = question.rounds or (1, end.rounds_ended)
            self._rounds, self._known = range(first, last + 1), EffectStore(self._path).read()
            episodes = _missing_for_growth(history, self._rounds, self._known)
            if not episodes:
                return
        elif question.rounds:
            episodes = [(episode, list(changes_of(episode).values())) for episode in _sample(history, question)]
        else:
            episode = _find_episode(history, question)
            if question.has_change:
                self._change = _find_change(question, episode, self._path, telemetry_dir)
            episodes = [(episode, [self._change] if self._change else list(changes_of(episode).values()))]
        self._simulator = RecordingSimulator(
            self._path,
            episodes,
            repeats=question.repeats,
            task_reference=question.task,
            devices=question.devices,
            telemetry_dir=telemetry_dir,
            in_cache=in_cache,
        )

    @property
    def num_env_steps(self) -> int:
        """Maximum number of env-steps that are still to be simulated."""
        return self._simulator.num_env_steps if self._simulator else 0

    @property
    def storage_problem(self) -> str | None:
        """Why results could not be stored; None if all were."""
        return self._simulator.storage_problem if self._simulator else None

    def simulate(self, on_step: Callable[[int], None]) -> Iterator[str]:
        """Simulate the episode and its changes, without those that are known already.

        Args:
            on_step: Called after each step with the number of episodes that took it.

        Yields:
            One line about each result; in a sample, about each unchanged episode.

        Raises:
            FaultError: A lane or a policy failed.
            ConfigError: A policy or a plan cannot be used, or a choice does not exist.
            CheckpointError: A policy cannot be read.
        """
        if self._simulator is None:
            return
        results = {(found.episode.round, found.episode.env): found for found in self._simulator.results}
        for found in self._simulator.simulate(on_step):
            self._known.append(found)
            if found.reproduction or not (self._question.rounds or self._question.growth):
                yield describe_simulation(found, results[found.round, found.env])

    def report(self) -> Report | None:
        """Return the answer as far as it is known; None if nothing is."""
        question, name = self._question, self._path.name
        if question.growth:
            return growth_report(name, self._history, self._rounds, self._known)
        assert self._simulator is not None
        results = self._simulator.results
        if question.rounds:
            return sample_report(name, "{}–{}".format(*question.rounds), results, paying_plantings(results))
        if self._change:
            return change_report(name, results[0], self._change, question.repeats)
        return episode_report(name, results[0], question.repeats)

    def close(self) -> None:
        """Stop the threads and workers of the lanes."""
        if self._simulator is not None:
            self._simulator.close()


def check_question(question: Question) -> None:
    """Check a question as far as the recording is not needed. Raises ConfigError."""
    for name, minimum in {"round": 1, "env": 0, "repeats": 0, "sample": 1}.items():
        value = getattr(question, name)
        if value is not None and value < minimum:
            raise ConfigError(f"--{name} {value} is not valid: it must be {minimum} or more")
    if question.plan is not None and not question.plan.strip():
        raise ConfigError("--plan is blank; give --do 1:wait --then wait for an episode without any decision")
    if question.plan is not None and (question.without or question.do or question.then != RECORDED):
        raise ConfigError("--plan replaces all decisions; remove --without, --do and --then")
    if question.rounds and (question.has_change or question.round is not None or question.env is not None):
        raise ConfigError("--rounds measures all decisions of many episodes; remove --round, --env and the change")
    if question.growth and (question.has_change or question.sample is not None or question.repeats):
        raise ConfigError("--growth has its own changes and its own sample; remove the change, --sample and --repeats")
    if question.growth and (question.round is not None or question.env is not None):
        raise ConfigError("--growth is about whole rounds; give --rounds in place of --round and --env")
    if question.rounds and question.repeats:
        raise ConfigError("--repeats is for one episode; remove it, or --rounds")
    if question.rounds and not 1 <= question.rounds[0] <= question.rounds[1]:
        raise ConfigError("--rounds {}-{} is not valid; expected for example 60-70".format(*question.rounds))
    if question.sample is not None and not question.rounds:
        raise ConfigError("--sample draws episodes from several rounds; add --rounds, for example --rounds 60-70")
    if question.then != RECORDED and not (question.without or question.do):
        raise ConfigError("--then says what follows a change; add --without or --do")


def _find_episode(history: History, question: Question) -> RecordedEpisode:
    """Return the episode of a question. Raises ConfigError."""
    number = question.round
    if number is None:
        number = max(1, history.state_at(history.length).rounds_ended)
    if question.env is not None:
        return read_episode(history, number, question.env)
    episodes = read_round(history, number)
    if not episodes:
        raise ConfigError(f"round {number} of {history.path} has no step yet")
    return max(episodes.values(), key=_final_quality)


def _final_quality(episode: RecordedEpisode) -> float:
    """Return `ScoreScale.gain` of the last score of an episode; −∞ if it is not finite."""
    score = episode.ended.score if episode.ended else episode.steps[-1].score
    return episode.started.score_scale.gain(score) if math.isfinite(score) else -math.inf


def _sample(history: History, question: Question) -> list[RecordedEpisode]:
    """Return episodes of the rounds of a question, drawn at random, in their order. Raises ConfigError."""
    assert question.rounds is not None
    first, last = question.rounds
    episodes = [episode for number in range(first, last + 1) for episode in read_round(history, number).values()]
    if not episodes:
        raise ConfigError(f"rounds {first} to {last} of {history.path} have no step yet")
    if question.sample is None or question.sample >= len(episodes):
        return episodes
    chosen = random.Random(SAMPLE_SEED).sample(range(len(episodes)), question.sample)
    return [episodes[index] for index in sorted(chosen)]


def _missing_for_growth(
    history: History, rounds: Sequence[int], stored: Sequence[Simulation]
) -> list[tuple[RecordedEpisode, list[Change]]]:
    """Return the episodes without a known reference, and those of the last round without effects of their seeds.

    Raises:
        ConfigError: No round has ended, or the recording does not contain a round.
    """
    if not rounds:
        raise ConfigError(f"no round of {history.path} has ended yet")
    wanted: dict[tuple[int, int], tuple[RecordedEpisode, list[Change]]] = {}
    for number in rounds:
        results = reproduced_round(read_round(history, number), stored)
        for episode in known_references(results)[1]:
            wanted.setdefault((number, episode.env), (episode, []))[1].append(WITHOUT_GROWTH)
        for episode in episodes_to_measure(results) if number == rounds[-1] else ():
            wanted.setdefault((number, episode.env), (episode, []))[1].extend(map(without_seed, episode.seeds))
    return list(wanted.values())


def _find_change(question: Question, episode: RecordedEpisode, run: Path, telemetry_dir: Path) -> Change:
    """Return the change of a question. Raises ConfigError, ReadError and CheckpointError."""
    if question.plan is not None:
        return Change(then=_resolve_policy(f"{PREFIX}{question.plan}", episode, telemetry_dir))
    then = _policy_of(episode, run) if question.then == RUN_POLICY else question.then
    if then not in (RECORDED, NOTHING):
        then = _resolve_policy(then, episode, telemetry_dir)
    left_out = [parse_without(text, episode, then) for text in question.without]
    steps = sorted({step for change in left_out for step in change.decisions})
    done = parse_do(question.do, episode)
    for step in done.decisions:
        if step in steps:
            raise ConfigError(f"--without and --do both change step {step}; remove one of them")
    return Change(decisions=without_steps(steps).decisions | done.decisions, then=then)


def _resolve_policy(reference: str, episode: RecordedEpisode, telemetry_dir: Path) -> str:
    """Return the reference of a policy that acts, with the path of its checkpoint if it was trained in a run.

    Raises:
        ConfigError: The policy is unknown or untrained, or its plan is wrong.
        ReadError: The run of the policy does not exist.
        CheckpointError: It has no checkpoint, or a damaged one.
    """
    name, plan = split_plan(reference)
    if name == "ppo":
        raise ConfigError("--then ppo has no trained network; name a run or a checkpoint, or pretrained")
    config = msgspec.structs.replace(episode.config, policy=name, plan=plan, telemetry_dir=str(telemetry_dir))
    return reference if plan else resolve_policy(config).policy


def _policy_of(episode: RecordedEpisode, run: Path) -> str:
    """Return the reference of the policy of a run.

    Raises:
        ConfigError: The policy is the user's own code.
        CheckpointError: The run has no checkpoint.
    """
    config = episode.config
    if config.policy == "ppo":
        return str(find_checkpoint(run))
    if config.policy == PLAN:
        return f"{PREFIX}{config.plan}"
    if config.policy in POLICY_NAMES:
        return config.policy
    raise ConfigError(f"the policy {config.policy} of this run is not built in; name it with --then FILE.py")
