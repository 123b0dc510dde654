"""Groups of runs with the same settings, their mean curves with intervals over the runs, and their differences.

Shapes: R runs, X positions on the x axis.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar, cast

from esper.common.formatting import format_config_value
from esper.common.intervals import CONFIDENCE_LEVEL, t_quantile

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from esper.recordings.history.run_info import RunInfo

SEED_KEY = "seed"
"""Key of the random seed. Runs that differ only in it repeat the same experiment."""
PLACE_KEYS = frozenset({
    "telemetry-dir", "data-dir", "devices", "policy-device", "checkpoint-every", "keep", "sync-seconds",
    "patience-minutes",
})  # fmt: skip
"""Keys of the place and the storage of a run, not of its training. The context seed is not one of them:
unless it is 0, it fixes the contexts of a family for all random seeds."""
_TASK_SETTINGS = ("slots", "training.")
"""Starts of the keys whose defaults depend on the task."""
MAX_GROUP_POINTS = 4000
"""Maximum number of positions of a group curve, several times the columns of a terminal. Runs of different lengths
share few values of recorded time, so that the union has as many positions as all runs together."""


class ConfiguredRun(Protocol):
    """A run with its configuration: `RunInfo`, and the runs that `compare` has read."""

    @property
    def title(self) -> str:
        """Name of the run on screen."""
        ...

    @property
    def config(self) -> Mapping[str, Any]:
        """Configuration, flat, with keys like `ppo.gamma`; empty if it is not known."""
        ...


RunT = TypeVar("RunT", bound=ConfiguredRun)


@dataclass(frozen=True)
class RunGroup(Generic[RunT]):
    """Runs that one curve stands for."""

    label: str
    """The values by which the group differs from the others: `entropy-coef 0.02, envs 8`."""
    values: dict[str, Any]
    """Values of the keys by which the runs were grouped, None where unset."""
    runs: tuple[RunT, ...]


class GroupCurve(NamedTuple):
    """Mean of the curves of a group, with the interval over its runs."""

    xs: NDArray[np.float64]
    """Positions on the x axis, ascending. [X]"""
    mean: NDArray[np.float64]
    """[X]"""
    low: NDArray[np.float64]
    """Lower end of the interval; NaN where fewer than two runs have a value. [X]"""
    high: NDArray[np.float64]
    """Upper end of the interval. [X]"""


def differing_keys(runs: Sequence[ConfiguredRun]) -> list[str]:
    """Return the configuration keys whose values differ between runs, in the order of the configuration.

    `PLACE_KEYS` are left out, and so are runs whose configuration is not known.
    """
    configs = [run.config for run in runs if run.config]
    keys = dict.fromkeys(key for config in configs for key in config if key not in PLACE_KEYS)
    return [key for key in keys if len({_identity(config.get(key)) for config in configs}) > 1]


def config_difference(run: ConfiguredRun, baseline: ConfiguredRun) -> list[tuple[str, Any, Any]]:
    """Return the keys in which two runs differ, each with the value of the run and that of the baseline."""
    return [(key, run.config.get(key), baseline.config.get(key)) for key in differing_keys([run, baseline])]


def group_runs(runs: Sequence[RunT], keys: Sequence[str] | None = None) -> list[RunGroup[RunT]]:
    """Group runs by configuration keys.

    Args:
        runs: Runs; the groups keep their order. A run whose configuration is not known is a group of its own.
        keys: Keys to group by; None for all keys that differ but the random seed.
    """
    if keys is None:
        keys = [key for key in differing_keys(runs) if key != SEED_KEY]
    found: dict[Hashable, list[RunT]] = {}
    for index, run in enumerate(runs):
        key = tuple(_identity(run.config.get(key)) for key in keys) if run.config else index
        found.setdefault(key, []).append(run)
    values = [{key: members[0].config.get(key) for key in keys} for members in found.values()]
    named = _names_in_labels(keys, values)
    return [
        RunGroup(_label(members, of_group, named), of_group if members[0].config else {}, tuple(members))
        for members, of_group in zip(found.values(), values, strict=True)
    ]


def _label(members: Sequence[ConfiguredRun], values: Mapping[str, Any], named: Mapping[str, str]) -> str:
    """Return the label of a group.

    Args:
        members: Runs of the group.
        values: Their values of the keys.
        named: Keys that differ between the groups, with the name of each in labels.
    """
    if members[0].config and named:
        return ", ".join(f"{name} {format_config_value(values[key])}" for key, name in named.items())
    return members[0].title if len(members) == 1 else "all runs"


def _telling_keys(keys: Sequence[str], values: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys that differ between groups, without the settings of tasks that follow from the task.

    Args:
        keys: Keys by which the runs were grouped.
        values: Their values in each group.
    """

    def distinct(*names: str) -> int:
        return len({tuple(_identity(of_group[name]) for name in names) for of_group in values})

    def follows_from_task(key: str) -> bool:
        return key.startswith(_TASK_SETTINGS) and distinct("task", key) == distinct("task")

    return [key for key in keys if distinct(key) > 1 and not ("task" in keys and follows_from_task(key))]


