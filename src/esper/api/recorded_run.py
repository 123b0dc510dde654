"""A recording for Python sessions: its events, decisions, curves and tables. Importing this module needs no torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from esper.cli.commands.show import summary_table
from esper.common.formatting import suggest
from esper.common.plots.svg import SvgPlot
from esper.recordings import events as ev
from esper.recordings.candidates.candidates import Candidate
from esper.recordings.candidates.report import html_report, rank_candidates
from esper.recordings.effects.plantings import summarise_with_effects
from esper.recordings.files.runs import resolve_run
from esper.recordings.files.segments import ReadError
from esper.recordings.history.curves import Point, RunCurves, split_name
from esper.recordings.history.history import open_history
from esper.recordings.history.summary import RunSummary
from esper.recordings.history.tables import TABLES, ColumnType, Row, Table, event_rows

EventT = TypeVar("EventT", bound=ev.Event)

FRAME_LIBRARIES = ("polars", "pandas")
"""Libraries whose data frames `RecordedRun.table` and `query` return; the first that is installed."""


class RecordedDecision(NamedTuple):
    """A decision of a policy for an env."""

    round: int
    """Round, from 1."""
    step: int
    """Step, from 1."""
    env: int
    """Env, from 0."""
    op: str
    """`wait`, `germinate`, `advance`, `set_alpha`, `cull` or `fossilize`."""
    target: str | None
    """Slot; None for wait."""
    choices: dict[str, str]
    """Choice of each head that the op uses, but for the op, keyed by head: `slot`, `blueprint`, `style`, ..."""
    probability: float | None
    """Probability of the op, 0 to 1; None if the policy is deterministic."""


class Curve(NamedTuple):
    """Points of a curve, in the order in which they were recorded."""

    steps: list[int]
    """Steps of the run over all rounds, from 1."""
    values: list[float]
    """Values at these steps. Scores are fractions."""


class RecordedRun:
    """A recording, read as far as it was written when the object was made.

    Args:
        path: Run directory, or one file of events.

    Attributes:
        directory: Run directory, or the file of events.

    Raises:
        ReadError: The recording does not exist or cannot be read.
        ConfigError: It has no events yet.
    """

    def __init__(self, path: Path) -> None:
        self.directory = path
        self._history = open_history(path)
        self.summary: RunSummary = summarise_with_effects(self._history)
        """Summary, as `esper-sanctum show --json` prints it."""

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.summary.run

    @property
    def notices(self) -> Sequence[str]:
        """Sentences about damaged, missing and skipped parts of the recording."""
        return self.summary.notices

    @property
    def config(self) -> dict[str, Any]:
        """Resolved configuration."""
        return self.summary.config

    @property
    def search(self) -> list[Candidate]:
        """Candidates of a growth, the best first; empty for another run."""
        search = self.summary.search
        return [] if search is None else rank_candidates(search.candidates, search.info.objective)

    def events(
        self, kind: type[EventT] = ev.Event, *, round: int | None = None, env: int | None = None
    ) -> Iterator[EventT]:
        """Return an iterator over events in order, without those that a restored checkpoint undid.

        Args:
            kind: Type of the events, of `esper.recordings.events`; by default all.
            round: Round, from 1; None: all. Events that do not name a round, such as anomalies, belong to the round in
                progress.
            env: Env, from 0; None: all. Events of no single env are left out if it is given.

        Raises:
            ReadError: The recording has no such round or env.
        """
        first, last = (self._history.state_at(position) for position in (0, self._history.length))
        self._check_number("round", round, range(max(first.round, 1), last.round + 1))
        self._check_number("env", env, range(len(last.started.lanes) if last.started else 0))
        return self._events(kind, round, env)

    def _check_number(self, kind: str, number: int | None, known: range) -> None:
        """Raise ReadError if a round or env is not one of the recording."""
        if number is None or number in known:
            return
        found = f"{kind}s {known[0]} to {known[-1]}" if len(known) > 1 else f"{kind} {known[0]} only" if known else ""
        raise ReadError(f"{self.name} has no {kind} {number}; it has {found or f'no {kind} yet'}")

    def _events(self, kind: type[EventT], round: int | None, env: int | None) -> Iterator[EventT]:
        current = self._history.state_at(0).round  # above 0 in an excerpt
        for event in self._history.events():
            if isinstance(event, ev.RoundStarted):
                current = event.round
            if (
                isinstance(event, kind)
                and (round is None or getattr(event, "round", current) == round)
                and (env is None or getattr(event, "env", None) == env)
            ):
                yield event

    def decisions(self, *, round: int | None = None, env: int | None = None) -> list[RecordedDecision]:
        """Return the decisions of the policy, those to wait included. Arguments and errors as for `events`."""
        return [
            RecordedDecision(
                step.round,
                step.step,
                step.env,
                step.op,
                step.target,
                {head: choice.choice for head, choice in step.decision.items()},
                step.op_probability,
            )
            for step in self.events(ev.EnvStepped, round=round, env=env)
        ]

    def curves(self, *, per_env: bool = False) -> dict[str, Curve]:
        """Return the curves of the run, as its exports to TensorBoard and W&B have them, keyed by name.

        A name is a quantity and its owner, such as `loss/median` or `KL/policy`.

        Args:
            per_env: Also those of single envs.
        """
        curves: dict[str, Curve] = {}
        source = RunCurves(self._history.state_at(0), per_env=per_env)
        for event in self._history.events():
            for point in source.points(event):
                if isinstance(point, Point):
                    curve = curves.setdefault(point.curve, Curve([], []))
                    curve.steps.append(point.step)
                    curve.values.append(point.value)
        return curves

    def plot(self, *names: str) -> SvgPlot:
        """Return a picture of some curves, which a notebook shows.

        Args:
            names: Keys of `curves`; by default minimum, median and maximum of the final scores of the episodes.

        Raises:
            KeyError: There is no such curve; the message suggests the nearest ones.
        """
        curves = self.curves(per_env=any(split_name(name)[1].startswith("env ") for name in names))
        chosen = names or [f"final {self.summary.score_name}/{which}" for which in ("min", "median", "max")]
        for name in names:
            if name not in curves:
                raise KeyError(f"{name!r} is not a curve of {self.name}; {suggest(name, curves)}")
        found = {name: curves.get(name, Curve([], [])) for name in chosen}
        return SvgPlot({name: list(zip(*curve, strict=True)) for name, curve in found.items()}, "step of the run")

    def table(self, name: str = "EnvStepped") -> Any:
        """Return a table as a data frame of polars or pandas, whichever is installed, with the columns of `export`.

        The types of the columns depend on the table alone. Values that were not measured are null in polars; in pandas
        they are NA, NaT in times, None in lists, and NaN in numbers, as a measured NaN is.

        Args:
            name: Type of the events, or `SlotReading`, `Metric`, `Phase` or `GateCheck`.

        Raises:
            KeyError: There is no such table; the message suggests the nearest ones.
            ImportError: Neither library is installed.
        """
        tables = {table.name: table for table in TABLES}
        if name not in tables:
            raise KeyError(f"{name!r} is not a table; {suggest(name, tables)}")
        library = find_frame_library()
        return _data_frame(library, tables[name], list(event_rows(tables[name], self._history, self.name)))

    def __str__(self) -> str:
        return "\n".join(summary_table(self.summary).lines())

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        table, search = summary_table(self.summary).html(), self.summary.search
        return table + (self.plot().svg if search is None else html_report(search.standings(), self.summary.score_name))


def read_run(run: str | Path = "last", telemetry_dir: str | Path = "telemetry") -> RecordedRun:
    """Read a recording: events, decisions, curves and tables, without torch.

    Args:
        run: Run name, path, or `last`.
        telemetry_dir: Directory in which run names are looked up.

    Raises:
        ReadError: The recording does not exist or cannot be read.
        ConfigError: It has no events yet.
    """
    return RecordedRun(resolve_run(str(run), Path(telemetry_dir)))


def find_frame_library() -> str:
    """Return the library whose data frames are returned. Raises ImportError if none is installed."""
    library = next((library for library in FRAME_LIBRARIES if find_spec(library)), None)
    if library is None:
        raise ImportError(f"a data frame needs {' or '.join(FRAME_LIBRARIES)}; install one of them")
    return library


def _data_frame(library: str, table: Table, rows: Sequence[Row]) -> Any:
    """Return rows of a table as a data frame. Types are given, because a column without values has no type to infer."""
    frames: Any = import_module(library)
    values = {column.name: column.values(rows) for column in table.columns}
    if library == "pandas":
        types = {column.name: _PANDAS_TYPES[column.type] for column in table.columns}
        return frames.DataFrame({name: frames.Series(values[name], dtype=types[name]) for name in values})
    types = {
        ColumnType.TEXT: frames.String,
        ColumnType.TEXTS: frames.List(frames.String),
        ColumnType.INTEGER: frames.Int64,
        ColumnType.NUMBER: frames.Float64,
        ColumnType.FLAG: frames.Boolean,
        ColumnType.TIME: frames.Datetime("us", "UTC"),
    }
    return frames.DataFrame(values, schema={column.name: types[column.type] for column in table.columns})


_PANDAS_TYPES = {
    ColumnType.TEXT: "string",
    ColumnType.TEXTS: "object",
    ColumnType.INTEGER: "Int64",
    ColumnType.NUMBER: "float64",
    ColumnType.FLAG: "boolean",
    ColumnType.TIME: "datetime64[us, UTC]",
}
