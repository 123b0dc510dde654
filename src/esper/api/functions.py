"""Training, growth and simulation from Python: `esper.train`, `esper.grow` and `esper.what_if`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch

from esper.api.recorded_run import RecordedRun
from esper.cli.console import RunPrinter, drain
from esper.common.configuration.config import GROWTH_CONFIG, Config, ConfigError, TaskError
from esper.common.configuration.files import check_keys, resolve_config
from esper.common.control import RequestKind
from esper.common.seeding import restored_generators
from esper.common.system.process import RankInfo
from esper.common.user_code.references import with_short_errors
from esper.networks.tasks.loading import resolve_task
from esper.networks.tasks.registry import get_built_in, is_built_in
from esper.networks.tasks.task import Task
from esper.recordings.candidates.candidates import Candidate, Objective
from esper.recordings.candidates.report import html_report
from esper.recordings.effects.change import RECORDED
from esper.recordings.effects.report import Report
from esper.recordings.state.state import RunState
from esper.studies.growth.growth import Growth, check_growth, make_request
from esper.studies.growth.run import GrowthRun
from esper.studies.harvest.grown import Grown
from esper.studies.simulation.question import Inquiry, Question
from esper.training.engine.start_checks import resolve_policy
from esper.training.engine.start_point import RunOptions, StartPoint
from esper.training.engine.thread import EngineThread
from esper.training.lanes.errors import FaultError, RunFailedError
from esper.training.lanes.pool import can_be_imported


class TrainedRun(NamedTuple):
    """Result of `train`."""

    directory: Path
    """Run directory: events, checkpoints, configuration."""
    status: str
    """`done`, or `stopped` after Ctrl-C."""
    rounds: int
    """Number of completed rounds."""
    score: float | None
    """Median of the final scores of the last round, a fraction; None before the end of the first round."""

    def read(self) -> RecordedRun:
        """Return the recording: events, decisions, curves and tables. Raises ReadError if it is gone."""
        return RecordedRun(self.directory)

    def __str__(self) -> str:
        return str(self.read())

    def _repr_html_(self) -> str:
        return self.read()._repr_html_()  # pyright: ignore[reportPrivateUsage] (the protocol of notebooks)


@with_short_errors
def train(task: Task | str, **settings: Any) -> TrainedRun:
    """Train a population of networks on a task, as `esper-sanctum --no-tui` does, and print its progress.

    Ctrl-C stops the run with a checkpoint. A task that was made in this session, neither built in nor loaded from a
    file, runs on one CPU lane or on GPUs, because worker processes cannot import it.

    Args:
        task: The task, the name of a built-in one, or a reference: `FILE.py`, `FILE.py:NAME` or `MODULE:NAME`.
        settings: Configuration of the run, by field name: `policy="heuristic"`, `rounds=3`, `ppo={"gamma": 0.99}`.
            `esper-sanctum --help-all` lists all, with ranges, units and defaults.

    Returns:
        Run directory, number of rounds and last score.

    Raises:
        ConfigError: A setting is unknown or not valid, or this machine cannot satisfy it.
        TaskError: The task cannot be loaded or grown, has a built-in name, or its data are missing or damaged.
        CheckpointError: A checkpoint that a setting names cannot be used.
        ReadError: A run that a setting names does not exist.
        RecordingError: The run directory cannot be written.
        RunFailedError: The run failed, or was stopped before it started.
    """
    engine, state = _run(task, "esper.train", settings)
    assert engine.directory is not None
    return TrainedRun(
        directory=engine.directory,
        status=state.status,
        rounds=state.rounds_ended,
        score=state.scores_by_round[-1].median if state.scores_by_round else None,
    )


class GrowthResult:
    """Result of `grow`: the networks of the front, and the answer. A notebook shows the table of the candidates.

    Attributes:
        directory: Run directory: events, checkpoints, configuration.
        answer: The answer in one sentence.
        best: Network of the answer; your own if no other one is better.
        front: Networks that no other one dominates by score and parameters, by rising parameters.
        candidates: All candidates, with the results of their trainings.
    """

    def __init__(self, growth: Growth, directory: Path) -> None:
        search, best = growth.search, growth.grown
        assert search is not None
        assert search.answer is not None
        assert best is not None
        self.directory: Path = directory
        self.answer: str = search.answer
        self.best: Grown = best
        self.front: list[Grown] = [growth.networks[one.name] for one in search.front if one.name in growth.networks]
        self.candidates: list[Candidate] = search.candidates
        self._search = search

    def __repr__(self) -> str:
        return self.answer

    def _repr_html_(self) -> str:
        return html_report(self._search.standings(), self.best.structure.score_name, self.answer)


@with_short_errors
def grow(
    task: Task | str,
    *,
    trials: int | None = None,
    minutes: float | None = None,
    objective: Objective = "return",
    max_parameters: str | int = "",
    patience: int | None = None,
    compare: bool = False,
    until_flat: bool = False,
    policy: str = GROWTH_CONFIG["policy"],
    envs: int = GROWTH_CONFIG["envs"],
    steps: int = GROWTH_CONFIG["steps"],
    **settings: Any,
) -> GrowthResult:
    """Find the best network of a task within a budget, as `esper-sanctum grow --no-tui --new` does.

    Ctrl-C ends the growth; the best network so far is returned. `esper-sanctum grow --help` has the defaults.

    Args:
        task: The task, its name or a reference, as for `train`.
        trials: Number of trainings of the search, without those on fresh hosts; None without `minutes`: 16.
        minutes: Minutes of training, in place of `trials`.
        objective: Quantity to maximise: `return`, the score gain minus the rent of grown parameters; or `score`.
        max_parameters: Limit of the parameters of a network: a number, or a multiple of the host's such as `1.5x`.
        patience: Steps without a better score after which a training ends; None: a third of the steps, 5 or more.
        compare: Also train the architecture of the answer from scratch.
        until_flat: Double the steps, up to 16 times, until longer trainings do not improve your network beyond chance.
        policy: Policy whose episodes are tried first: a name, your own, or a run or checkpoint with a trained policy.
        envs: Number of networks that train at once.
        steps: Maximum number of epochs of a training.
        settings: Further configuration, as for `train`.

    Raises:
        ConfigError: A setting is unknown or not valid, this machine cannot satisfy it, or there are several ranks.
        TaskError: The task cannot be loaded or grown, has a built-in name, or its data are missing or damaged.
        CheckpointError: A checkpoint that a setting names cannot be used.
        ReadError: A run that a setting names does not exist.
        RecordingError: The run directory cannot be written.
        RunFailedError: The run failed, or ended before a network had a score.
    """
    request = make_request(
        trials=trials,
        minutes=minutes,
        objective=objective,
        max_parameters=max_parameters,
        patience=patience,
        compares=compare,
        until_flat=until_flat,
    )
    if RankInfo.from_environment().world_size > 1:
        raise ConfigError("esper.grow cannot be used under torchrun; start the command `esper-sanctum grow` with it")
    growth = Growth(request=request)
    options = {**GROWTH_CONFIG, "policy": policy, "envs": envs, "steps": steps, **settings}
    engine, _ = _run(task, "esper.grow", options, growth)
    assert engine.directory is not None
    if growth.grown is None:
        raise RunFailedError("the run ended before a network had a score, so none was grown")
    return GrowthResult(growth, engine.directory)


@with_short_errors
def what_if(
    run: str = "last",
    *,
    round: int | None = None,
    env: int | None = None,
    rounds: tuple[int, int] | None = None,
    sample: int | None = None,
    without: str | Sequence[str] = (),
    do: str | Sequence[str] = (),
    plan: str | None = None,
    then: str = RECORDED,
    repeats: int = 0,
    task: str | None = None,
    devices: Sequence[str] = ("auto",),
    telemetry_dir: str | Path = "telemetry",
) -> Report:
    """Compute what decisions of a recording were worth, as `esper-sanctum whatif` does.

    Args:
        run: Run name, path, or `last`.
        round: Round, from 1; None: the last one that has ended.
        env: Env, from 0; None: the one with the best final score of the round.
        rounds: First and last round of a sample of episodes, in place of one.
        sample: Number of episodes of the sample; None: all.
        without: Decisions to leave out together: `step:17`, or `seed:early:17` for all that concern a seed.
        do: Decisions to take instead: `12:depthwise@early`.
        plan: Plan that replaces all decisions; None: none does.
        then: Decisions after the change: `recorded`, `wait`, `policy`, or the reference of a policy.
        repeats: Number of other hosts and data orders on which it is simulated too, from 0.
        task: Reference of the task; must be given if it is your own code.
        devices: Devices of the lanes.
        telemetry_dir: Directory in which run names are looked up.

    Returns:
        Effects on the net return: of all decisions, of a change, or means over `rounds`. It prints as the command does.

    Raises:
        ConfigError: The question does not fit the recording, or this machine lacks a device.
        TaskError: The task cannot be loaded, is not that of the run, or its data are missing or damaged.
        CheckpointError: A policy that follows cannot be read.
        ReadError: A run does not exist, or cannot be read.
        OSError: The stored results of earlier simulations cannot be read.
        RunFailedError: A step of a simulation failed.
    """
    question = Question(
        run=run,
        round=round,
        env=env,
        rounds=rounds,
        sample=sample,
        without=_texts("without", without),
        do=_texts("do", do),
        plan=plan,
        then=then,
        repeats=repeats,
        task=task,
        devices=devices,
    )
    return _answer(question, Path(telemetry_dir))


def _texts(name: str, value: object) -> list[str]:
    """Return one text or several as a list. Raises ConfigError for anything else."""
    found = list(cast("Sequence[object]", value)) if isinstance(value, list | tuple) else [value]
    texts = [text for text in found if isinstance(text, str)]
    if len(texts) < len(found):
        raise ConfigError(f"{name} must be a text or a list of texts, not {value!r}")
    return texts


@restored_generators()
def _answer(question: Question, telemetry_dir: Path) -> Report:
    """Simulate what a question needs, and return the answer. Raises the exceptions of `what_if`."""
    threads = torch.get_num_threads()
    try:
        with closing(Inquiry(question, telemetry_dir)) as inquiry:
            for _ in inquiry.simulate(lambda _: None):
                pass
    except FaultError as fault:
        raise RunFailedError(str(fault)) from fault
    finally:
        torch.set_num_threads(threads)
    report = inquiry.report()
    assert report is not None
    return report


@restored_generators()
def _run(
    task: Task | str, caller: str, settings: dict[str, Any], growth: Growth | None = None
) -> tuple[EngineThread, RunState]:
    """Run the engine to its end or until Ctrl-C, and print its progress. Raises the exceptions of `train`.

    Args:
        task: The task, or its name or reference.
        caller: Name of the function for messages.
        settings: Configuration by field name.
        growth: Growth of one network.

    Returns:
        The engine and the last state.
    """
    task = resolve_task(task)
    if task.source is None and is_built_in(task.name) and task != get_built_in(task.name):
        raise TaskError(f"the name {task.name!r} is that of a built-in task; choose another name")
    options = {**settings, "task": task.name}
    if not can_be_imported(task) and "devices" not in settings and not torch.cuda.is_available():
        options["devices"] = ("cpu:0",)
    config = resolve_policy(_resolve(options, caller))
    if growth:
        check_growth(config)
    threads = torch.get_num_threads()
    engine = EngineThread(
        StartPoint(config), RunOptions(task=task, load_kind=partial(GrowthRun, growth) if growth else None)
    )
    # Before the engine replaces the stream for the threads that run the user's code:
    printer = RunPrinter(sys.stdout, trains_here=True)
    engine.start()
    try:
        state = printer.run(drain(engine.records, lambda: engine.is_engine_alive))
    except KeyboardInterrupt:
        engine.control.put(RequestKind.STOP, "keyboard")
        state = printer.run(drain(engine.records, lambda: engine.is_engine_alive))
    finally:
        engine.join()
        torch.set_num_threads(threads)
    assert engine.ending is not None
    if engine.ending.error:
        raise engine.ending.error
    if engine.ending.kind != "trained":
        raise RunFailedError(engine.ending.text or "the run did not start")
    return engine, state


def _resolve(settings: dict[str, Any], caller: str) -> Config:
    """Return the configuration with these settings; tables are dicts. Raises ConfigError."""
    table: dict[str, Any] = {_key(name): value for name, value in settings.items()}
    options: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, dict):
            table[name] = {_key(inner): item for inner, item in cast("dict[str, Any]", value).items()}
            options |= {f"{name}.{key}": item for key, item in table[name].items()}
        else:
            options[name] = value
    check_keys(table, Config, f"the arguments of {caller}")
    return resolve_config(None, options)


def _key(name: str) -> str:
    return name.replace("_", "-")