def _names_in_labels(keys: Sequence[str], values: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the short name of each key that a label of a group has, in their order; arguments as `_telling_keys`."""
    return _short_names(_by_distinction(_telling_keys(keys, values), values))


def _by_distinction(keys: Sequence[str], values: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys in a new order: those that tell the most groups apart come first, because labels are cut."""
    order: list[str] = []
    rest = list(keys)

    def distinct(key: str) -> int:
        return len({tuple(_identity(of_group[name]) for name in (*order, key)) for of_group in values})

    while rest:
        order.append(max(rest, key=lambda key: (key != SEED_KEY, distinct(key))))
        rest.remove(order[-1])
    return order


def study_settings(runs: Iterable[RunInfo]) -> dict[str, dict[str, str]]:
    """Return the settings that differ between the runs of a study, as text, keyed by run and by short name."""
    studies: dict[str, list[RunInfo]] = {}
    for run in runs:
        if run.study:
            studies.setdefault(run.study, []).append(run)
    found: dict[str, dict[str, str]] = {}
    for of_study in studies.values():
        keys = differing_keys(of_study)
        values = [{key: run.config.get(key) for key in keys} for run in of_study]
        named = _names_in_labels(keys, values)
        for run, of_run in zip(of_study, values, strict=True):
            found[run.run] = {name: format_config_value(of_run[key]) for key, name in named.items()}
    return found


def _short_names(keys: Sequence[str]) -> dict[str, str]:
    """Return the part of each key after its table, or the whole key where two keys share that part."""
    lasts = Counter(key.rpartition(".")[2] for key in keys)
    return {key: last if lasts[last := key.rpartition(".")[2]] == 1 else key for key in keys}


def _identity(value: Any) -> Hashable:
    """Return a key of a value of a configuration. All absent values are the same, as `format_config_value` prints."""
    if isinstance(value, list | tuple):
        return tuple(map(_identity, cast("Sequence[Any]", value))) or None
    return None if value == "" else value


def group_curve(curves: Sequence[tuple[ArrayLike, ArrayLike]], level: float = CONFIDENCE_LEVEL) -> GroupCurve:
    """Return the mean of some curves, with its t interval at each position.

    A run has a value within its own range: between two of its points, on the line through them. A value that is not
    finite does not count, nor do the lines to it. The positions are those of all runs at which at least two of them
    have a value; at most `MAX_GROUP_POINTS` of them, evenly chosen.

    Args:
        curves: Positions and values of each run, ascending. Runs without points are ignored; the only one with points
            keeps its own positions.
        level: Confidence level, 0 to 1.
    """
    import numpy as np

    pairs = [(np.asarray(xs, float), np.asarray(ys, float)) for xs, ys in curves]
    pairs = [(xs, np.where(np.isfinite(ys), ys, np.nan)) for xs, ys in pairs if len(xs)]
    if not pairs:
        return GroupCurve(*(np.zeros(0) for _ in range(4)))
    xs_X = np.unique(np.concatenate([xs for xs, _ in pairs]))
    if len(xs_X) > MAX_GROUP_POINTS:
        xs_X = xs_X[np.rint(np.linspace(0, len(xs_X) - 1, MAX_GROUP_POINTS)).astype(int)]
    value_RX = np.stack([np.interp(xs_X, xs, ys, left=np.nan, right=np.nan) for xs, ys in pairs])
    count_X = np.isfinite(value_RX).sum(0)
    kept = count_X >= min(len(pairs), 2)
    xs_X, value_RX, count_X = xs_X[kept], value_RX[:, kept], count_X[kept]
    mean_X = np.nansum(value_RX, 0) / count_X
    variance_X = np.nansum((value_RX - mean_X) ** 2, 0) / np.maximum(count_X - 1, 1)
    quantiles = np.array([np.nan, np.nan, *(t_quantile(count, level) for count in range(2, len(pairs) + 1))])
    half_X = quantiles[count_X] * np.sqrt(variance_X / count_X)
    return GroupCurve(xs_X, mean_X, mean_X - half_X, mean_X + half_X)


def round_means(
    xs: NDArray[np.float64], values: NDArray[np.float64], rounds: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the mean of the values of each round, at the last position of the round.

    Within an episode, most quantities repeat the same course in every round, which hides their course over the rounds.
    A last round that is not finished is left out, unless it is the only one. Values that are not finite do not count.

    Args:
        xs: Positions on the x axis, ascending. [X]
        values: [X]
        rounds: Position of each value on an axis on which a round ends at its number. [X]
    """
    import numpy as np

    number = np.ceil(rounds - 1e-9)
    ends = np.flatnonzero(np.append(np.diff(number) > 0, True)) if len(number) else np.zeros(0, int)
    if len(ends) > 1 and rounds[-1] < number[-1] - 1e-9:
        ends = ends[:-1]
    if not len(ends):
        return xs, values
    finite = np.isfinite(values)
    starts = np.append(0, ends[:-1] + 1)
    counts = np.add.reduceat(finite.astype(float)[: ends[-1] + 1], starts)
    sums = np.add.reduceat(np.where(finite, values, 0.0)[: ends[-1] + 1], starts)
    return xs[ends], np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def difference_curve(group: GroupCurve, baseline: GroupCurve) -> GroupCurve:
    """Return the mean of a group minus that of a baseline, at the positions of both within their common range.

    The half-widths of both intervals are added in quadrature. The difference has no interval where one of the curves
    has none, because the noise of a single run is not known.
    """
    import numpy as np

    if not len(group.xs) or not len(baseline.xs):
        return GroupCurve(*(np.zeros(0) for _ in range(4)))
    first, last = max(group.xs[0], baseline.xs[0]), min(group.xs[-1], baseline.xs[-1])
    xs = np.union1d(group.xs, baseline.xs)
    xs = xs[(xs >= first) & (xs <= last)]
    mean, of_baseline = (np.interp(xs, curve.xs, curve.mean) for curve in (group, baseline))
    half = np.hypot(*(np.interp(xs, curve.xs, curve.high - curve.mean) for curve in (group, baseline)))
    difference = mean - of_baseline
    return GroupCurve(xs, difference, difference - half, difference + half)
