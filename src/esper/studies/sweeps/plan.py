"""The file of a sweep: which options vary, over which random seeds, and how the runs are compared."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, cast, get_args, get_type_hints

import msgspec
from msgspec import Meta

from esper.common.configuration.config import Config, ConfigError, RandomSeed, Section, choices, unit
from esper.common.configuration.fields import ConfigField, list_fields
from esper.common.configuration.files import format_validation_error, read_toml, resolve_config
from esper.common.formatting import suggest
from esper.recordings.history.measures import MEASURES, objective_measures
from esper.recordings.history.run_groups import PLACE_KEYS
from esper.recordings.history.summary import RoundSummary

Value: TypeAlias = str | int | float
"""Value of a varied option."""
SamplerName = Literal["grid", "random", "tpe"]
MAX_OBJECTIVES = 2
MAX_NAME_CHARACTERS = 100
"""Limit for the name of a study, which is a part of the names of files."""
MAX_GRID_TRIALS = 10_000
"""Limit for a grid, which is a list in the storage: a journal file receives about a hundred trials per second."""
RANGE_KEYS = ("low", "high", "step", "log")
FILE_KEYS = {
    "seed": "list the random seeds in seeds = [1, 2, 3], outside the tables",
    "telemetry-dir": "give it to the command: --telemetry-dir DIR",
}
"""Options that neither [run] nor [vary] may have, and what to do instead."""

_RETURN_KEYS = {"reward", "ppo.gamma", "ppo.horizon", "counterfactual"}
"""Options on which the return of the same episode depends, besides the table `reward-weights`."""


class _SweepFile(Section, frozen=True, kw_only=True):
    """Keys of the file of a sweep."""

    name: str = ""
    """name of the study"""
    sampler: Annotated[
        SamplerName,
        choices(grid="all combinations of the values", random="random draws", tpe="Bayesian optimisation"),
    ] = "grid"
    """how settings are chosen"""
    settings: Annotated[int, Meta(ge=1, le=1_000_000), unit("settings")] | None = None
    """number of settings to draw"""
    seeds: Annotated[tuple[RandomSeed, ...], Meta(min_length=1)] = (0,)
    """random seeds of the runs of every setting"""
    objective: str | None = None
    """measure by which the settings are compared"""
    objectives: Annotated[list[str], Meta(min_length=1, max_length=MAX_OBJECTIVES)] | None = None
    """two measures by which the settings are compared"""
    over: Annotated[int, Meta(ge=1, le=1_000_000), unit("rounds")] = 5
    """last rounds over which a measure is averaged"""
    prune: bool = False
    """stop runs that are worse than the median of the others"""
    storage: str = ""
    """journal file or database URL"""
    run: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    """configuration of every run"""
    vary: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    """options that vary"""


@dataclass(frozen=True, kw_only=True)
class ValueRange:
    """Range of a numeric option."""

    low: float
    high: float
    step: float | None
    log: bool
    is_integer: bool

    def __str__(self) -> str:
        kind = ", log" if self.log else f", step {self.step:g}" if self.step is not None else ""
        return f"{self.low:g} to {self.high:g}{kind}"


@dataclass(frozen=True, kw_only=True)
class TrialSetting:
    """Values of the varied options, keyed like `ppo.gamma`, in the order of the file."""

    values: Mapping[str, Value]

    def __str__(self) -> str:
        return ", ".join(f"{key} {value_text(value)}" for key, value in self.values.items())


@dataclass(frozen=True, kw_only=True)
class SweepPlan:
    """A checked sweep."""

    file: Path
    name: str
    sampler: SamplerName
    settings: int
    """Number of settings."""
    seeds: tuple[int, ...]
    objectives: tuple[str, ...]
    """Names of the measures that are optimised."""
    over: int
    """Number of rounds, up to the last one, over which a measure is averaged."""
    prune: bool
    storage: str
    """Journal file or database URL; empty for the default."""
    run: Mapping[str, Any]
    """Options of every run, keyed like `ppo.gamma`."""
    vary: Mapping[str, tuple[Value, ...] | ValueRange]
    base: Config = field(default_factory=Config)
    """Configuration of one of the possible settings, for the options that do not vary."""

    @property
    def warning(self) -> str:
        """Why the objective does not compare the settings, one sentence for the user; empty if it does."""
        rulers = [key for key in self.vary if key in _RETURN_KEYS or key.startswith("reward-weights.")]
        if "return" not in self.objectives or not rulers:
            return ""
        return (
            f'{rulers[0]} changes how the return is measured, so settings differ in it anyway; use objective = "score"'
        )

    def value(self, objective: str, rounds: Sequence[RoundSummary]) -> float:
        """Return an objective of a run: the mean of its measure over the last rounds.

        Args:
            objective: Name of the measure.
            rounds: One or more finished rounds, in order.
        """
        return MEASURES[objective].mean_over(rounds[-self.over :])

    def describe_value(self, objective: str, rounds: Sequence[RoundSummary]) -> str:
        """Return an objective of a run with its name, as text. Arguments as for `value`."""
        measure = MEASURES[objective]
        return f"{measure.heading(rounds=min(self.over, len(rounds)))} {measure.text(self.value(objective, rounds))}"

    @property
    def num_trials(self) -> int:
        """Number of runs of the whole study."""
        return self.settings * len(self.seeds)

    def grid(self) -> Iterator[TrialSetting]:
        """Yield the settings of a grid: the value of the last option changes first."""
        axes = [cast("tuple[Value, ...]", values) for values in self.vary.values()]
        for values in itertools.product(*axes):
            yield TrialSetting(values=dict(zip(self.vary, values, strict=True)))

    def config(self, setting: TrialSetting, seed: int = 0) -> Config:
        """Return the configuration of a run. Raises ConfigError if values do not fit together."""
        options = {**self.run, **setting.values, "seed": seed}
        return resolve_config(self.file, {}, table=nest(options))

    def identity(self) -> dict[str, Any]:
        """Return everything that must be the same each time the study is started, as JSON values.

        The random seeds and the number of settings are not part of it, because a study may grow.
        """
        vary = {key: list(values) if isinstance(values, tuple) else vars(values) for key, values in self.vary.items()}
        return {
            "sampler": self.sampler,
            "objectives": list(self.objectives),
            "over": self.over,
            "prune": self.prune,
            "run": {key: value for key, value in self.run.items() if key not in PLACE_KEYS},
            "vary": vary,
        }


def read_plan(file: Path) -> SweepPlan:
    """Read and check the file of a sweep.

    Raises:
        ConfigError: It cannot be read, or a key or a value is not valid.
    """
    table = read_toml(file, f"sweep file {file}")
    names = [item.encode_name for item in msgspec.structs.fields(_SweepFile)]
    for key in table.keys() - names:
        if key in _fields() or key in _sections():
            raise ConfigError(f"{key!r} in {file} is an option of the runs; move it to [run] or [vary]")
        raise ConfigError(f"unknown key {key!r} in {file}; {suggest(key, names)}")
    try:
        found = msgspec.convert(table, _SweepFile)
    except msgspec.ValidationError as error:
        raise ConfigError(format_validation_error(str(error), table, {}, file, _SweepFile)) from None
    vary = {key: _varied(key, value, file) for key, value in _flat(found.vary, "[vary]", file).items()}
    run = _flat(found.run, "[run]", file)
    _check_file(found, vary, run, file)
    plan = SweepPlan(
        file=file,
        name=found.name or file.stem,
        sampler=found.sampler,
        settings=_num_settings(found, vary, file),
        seeds=tuple(found.seeds),
        objectives=_objectives(found, file),
        over=found.over,
        prune=found.prune,
        storage=found.storage,
        run=run,
        vary=vary,
    )
    base = _check_values(plan)
    return replace(plan, base=base, over=plan.over if "rounds" in vary else min(plan.over, base.rounds))


def value_text(value: Value) -> str:
    """Return a value of a varied option for people: numbers with six digits."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def check_name(name: str, where: str) -> None:
    """Check that the name of a study can be a part of a path. Raises ConfigError."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
        raise ConfigError(
            f"name {name!r} in {where} is not valid; use letters, digits, -, _ and ., and no - or . at the beginning"
        )
    if len(name) > MAX_NAME_CHARACTERS:
        raise ConfigError(f"name in {where} has {len(name)} characters; the limit is {MAX_NAME_CHARACTERS}")


def nest(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options, keyed like `ppo.gamma`, as tables."""
    table: dict[str, Any] = {}
    for key, value in options.items():
        section, _, name = key.rpartition(".")
        (table.setdefault(section, {}) if section else table)[name] = value
    return table


