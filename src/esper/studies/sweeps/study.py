"""The study of a sweep in Optuna's storage: its trials, which process works on each, and their results.

A trial of Optuna is one run: a setting with a random seed. The random seed is an attribute and not a parameter, because
a sampler would otherwise prefer lucky seeds. Several processes may add the same trial at the same moment; of trials
with the same setting and seed, only the one with the lowest number counts, which all processes agree on.
"""

from __future__ import annotations

import itertools
import json
import re
import socket
import threading
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import optuna
from optuna.distributions import BaseDistribution
from optuna.storages import BaseStorage
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from esper.common.configuration.config import ConfigError
from esper.common.domain import VERSION
from esper.recordings.history.measures import MEASURES, objective_measures
from esper.recordings.history.summary import RoundSummary
from esper.studies.growth.optuna_sampler import NumberedSampler, silence_optuna
from esper.studies.sweeps.parameters import make_distributions, suggest_value
from esper.studies.sweeps.paths import FileLock, StudyPaths
from esper.studies.sweeps.plan import SweepPlan, TrialSetting
from esper.studies.sweeps.run_lookup import ABANDONED_S, find_run, is_left_alone
from esper.studies.sweeps.storage import storage_errors

STUDY_FORMAT = 2
"""Version of what a study stores. One of another version is refused."""
FORMAT_ATTR, PLAN_ATTR = "format", "plan"
"""Attributes of the study: `STUDY_FORMAT`, and `SweepPlan.identity`."""
SETTING_ATTR, SEED_ATTR, TRIAL_ATTR = "setting", "seed", "trial"
"""Attributes of a trial: index of its setting (in a grid) or number of the trial that drew it, random seed, and place
in the grid."""
HOST_ATTR, DIRECTORY_ATTR = "host", "telemetry-dir"
"""Attributes of a trial: machine and telemetry directory of the process that works on it."""
RUN_ATTR, REASON_ATTR, SURPLUS_ATTR = "run", "reason", "surplus"
"""Attributes of a trial: its run, why it failed, and whether it is one more than the study needs."""
MEMORY_ATTR, GPU_MEMORY_ATTR = "memory-bytes", "gpu-memory-bytes"
"""Attributes of a trial: maximum memory of its run, in bytes."""
UNOWNED_S = 60.0
"""Seconds after which a trial counts as abandoned if no process has written that it works on it."""
STARTUP_TRIALS = 5
"""Number of finished trials before the pruner stops any."""


@dataclass(frozen=True, kw_only=True)
class TrialInfo:
    """A trial that counts, as the storage has it."""

    frozen: FrozenTrial
    trial: int
    """Number in the notes of the run: place in the grid, or number in the storage."""
    group: int
    """Index of the setting in the grid, or number of the trial that drew it."""
    seed: int
    setting: TrialSetting
    """Values of the varied options; empty until they are drawn."""

    @property
    def state(self) -> TrialState:
        """State in the storage."""
        return self.frozen.state

    @property
    def is_running(self) -> bool:
        """True if a process works on the trial, or did when it ended."""
        return self.state == TrialState.RUNNING


