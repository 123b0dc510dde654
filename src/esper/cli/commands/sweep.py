"""`sweep FILE`: runs a study of many runs, and prints its results."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import msgspec

from esper.cli.options import EXIT_OK, Parser, add_telemetry_dir_option, print_warnings
from esper.cli.streams import print_json, print_text
from esper.common.configuration.config import ConfigError
from esper.common.configuration.files import to_toml
from esper.common.system.process import RankInfo
from esper.common.system.stop_signals import replace_handlers, restore_handlers
from esper.networks.tasks import load_task
from esper.networks.tasks.settings import settings_of
from esper.recordings.events.codec import encode_json
from esper.studies.sweeps.jobs import JobDevices, make_jobs
from esper.studies.sweeps.paths import StudyPaths
from esper.studies.sweeps.plan import SweepPlan, TrialSetting, read_plan
from esper.training.engine.start_checks import check_start, resolve_policy

if TYPE_CHECKING:
    from esper.studies.sweeps.results import StudyResults
    from esper.studies.sweeps.study import SweepStudy

_CHECKED_KEYS = {"task", "policy", "plan", "init-policy", "slots", "policy-device", "envs", "steps"}
"""Options that the checks before a start depend on."""


def run(arguments: Sequence[str]) -> int:
    """Start or continue the study, or print its results."""
    options = _parser().parse_args(arguments)
    if RankInfo.from_environment().world_size > 1:
        raise ConfigError("sweep cannot be used under torchrun; start the same command on each machine instead")
    plan = read_plan(options.file)
    print_warnings([plan.warning] if plan.warning else [])
    paths = StudyPaths(options.telemetry_dir, plan.name)
    reads_only = options.results or options.best is not None
    if options.dry_run and (reads_only or options.json):
        raise ConfigError("--dry-run has no results; remove it, or --results, --best and --json")

    from esper.studies.sweeps.report import plan_text, results_text
    from esper.studies.sweeps.results import study_results
    from esper.studies.sweeps.storage import open_storage
    from esper.studies.sweeps.study import SweepStudy, first_random_setting

    storage = options.storage or plan.storage
    if reads_only:
        study = SweepStudy(plan, paths, open_storage(storage, paths, create=False), create=False)
    else:
        jobs = make_jobs(plan.base.devices, options.jobs)
        _check_runs(plan, options.telemetry_dir, jobs)
        if options.dry_run:
            first = first_random_setting(plan) if plan.sampler == "random" else None
            print_text("\n".join(plan_text(plan, jobs, first)))
            return EXIT_OK
        paths.create()
        study = SweepStudy(plan, paths, open_storage(storage, paths, create=True), create=True)
        _work(study, jobs)
    results = study_results(study)
    if options.best is not None:
        _write_best(plan, results, options.best)
    if options.json:
        print_json(encode_json(results))
    else:
        print_text("\n".join(results_text(results)))
    return EXIT_OK


def _check_runs(plan: SweepPlan, telemetry_dir: Path, jobs: Sequence[JobDevices]) -> None:
    """Check everything that a run checks before torch is imported.

    Raises:
        ConfigError: This machine cannot satisfy the configuration.
        TaskError: The task name is unknown.
        ReadError: A run that is named as a policy does not exist.
        CheckpointError: Such a run has no checkpoint.
    """
    configs = iter([plan.base])
    if plan.sampler == "grid" and plan.vary.keys() & _CHECKED_KEYS:
        configs = map(plan.config, plan.grid())
    for config in configs:
        config = msgspec.structs.replace(config, devices=jobs[0], telemetry_dir=str(telemetry_dir))
        check_start(resolve_policy(config), RankInfo(), is_new=True)


def _work(study: SweepStudy, jobs: Sequence[JobDevices]) -> None:
    """Work on the study until no trial is left, or until a signal."""
    from esper.studies.sweeps.worker import SweepWorker

    output = threading.Lock()

    def print_progress(sentence: str) -> None:
        with output:
            print_warnings([sentence])

    worker = SweepWorker(study, jobs, print_progress)
    num_signals = 0

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal num_signals
        num_signals += 1
        if num_signals > 1:
            worker.abort()
            os._exit(128 + number)
        worker.stop()
        print_warnings(["stopping; the runs write checkpoints (a second signal ends them at once)"])

    handlers = replace_handlers(handle)
    try:
        worker.run()
    finally:
        restore_handlers(handlers)
    if numbers := sorted(info.trial for info in study.trials() if info.trial in study.elsewhere and info.is_running):
        print_progress(f"left to other machines, or other telemetry directories: trials {', '.join(map(str, numbers))}")


def _write_best(plan: SweepPlan, results: StudyResults, file: Path) -> None:
    """Write the configuration of the best setting.

    Raises:
        ConfigError: There are two objectives, no setting has a result, or the file cannot be written.
    """
    if len(plan.objectives) > 1:
        raise ConfigError(
            f"--best needs one objective; choose a setting from the front of {' and '.join(plan.objectives)} yourself"
        )
    if not results.settings or not results.settings[0].measures:
        raise ConfigError("--best: no setting has a result yet; wait for the first runs of the sweep")
    best = TrialSetting(values=results.settings[0].setting)
    config = plan.config(best, plan.seeds[0])
    with contextlib.redirect_stdout(sys.stderr):  # which the user's code may print to
        task = load_task(config.task)
    try:
        file.write_text(to_toml(config, settings_of(task)))
    except OSError as error:
        raise ConfigError(f"cannot write --best {file}: {error.strerror}") from None
    print_warnings([f"wrote the configuration of the best setting ({best}) to {file}"])


def _parser() -> Parser:
    parser = Parser(
        prog="esper-sanctum sweep",
        description="Run a study: many runs that differ in chosen options and in the random seed",
        epilog="The same command continues a study that was interrupted, and shares it with other machines.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="TOML file of the sweep")
    parser.add_argument("--dry-run", action="store_true", help="print the trials and the devices, and start nothing")
    parser.add_argument(
        "--jobs", type=_positive, metavar="N", help="runs at once on this machine (default: as many as devices allow)"
    )
    parser.add_argument(
        "--storage", default="", metavar="S", help="journal file or database URL (default: a journal file in studies/)"
    )
    parser.add_argument("--results", action="store_true", help="print the results so far, and start nothing")
    parser.add_argument(
        "--best", type=Path, metavar="FILE", help="write the configuration of the best setting, and start nothing"
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    add_telemetry_dir_option(parser, " and to which runs are written")
    return parser


def _positive(text: str) -> int:
    try:
        if (number := int(text)) > 0:
            return number
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not valid: it must be a whole number of 1 or more")