def _fields() -> dict[str, ConfigField]:
    return {item.key: item for item in list_fields(Config)}


def _sections() -> set[str]:
    return {item.table for item in _fields().values() if item.table}


def _flat(table: Mapping[str, Any], where: str, file: Path, prefix: str = "") -> dict[str, Any]:
    """Return the options of a table, keyed like `ppo.gamma`, after checking their names."""
    fields, found = _fields(), dict[str, Any]()
    sections = _sections()
    for name, value in table.items():
        key = prefix + name
        if key in sections and isinstance(value, dict):
            found |= _flat(cast("dict[str, Any]", value), where, file, f"{key}.")
        elif key in sections:
            first = next(option for option in fields if option.startswith(f"{key}."))
            raise ConfigError(f"{key!r} in {where} of {file} is a table of options; give one of them, such as {first}")
        elif key in FILE_KEYS:
            raise ConfigError(f"{key!r} cannot be in {where} of {file}; {FILE_KEYS[key]}")
        elif key not in fields:
            raise ConfigError(f"unknown option {key!r} in {where} of {file}; {suggest(key, fields)}")
        else:
            found[key] = value
    return found


def _varied(key: str, value: Any, file: Path) -> tuple[Value, ...] | ValueRange:
    """Return the values of an option, or its range."""
    where = f"{key} in [vary] of {file}"
    if key in PLACE_KEYS:
        raise ConfigError(f"{where} cannot vary, because it does not change what is trained; move it to [run]")
    if isinstance(value, dict):
        return _range(key, cast("dict[str, Any]", value), where)
    if not isinstance(value, list) or not value:
        raise ConfigError(
            f"{where} must be a list of values, such as [0.1, 0.2], or a range: {{ low = 0.1, high = 1.0 }}"
        )
    values = cast("list[Any]", value)
    for item in values:
        if isinstance(item, bool) or not isinstance(item, str | int | float):
            raise ConfigError(f"{where} has the value {item!r}; only numbers and texts can vary")
    if len(set(values)) < len(values):
        raise ConfigError(f"{where} has a value twice; remove one")
    return tuple(values)