class SweepStudy:
    """A study, opened by one process. Threads may share it.

    Args:
        plan: The sweep.
        storage: Storage, see `open_storage`.
        create: Create the study if the storage does not have it, and add the trials that are missing.

    Raises:
        ConfigError: The study does not exist, was started with another file, or the storage cannot be used.
    """

    def __init__(self, plan: SweepPlan, paths: StudyPaths, storage: BaseStorage | str, *, create: bool) -> None:
        silence_optuna()
        self.plan = plan
        self.paths = paths
        self.elsewhere: set[int] = set()
        """Trials that processes on other machines work on, or did."""
        self._claimed: set[int] = set()
        """Numbers of the trials that this process has worked on."""
        self._mutex = threading.RLock()
        self._distributions: dict[str, BaseDistribution] = make_distributions(plan)
        self._study = self._open(storage, create=create)
        with storage_errors():
            self._check_identity(create=create)
            if create:
                with paths.planning():
                    self._add_missing_trials()

    def _open(self, storage: BaseStorage | str, *, create: bool) -> Study:
        sampler = NumberedSampler(self.plan.sampler, self.plan.name)
        pruner: optuna.pruners.BasePruner = optuna.pruners.NopPruner()
        if self.plan.prune:
            pruner = optuna.pruners.MedianPruner(
                n_startup_trials=STARTUP_TRIALS, n_warmup_steps=self.plan.base.rounds // 3
            )
        try:
            if create:
                return optuna.create_study(
                    storage=storage,
                    study_name=self.plan.name,
                    sampler=sampler,
                    pruner=pruner,
                    directions=[MEASURES[name].direction for name in self.plan.objectives],
                    load_if_exists=True,
                )
            return optuna.load_study(storage=storage, study_name=self.plan.name, sampler=sampler, pruner=pruner)
        except KeyError:
            raise ConfigError(f"the storage has no study {self.plan.name!r}; start the sweep first") from None
        except Exception as error:  # noqa: BLE001 (of the database's driver: refused, not found, no such driver)
            reason = " ".join(str(error).split("\n")[0].split())
            raise ConfigError(f"cannot use the storage {_without_password(storage)}: {reason}") from None

    def _check_identity(self, *, create: bool) -> None:
        """Refuse to continue a study with other options than it was started with."""
        stored, current = self._study.user_attrs.get(PLAN_ATTR), self.plan.identity()
        if stored is None:
            if create:
                self._study.set_user_attr(FORMAT_ATTR, STUDY_FORMAT)
                self._study.set_user_attr(PLAN_ATTR, current)
            return
        if (version := self._study.user_attrs.get(FORMAT_ATTR, 1)) != STUDY_FORMAT:
            raise ConfigError(
                f"study {self.plan.name!r} has format {version}; this is esper-sanctum {VERSION}, which reads format "
                f"{STUDY_FORMAT}; give the sweep another name"
            )
        for key, value in current.items():
            before = stored.get(key)
            if json.dumps(before) == json.dumps(value):  # with the order of the options, on which a grid depends
                continue
            place = f"[{key}]" if isinstance(value, dict) else key
            raise self._changed(f"{place} {_difference(before, value)}")
        trials = [trial.user_attrs for trial in self._study.get_trials(deepcopy=False)]
        if lost := sorted({attrs[SEED_ATTR] for attrs in trials if SEED_ATTR in attrs} - set(self.plan.seeds)):
            raise self._changed(f"seeds had {', '.join(map(str, lost))}")
        num_drawn = sum(SETTING_ATTR not in attrs and HOST_ATTR in attrs for attrs in trials)
        if self.plan.sampler != "grid" and num_drawn > self.plan.settings:
            raise self._changed(f"settings was {num_drawn} or more, now {self.plan.settings}")

    def _changed(self, difference: str) -> ConfigError:
        return ConfigError(
            f"study {self.plan.name!r} was started with another version of {self.plan.file}: {difference}; "
            "restore it, or give the sweep another name"
        )

    def trials(self) -> list[TrialInfo]:
        """Return the trials that count, in the order of their numbers."""
        return list(self._valid_trials(self._study.get_trials(deepcopy=False)))

    def _valid_trials(self, trials: Sequence[FrozenTrial]) -> Iterator[TrialInfo]:
        """Yield the trials that are neither duplicates nor surplus."""
        known: set[tuple[int, int]] = set()
        settings = dict(enumerate(self.plan.grid())) if self.plan.sampler == "grid" else {}
        num_drawn = 0
        for frozen in sorted(trials, key=lambda trial: trial.number):
            attrs, number = frozen.user_attrs, frozen.number
            if attrs.get(SURPLUS_ATTR):
                continue
            if SETTING_ATTR not in attrs:  # drawn by the sampler
                if self.plan.sampler == "grid" or num_drawn == self.plan.settings:
                    continue
                num_drawn += 1
                is_complete = frozen.params.keys() == self.plan.vary.keys()
                settings[number] = TrialSetting(
                    values={key: frozen.params[key] for key in self.plan.vary if is_complete}
                )
            group, seed = attrs.get(SETTING_ATTR, number), attrs.get(SEED_ATTR, self.plan.seeds[0])
            if (group, seed) not in known and group in settings:
                known.add((group, seed))
                yield TrialInfo(
                    frozen=frozen,
                    trial=attrs.get(TRIAL_ATTR, number),
                    group=group,
                    seed=seed,
                    setting=settings[group],
                )

    def _add_missing_trials(self) -> None:
        """Add the trials of a grid, or the other random seeds of settings that were drawn."""
        known = {(info.group, info.seed): info for info in self.trials()}
        if self.plan.sampler == "grid":
            used = {info.trial for info in known.values()}
            for place, (seed, (index, setting)) in enumerate(
                itertools.product(self.plan.seeds, enumerate(self.plan.grid()))
            ):
                if (index, seed) not in known:
                    number = max(used) + 1 if place in used else place  # taken if the seeds were not added at the end
                    used.add(number)
                    self._enqueue(setting, {SETTING_ATTR: index, SEED_ATTR: seed, TRIAL_ATTR: number})
            return
        for (group, _), info in list(known.items()):
            if info.frozen.number == group and info.setting.values:
                self._add_other_seeds(info, known.keys())

    def _add_other_seeds(self, drawn: TrialInfo, known: Collection[tuple[int, int]]) -> None:
        for seed in self.plan.seeds:
            if seed != drawn.seed and (drawn.group, seed) not in known:
                self._enqueue(drawn.setting, {SETTING_ATTR: drawn.group, SEED_ATTR: seed})

    def _enqueue(self, setting: TrialSetting, attrs: dict[str, Any]) -> None:
        self._study.enqueue_trial(dict(setting.values), user_attrs=attrs)

    def claim(self) -> ClaimedTrial | None:
        """Return a trial for this process to work on; None if none is left. Trials of ended processes come first."""
        with self._mutex, self.paths.planning():
            while True:
                infos = self.trials()
                for info in infos:
                    if info.is_running and (claimed := self._take_over(info)):
                        return claimed
                num_drawn = len({info.group for info in infos})
                is_waiting = any(trial.state == TrialState.WAITING for trial in self._study.get_trials(deepcopy=False))
                if not is_waiting and (self.plan.sampler == "grid" or num_drawn >= self.plan.settings):
                    return None
                if claimed := self._ask():
                    return claimed

    def _ask(self) -> ClaimedTrial | None:
        """Begin a new trial; return None if it is a duplicate or surplus, or if another process took it over."""
        asked = self._study.ask()
        info = next((info for info in self.trials() if info.frozen.number == asked.number), None)
        if info is None:
            asked.set_user_attr(SURPLUS_ATTR, True)
            self._study.tell(asked, state=TrialState.FAIL, skip_if_finished=True)
            return None
        return self._own(info, asked)

    def _take_over(self, info: TrialInfo) -> ClaimedTrial | None:
        """Return a running trial whose process has ended; None if it has not, or may not have."""
        attrs = info.frozen.user_attrs
        if info.frozen.number in self._claimed:
            return None
        host, directory = attrs.get(HOST_ATTR), attrs.get(DIRECTORY_ATTR)
        if host is None:
            if not _is_older(info, UNOWNED_S):
                return None
        elif (host, directory) != self._here and not self._is_abandoned(info):
            self.elsewhere.add(info.trial)
            return None
        return self._own(info, None)

    @cached_property
    def _here(self) -> tuple[str, str]:
        return socket.gethostname(), str(self.paths.telemetry_dir.resolve())

    def _is_abandoned(self, info: TrialInfo) -> bool:
        """True if nothing was written for a while to the run of a trial of another machine.

        It can be seen only if both machines share the telemetry directory, maybe under different paths.
        """
        run = find_run(self.paths.telemetry_dir, self.plan.name, info.trial)
        if run is not None:
            return is_left_alone(run)
        return info.frozen.user_attrs.get(DIRECTORY_ATTR) == self._here[1] and _is_older(info, ABANDONED_S)

    def _own(self, info: TrialInfo, asked: Trial | None) -> ClaimedTrial | None:
        """Lock a trial for this process, and draw its setting if that was not done."""
        lock = FileLock.try_acquire(self.paths.owner_lock(info.trial))
        if lock is None:
            return None
        if asked is None:
            asked = Trial(self._study, info.frozen._trial_id)  # pyright: ignore[reportPrivateUsage]
            current = next(info_ for info_ in self.trials() if info_.frozen.number == info.frozen.number)
            if current.state != TrialState.RUNNING:  # the other process reported its end a moment ago
                lock.release()
                return None
        self._claimed.add(info.frozen.number)
        for key, value in zip((HOST_ATTR, DIRECTORY_ATTR), self._here, strict=True):
            asked.set_user_attr(key, value)
        values = {key: suggest_value(asked, key, kind) for key, kind in self._distributions.items()}
        if SETTING_ATTR not in info.frozen.user_attrs:
            asked.set_user_attr(SEED_ATTR, info.seed)
            infos = {(other.group, other.seed): other for other in self.trials()}
            self._add_other_seeds(infos[info.group, info.seed], infos.keys())
        return ClaimedTrial(self, info, TrialSetting(values=values), asked, lock)

    def needed_memory(self, key: str) -> int:
        """Return the maximum of MEMORY_ATTR or GPU_MEMORY_ATTR over the trials; 0 before the first was measured."""
        return max((info.frozen.user_attrs.get(key, 0) for info in self.trials()), default=0)

    @property
    def study(self) -> Study:
        """The study of Optuna."""
        return self._study


