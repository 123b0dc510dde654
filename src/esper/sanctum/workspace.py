"""The workspace: all runs of a telemetry directory, with the user's filter, sort order, selection and groups.

A model without widgets. It outlives the screens that show it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from esper.common.control import RequestKind
from esper.common.formatting import strip_control
from esper.common.intervals import CONFIDENCE_LEVEL, joint_level
from esper.common.score_scale import common_scale
from esper.recordings.files.notes import BASELINE_TAG, RunNotes
from esper.recordings.history.curve_store import AXES
from esper.recordings.history.run_cache import RunCache, default_run_cache
from esper.recordings.history.run_curves import MAX_RUNS, RunCurveLibrary
from esper.recordings.history.run_filter import DEFAULT_SORT_KEY, RunFilter, is_descending, parse_run_filter, sort_runs
from esper.recordings.history.run_groups import (
    GroupCurve,
    RunGroup,
    difference_curve,
    group_curve,
    group_runs,
    round_means,
    study_settings,
)
from esper.recordings.history.run_index import RunIndex
from esper.recordings.history.run_info import RunInfo
from esper.sanctum.run_changes import LiveRunRequests, change_notes, delete_run

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

INDEX_SHARE = 0.5
"""Fraction of the time of a tick that the index may take; the curves have the rest."""
MAX_SELECTED = MAX_RUNS - 1
"""Maximum number of selected runs, because the library keeps the curves of so many and of the baseline."""
NUM_COLOURS = 8
"""Number of colours of selected runs; letters tell apart those with equal colours."""
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
"""Letters of selected runs; after the last one they repeat."""

CURVES_INTERVAL_S = 0.5
"""Seconds between two drawings of the curves while runs are read: a page of charts takes longer than a tick."""
REREAD_S = 0.05
"""Maximum seconds for reading after a change of a run."""

ROUND_AXIS, STEP_AXIS = AXES[:2]


class Grouping(Enum):
    """Ways to group the shown runs; each group has one curve."""

    SEEDS = "runs that differ only in the random seed"
    ALONE = "each run alone"
    KEYS = "by keys"


class ShownGroup(NamedTuple):
    """A group of shown runs with its mark."""

    group: RunGroup[RunInfo]
    mark: int | None
    """Index of its letter and of its colour; None for the highlighted run while no run is selected."""
    label: str
    """Name of the group, with the number of its runs if it has several, and of those that the list does not show."""

    @property
    def letter(self) -> str:
        """Letter of the group; empty if no run is selected."""
        return "" if self.mark is None else LETTERS[self.mark % len(LETTERS)]

    @property
    def role(self) -> str:
        """Style role of its curve and of its letter."""
        return "curve" if self.mark is None else f"series{self.mark % NUM_COLOURS}"


class Workspace:
    """Runs of a telemetry directory and the choices of the user.

    Args:
        telemetry_dir: Directory that contains the runs.
        uses_cache: Keep information and curves of ended runs in the cache directory of the user.
    """

    def __init__(self, telemetry_dir: Path, *, uses_cache: bool = True) -> None:
        self.telemetry_dir = telemetry_dir
        cache = RunCache(default_run_cache() if uses_cache else None)
        self.index = RunIndex(telemetry_dir, cache)
        self.library = RunCurveLibrary(cache)
        self.was_read = False
        """True after all runs were read once."""
        self.version = 0
        """Incremented when runs, filter, order, selection, groups or the highlighted run change."""
        self.groups_version = 0
        """Incremented when the groups, or whether differences are shown, may have changed."""
        self.filter: RunFilter = parse_run_filter("", [])
        self.sort_key, self.is_reversed = DEFAULT_SORT_KEY, False
        self.grouping = Grouping.SEEDS
        self.group_keys: tuple[str, ...] = ()
        """Keys of the grouping by keys."""
        self.shows_difference = False
        """True if the charts show differences to the group of the baseline."""
        self.hidden_panes: frozenset[str] | None = None
        """Panes that the user has hidden, of `runs` and `details`; None if the size of the terminal decides."""
        self.pane = "runs"
        """The pane that is shown where there is room for only one: `runs`, `charts` or `details`."""
        self.curves_version = 0
        """Version of the curves that the charts show. While many runs are read, it changes a few times per second."""
        self._next_curves = 0.0
        """Time of the clock of `tick` from which on further curves are shown while runs are read."""
        self._selected: dict[str, None] = {}
        """Names of the selected runs, in the order of the selection."""
        self._marks: dict[str, int] = {}
        """Last mark of each run that was selected. Keyed by run."""
        self._highlighted: str | None = None
        self._listed: list[RunInfo] = []
        self._by_name: dict[str, RunInfo] = {}
        self._settings: dict[str, dict[str, str]] = {}
        """Settings that differ between the runs of a study, as text. Keyed by run and by short name."""
        self._groups: tuple[Hashable, list[ShownGroup]] = (None, [])
        self._curves: dict[tuple[str, str, bool], list[GroupCurve]] = {}
        """Curves of all groups, for `_curves_key`. Keyed by curve, x axis, and whether they are differences."""
        self._limits: dict[str, tuple[float, float]] = {}
        """Ends of the x axes, for `_curves_key`. Keyed by axis."""
        self._curves_key: Hashable = None
        self.requests = LiveRunRequests()
        """Requests to the live runs."""
        self._messages: list[str] = []
        self._reported: set[str] = set()
        """Notices that were messages already."""

    # Runs

    def tick(self, within: float) -> bool:
        """Read changed runs and wanted curves for at most `within` seconds. Return True if anything has changed."""
        began = time.perf_counter()
        before = self.version, self.curves_version
        self._poll_index(within * INDEX_SHARE)
        self.library.poll(max(within - (time.perf_counter() - began), 0.0))
        self._messages += self.requests.poll(self._by_name)
        for notice in (*self.index.notices, *self.library.notices):
            self._report(notice)
        if not self.is_reading or began >= self._next_curves:
            self._next_curves, self.curves_version = began + CURVES_INTERVAL_S, self.library.version
        return before != (self.version, self.curves_version) or bool(self._messages)

    @property
    def is_reading(self) -> bool:
        """True while runs or curves are read for the first time, so that the next tick should follow at once."""
        return not self.was_read or self.library.fraction_read < 1

    def _poll_index(self, within: float = math.inf) -> None:
        try:
            changed = self.index.poll(within)
        except OSError as error:
            self._report(f"Cannot read {self.telemetry_dir}: {error.strerror}")
            return
        if changed or not self.was_read:
            self.was_read = self.was_read or self.index.is_complete
            self._arrange()

    def _report(self, text: str) -> None:
        """Add a message, once."""
        if text not in self._reported:
            self._reported.add(text)
            self._messages.append(text)

    @property
    def runs(self) -> Sequence[RunInfo]:
        """All runs, including those that the filter hides."""
        return self.index.runs

    @property
    def listed(self) -> Sequence[RunInfo]:
        """The runs that match the filter, sorted; the baseline is the first."""
        return self._listed

    @property
    def baseline(self) -> RunInfo | None:
        """The run with the tag of the baseline, of several the one written to last; None without one."""
        tagged = [run for run in self.index.runs if BASELINE_TAG in run.tags]
        return max(tagged, key=lambda run: run.written, default=None)

    def _arrange(self) -> None:
        """Filter and sort the runs again."""
        place = next((place for place, run in enumerate(self._listed) if run.run == self._highlighted), 0)
        runs, baseline = self.index.runs, self.baseline
        self._by_name = {run.run: run for run in runs}
        self._settings = study_settings(runs)
        matching = [run for run in runs if self.filter.matches(run)]
        self._listed = sort_runs(matching, self.sort_key, reverse=self.is_reversed)
        self._listed.sort(key=lambda run: run is not baseline)
        names = {run.run for run in self._listed}
        if self._highlighted not in names:  # the run that took its place
            self._highlighted = self._listed[min(place, len(self._listed) - 1)].run if self._listed else None
        self._selected = {name: None for name in self._selected if name in self._by_name}
        self._note_groups()

    def _note_groups(self) -> None:
        self.version += 1
        self.groups_version += 1

    def filter_by(self, text: str) -> None:
        """List only runs that match a filter.

        Raises:
            FilterError: The text is no filter.
        """
        self.filter = parse_run_filter(text, self.index.runs)
        self._arrange()

    def sort_by(self, key: str) -> None:
        """Sort by a key, in its initial order."""
        self.sort_key, self.is_reversed = key, False
        self._arrange()

    @property
    def is_descending(self) -> bool:
        """True if the runs with the largest values are the first."""
        return is_descending(self.sort_key, common_scale(run.score_scale for run in self._listed)) != self.is_reversed

    def reverse(self) -> None:
        """Reverse the order."""
        self.is_reversed = not self.is_reversed
        self._arrange()

    @property
    def highlighted(self) -> RunInfo | None:
        """The run under the cursor; None if no run is listed."""
        return self._by_name.get(self._highlighted) if self._highlighted is not None else None

    def highlight(self, run: str) -> None:
        """Move the cursor to a run."""
        if run != self._highlighted:
            self._highlighted = run
            self.version += 1
            self.groups_version += not self._selected  # else the selected runs are shown

    def title_of(self, run: RunInfo, width: int | None = None) -> str:
        """Return the name of a run on screen; without a name of its own, a run of a study has its settings as a name.

        Args:
            width: Number of columns in which the values without the names of the settings are to fit, if necessary.
        """
        settings = self._settings.get(run.run)
        if run.name or not settings:
            return run.title
        text = ", ".join(f"{name} {value}" for name, value in settings.items())
        return text if width is None or len(text) <= width else ", ".join(settings.values())

    # Selection and groups

    @property
    def num_selected(self) -> int:
        """Number of selected runs."""
        return len(self._selected)

    @property
    def num_unlisted(self) -> int:
        """Number of selected runs that the list does not show, because of the filter, or because they are archived."""
        return self._count_unlisted(self._selected)

    def _count_unlisted(self, names: Iterable[str]) -> int:
        return len({*names} - {run.run for run in self._listed})

    def runs_with(self, curve: str) -> list[RunInfo]:
        """Return the shown runs that have a curve."""
        return [run for run in self.shown if curve in self.library.names(Path(run.path))]

    def toggle_selected(self, run: str) -> None:
        """Select a run, or no longer."""
        if run in self._selected:
            del self._selected[run]
        else:
            self._select([run])
        self._note_groups()

    def toggle_all(self) -> None:
        """Select all listed runs; if all are selected, none."""
        names = [run.run for run in self._listed]
        if self._selected and (self._selected.keys() >= set(names) or len(self._selected) == MAX_SELECTED):
            self._selected.clear()
        else:
            self._select(names)
        self._note_groups()

    def _select(self, names: Sequence[str]) -> None:
        selected = list(dict.fromkeys([*self._selected, *names]))
        self._selected = dict.fromkeys(selected[:MAX_SELECTED])
        if len(selected) > MAX_SELECTED:
            self._messages.append(f"At most {MAX_SELECTED} runs can be selected.")

    @property
    def shown(self) -> list[RunInfo]:
        """The runs of the charts: the selected ones, or the highlighted one if none is selected."""
        if self._selected:
            return [self._by_name[name] for name in self._selected]
        return [self.highlighted] if self.highlighted is not None else []

    @property
    def groups(self) -> list[ShownGroup]:
        """Groups of the shown runs, in the order of their marks."""
        if self._groups[0] != self.groups_version:
            groups = self._group(self.shown)
            marks = self._mark(groups) if self._selected else [None] * len(groups)
            labels = map(self._label, groups)
            shown = [ShownGroup(*found) for found in zip(groups, marks, labels, strict=True)]
            shown.sort(key=lambda item: item.mark or 0)
            self._groups = self.groups_version, shown
        return self._groups[1]

    def _mark(self, groups: Sequence[RunGroup[RunInfo]]) -> list[int]:
        """Return a mark for each group: one that its runs had before, so that their colour stays, or else a free one.

        A few groups get the first marks, which all have different colours.
        """
        limit = max(len(groups), NUM_COLOURS)
        marks: list[int | None] = []
        for group in groups:
            former = (self._marks.get(run.run, limit) for run in group.runs)
            marks.append(next((mark for mark in former if mark < limit and mark not in marks), None))
        free = iter(sorted(set(range(limit)) - set(marks)))
        found = [next(free) if mark is None else mark for mark in marks]
        for group, mark in zip(groups, found, strict=True):
            self._marks.update((run.run, mark) for run in group.runs)
        return found

    def _label(self, group: RunGroup[RunInfo]) -> str:
        first, count, hidden = group.runs[0], len(group.runs), self._count_unlisted(run.run for run in group.runs)
        label = self.title_of(first) if group.label == first.title else group.label
        notes = [str(count)] * (count > 1) + [f"{hidden} not listed"] * (hidden > 0)
        return strip_control(f"{label} ({', '.join(notes)})" if notes else label)

    def _group(self, runs: Sequence[RunInfo]) -> list[RunGroup[RunInfo]]:
        if self.grouping is Grouping.ALONE:
            return [RunGroup(run.title, {}, (run,)) for run in runs]
        return group_runs(runs, self.group_keys if self.grouping is Grouping.KEYS else None)

    def group_of(self, run: str) -> ShownGroup | None:
        """Return the group of a selected run; None if it is not selected."""
        if run not in self._selected:
            return None
        return next(group for group in self.groups if any(run == member.run for member in group.group.runs))

    @property
    def main_group(self) -> ShownGroup | None:
        """The group of the highlighted run; the first group if it is in none; None without a shown run."""
        groups, highlighted = self.groups, self.highlighted
        found = (group for group in groups if highlighted is not None and _contains(group.group, highlighted))
        return next(found, groups[0] if groups else None)

    def group_by(self, grouping: Grouping, keys: Sequence[str] = ()) -> None:
        """Group the shown runs in another way.

        Args:
            keys: Configuration keys, for `Grouping.KEYS`.
        """
        self.grouping, self.group_keys = grouping, tuple(keys)
        self._note_groups()

    def toggle_difference(self) -> bool:
        """Show differences to the baseline, or the values themselves. Return False if there is no baseline."""
        self.shows_difference = not self.shows_difference and self.baseline is not None
        self._note_groups()
        return self.baseline is not None

    # Curves

    def curve_names(self) -> list[str]:
        """Return the names of the curves of the shown runs, in the order of the first run that has each."""
        return list(dict.fromkeys(name for run in self.shown for name in self.library.names(Path(run.path))))

    @property
    def num_differences(self) -> int:
        """Number of groups that are compared with the baseline; 0 without one."""
        baseline = self.baseline
        return sum(not self._is_reference(group, baseline) for group in self.groups) if baseline else 0

    def curves(self, name: str, axis: str) -> list[tuple[ShownGroup, GroupCurve]]:
        """Return a curve of each group that has points: its mean over the runs; or its difference to the baseline.

        An interval of a mean holds for its group. Those of differences are wider: at one position, all of them contain
        the true differences with a probability of at least 95 %, so that one beyond 0 is no accident of their number.

        Args:
            axis: X axis, one of `AXES`. On all but that of steps, each point is the mean of a round.
        """
        baseline = self.baseline if self.shows_difference else None
        self._drop_old_curves()
        place = name, axis, baseline is not None
        if place not in self._curves:
            level = joint_level(max(self.num_differences, 1)) if baseline is not None else CONFIDENCE_LEVEL
            curves = [self._mean(group.group.runs, name, axis, level) for group in self.groups]
            if baseline is not None:
                reference = self._mean(self._baseline_group(baseline), name, axis, level)
                curves = [difference_curve(curve, reference) for curve in curves]
            self._curves[place] = curves
        found = zip(self.groups, self._curves[place], strict=True)
        return [(group, curve) for group, curve in found if len(curve.xs) and not self._is_reference(group, baseline)]

    def is_averaged(self, name: str, axis: str) -> bool:
        """Return True if a curve has several points per round, of which `curves` returns the mean."""
        points = (len(self.library.curve(Path(run.path), name).steps) > (run.round or 0) for run in self.shown)
        return axis != STEP_AXIS and any(points)

    def _drop_old_curves(self) -> None:
        key = self.groups_version, self.curves_version
        if key != self._curves_key:
            self._curves_key, self._curves, self._limits = key, {}, {}

    def _baseline_group(self, baseline: RunInfo) -> Sequence[RunInfo]:
        """Return the runs of the group of the baseline; the baseline alone if it is in no group."""
        return next((shown.group.runs for shown in self.groups if _contains(shown.group, baseline)), (baseline,))

    def _is_reference(self, group: ShownGroup, baseline: RunInfo | None) -> bool:
        return baseline is not None and _contains(group.group, baseline)

    def _mean(self, runs: Sequence[RunInfo], name: str, axis: str, level: float) -> GroupCurve:
        found: list[tuple[ArrayLike, ArrayLike]] = []
        for path in (Path(run.path) for run in runs):
            steps, values = self.library.curve(path, name)
            if not len(steps):
                continue
            xs = self.library.x_values(path, steps, axis)
            if axis != STEP_AXIS:
                xs, values = round_means(xs, values, self.library.x_values(path, steps, ROUND_AXIS))
            found.append((xs, values))
        return group_curve(found, level)

    def x_limits(self, axis: str) -> tuple[float, float]:
        """Return the first and last position of the shown runs on an x axis; zeros without a point."""
        self._drop_old_curves()
        if axis not in self._limits:
            ends: list[float] = []
            for path in (Path(run.path) for run in self.shown):
                names = self.library.names(path)
                name = next((name for name in names if name.endswith("/median")), names[0] if names else "")
                steps = self.library.curve(path, name).steps
                if len(steps):
                    first, last = self.library.x_values(path, steps[[0, -1]], axis).tolist()
                    ends += [min(math.ceil(first), last) if axis == ROUND_AXIS else first, last]
            self._limits[axis] = (min(ends), max(ends)) if ends else (0.0, 0.0)
        return self._limits[axis]

    # Changes of runs

    def toggle_baseline(self, run: RunInfo) -> None:
        """Make a run the baseline in place of another one, or no longer. Raises `RunChangeError`."""
        was_baseline = BASELINE_TAG in run.tags
        former = [info for info in self.index.runs if BASELINE_TAG in info.tags]
        if not was_baseline:  # first, because it may be refused
            self.change_notes(run, lambda notes: replace(notes, tags=(*notes.tags, BASELINE_TAG)))
        for tagged in former:
            self.change_notes(tagged, lambda notes: replace(notes, tags=_without_baseline(notes.tags)))
        if was_baseline and self.baseline is None:
            self.shows_difference = False

    def toggle_archived(self, run: RunInfo) -> None:
        """Archive a run, or no longer. Raises `RunChangeError`."""
        self.change_notes(run, lambda notes: replace(notes, archived=not notes.archived))

    def change_notes(self, run: RunInfo, change: Callable[[RunNotes], RunNotes]) -> None:
        """Replace the notes on a run by the result of a function of the stored ones. Raises `RunChangeError`."""
        change_notes(run, change)
        self._reread(run)

    def delete(self, run: RunInfo) -> None:
        """Delete the directory of a run that no process writes to. Raises `RunChangeError`."""
        try:
            delete_run(run)
        finally:
            self.library.forget(Path(run.path))
            self._reread(run)

    def _reread(self, run: RunInfo) -> None:
        """Read a changed run at once, so that the screen shows the change."""
        self.index.refresh(run.run)
        self._poll_index(REREAD_S)

    def request(self, run: RunInfo, kind: RequestKind) -> None:
        """Send a request to a live run; a pause of a paused one resumes it. Raises `RunChangeError`."""
        self.requests.send(run, kind)
        self.version += 1

    def pop_messages(self) -> list[str]:
        """Return the refused requests and the notices of index and curves since the last call."""
        messages, self._messages = self._messages, []
        return messages


def _contains(group: RunGroup[RunInfo], run: RunInfo) -> bool:
    return any(member.run == run.run for member in group.runs)


def _without_baseline(tags: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(tag for tag in tags if tag != BASELINE_TAG)