def _range(key: str, table: Mapping[str, Any], where: str) -> ValueRange:
    for name in table:
        if name not in RANGE_KEYS:
            raise ConfigError(f"unknown key {name!r} of {where}; {suggest(name, RANGE_KEYS)}")
    option = _fields()[key]
    hint = get_type_hints(option.section)[option.name.replace("-", "_")]
    types = {hint, *get_args(hint)}
    if not types & {int, float}:
        raise ConfigError(f"{where} is not a number and has no range; give a list of values")
    low, high, step, log = (table.get(name) for name in RANGE_KEYS)
    is_integer = float not in types
    for name, number in (("low", low), ("high", high), ("step", step)):
        if number is None and name == "step":
            continue
        if number is None:
            raise ConfigError(f"{where} has no {name}; a range is {{ low = 0.1, high = 1.0 }}")
        if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
            raise ConfigError(f"{where} needs a number for {name}, not {number!r}")
        if is_integer and not isinstance(number, int):
            raise ConfigError(f"{where} is a whole number; {name} = {number!r} is not")
    assert isinstance(low, int | float)
    assert isinstance(high, int | float)
    if not isinstance(log, bool | None):
        raise ConfigError(f"{where} needs true or false for log, not {log!r}")
    if low >= high:
        raise ConfigError(f"{where} needs a low below high, not {low} and {high}")
    if log and low <= 0:
        raise ConfigError(f"{where} needs a low above 0 for log = true, not {low}")
    if log and step is not None:
        raise ConfigError(f"{where} cannot have both log and step; remove one")
    if step is not None and not 0 < step <= high - low:
        raise ConfigError(f"{where} needs a step above 0 and up to {high - low:g}, not {step}")
    if step is not None and (rest := (Decimal(str(high)) - Decimal(str(low))) % Decimal(str(step))):
        raise ConfigError(
            f"{where} does not reach high = {high} in steps of {step}; the last step is at {Decimal(str(high)) - rest}"
        )
    return ValueRange(low=low, high=high, step=step, log=bool(log), is_integer=is_integer)