class ClaimedTrial:
    """A trial that this process works on until it is released.

    Args:
        setting: Values of the varied options.
        trial: The trial in Optuna.
        lock: Lock by which other processes see that this one works on it.
    """

    def __init__(self, study: SweepStudy, info: TrialInfo, setting: TrialSetting, trial: Trial, lock: FileLock) -> None:
        self.number = info.trial
        """Number in the notes of its run."""
        self.seed = info.seed
        self.setting = setting
        self.plan = study.plan
        self.paths = study.paths
        self._study = study.study
        self.last_report = max(info.frozen.intermediate_values, default=0)
        """Last round, from 1, whose objective was reported; 0 before the first."""
        self._trial = trial
        self._lock = lock

    def __str__(self) -> str:
        return f"trial {self.number} ({self.setting}, seed {self.seed})"

    def report(self, number: int, value: float) -> bool:
        """Report the objective after a round, from 1, and return True if the run should be stopped."""
        self._trial.report(value, number)
        return self._trial.should_prune()

    def complete(self, run: Path, rounds: Sequence[RoundSummary]) -> None:
        """Store the result of a run that is done."""
        self._store_measures(run, rounds)
        values = [self.plan.value(name, rounds) for name in self.plan.objectives]
        self._study.tell(self._trial, values, state=TrialState.COMPLETE, skip_if_finished=True)

    def prune(self, run: Path, rounds: Sequence[RoundSummary]) -> None:
        """Store that the run was stopped by the pruner. Its value is the last one that was reported."""
        self._store_measures(run, rounds)
        self._study.tell(self._trial, state=TrialState.PRUNED, skip_if_finished=True)

    def fail(self, reason: str, run: Path | None = None) -> None:
        """Store that the run failed."""
        if run is not None:
            self._trial.set_user_attr(RUN_ATTR, run.name)
        self._trial.set_user_attr(REASON_ATTR, reason)
        self._study.tell(self._trial, state=TrialState.FAIL, skip_if_finished=True)

    def release(self) -> None:
        """Release the lock: another process may take the trial over if it has no result."""
        self._lock.release()

    def note_memory(self, memory: int | None, gpu_memory: int | None) -> None:
        """Store the maximum memory of the run, in bytes; None if it was not measured."""
        for key, value in ((MEMORY_ATTR, memory), (GPU_MEMORY_ATTR, gpu_memory)):
            if value is not None:
                self._trial.set_user_attr(key, value)

    def _store_measures(self, run: Path, rounds: Sequence[RoundSummary]) -> None:
        self._trial.set_user_attr(RUN_ATTR, run.name)
        for name in objective_measures():
            if rounds:
                self._trial.set_user_attr(name, self.plan.value(name, rounds))


def _is_older(info: TrialInfo, seconds: float) -> bool:
    started = info.frozen.datetime_start
    return started is None or datetime.now() - started > timedelta(seconds=seconds)


def _without_password(storage: BaseStorage | str) -> str:
    """Return the URL of a database, or the word for another storage, for a message."""
    return re.sub(r"//[^/]*@", "//", storage) if isinstance(storage, str) else "journal file"


def _difference(before: Any, value: Any) -> str:
    """Describe the first difference between two values of the identity of a plan."""
    if isinstance(before, dict) and isinstance(value, dict):
        old, new = cast("dict[str, Any]", before), cast("dict[str, Any]", value)
        for key in [*old, *new]:
            if old.get(key) != new.get(key):
                return f"{key} was {old.get(key, 'not given')}, now {new.get(key, 'not given')}"
        return "the order of the options differs"
    return f"was {before}, now {value}"


def first_random_setting(plan: SweepPlan) -> TrialSetting:
    """Return the setting of the first trial of random draws, which depends on the name of the study only."""
    silence_optuna()
    study = optuna.create_study(sampler=NumberedSampler("random", plan.name))
    trial = study.ask(make_distributions(plan))
    return TrialSetting(values=trial.params)