def _objectives(found: _SweepFile, file: Path) -> tuple[str, ...]:
    if found.objective and found.objectives:
        raise ConfigError(f"{file} has both objective and objectives; remove one")
    names = tuple(found.objectives or ()) or (found.objective or "return",)
    for name in names:
        if name not in objective_measures():
            given = f"objectives = {found.objectives!r}" if found.objectives else f"objective = {name!r}"
            raise ConfigError(f"{given} in {file} is not valid; {suggest(name, objective_measures())}")
    if len(set(names)) < len(names):
        raise ConfigError(f"objectives in {file} has {names[0]} twice; remove one")
    if found.prune and len(names) > 1:
        raise ConfigError(f"prune in {file} needs one objective; Optuna does not prune with two")
    return names


def _num_settings(found: _SweepFile, vary: Mapping[str, tuple[Value, ...] | ValueRange], file: Path) -> int:
    if found.sampler == "grid":
        if found.settings is not None:
            raise ConfigError(f"settings in {file} is for sampler = random or tpe; a grid has all combinations")
        for key, values in vary.items():
            if isinstance(values, ValueRange):
                raise ConfigError(
                    f"{key} in [vary] of {file} is a range, which a grid cannot have; "
                    'give a list of values, or sampler = "random" or "tpe"'
                )
        count = math.prod(len(cast("tuple[Value, ...]", values)) for values in vary.values())
        if (num_trials := count * len(found.seeds)) > MAX_GRID_TRIALS:
            raise ConfigError(
                f"the grid of {file} has {num_trials:,} trials (settings × random seeds), and the limit is "
                f'{MAX_GRID_TRIALS:,}; give fewer values or seeds, or sampler = "random" or "tpe"'
            )
        return count
    if found.settings is None:
        raise ConfigError(f"{file} needs settings = N, the number of settings to draw with sampler = {found.sampler!r}")
    return found.settings


def _check_file(found: _SweepFile, vary: Mapping[str, Any], run: Mapping[str, Any], file: Path) -> None:
    check_name(found.name or file.stem, f"{file}")
    if not vary:
        raise ConfigError(f'{file} varies nothing; list options in [vary], such as "ppo.entropy-coef" = [0.0, 0.02]')
    if both := sorted(vary.keys() & run.keys()):
        raise ConfigError(f"{both[0]} is in [run] and in [vary] of {file}; remove one")
    if len(set(found.seeds)) < len(found.seeds):
        raise ConfigError(f"seeds in {file} has a random seed twice; remove one")


def _check_values(plan: SweepPlan) -> Config:
    """Check all settings of a grid, or else all values and ends of ranges. Return one configuration.

    Raises:
        ConfigError: A value is not valid, or fits no value of another option.
    """
    if plan.sampler == "grid":
        configs = [plan.config(setting) for setting in plan.grid()]
    else:
        singles = list(_single_values(plan.vary))
        configs = [_check_value(plan, single, singles) for single in singles]
    return configs[0]


def _check_value(plan: SweepPlan, single: dict[str, Value], others: Sequence[dict[str, Value]]) -> Config:
    """Check a value of an option, alone or with a value of another one. Return a configuration with it."""
    try:
        return plan.config(TrialSetting(values=single))
    except ConfigError:
        for other in others:
            with suppress(ConfigError):
                return plan.config(TrialSetting(values={**other, **single}))
        raise


def _single_values(vary: Mapping[str, tuple[Value, ...] | ValueRange]) -> Iterator[dict[str, Value]]:
    for key, values in vary.items():
        ends: Sequence[Value] = values if isinstance(values, tuple) else (values.low, values.high)
        yield from ({key: value} for value in ends)
