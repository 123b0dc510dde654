"""The growth screen: stages of every slot by step, charts of the population, and results of each blueprint."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import lru_cache, partial
from itertools import groupby
from pathlib import Path

from rich.segment import Segment
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.geometry import Size

from esper.common.configuration.config import Config
from esper.common.formatting import APPROXIMATE, NOT_MEASURED, short_score_name, strip_control
from esper.common.intervals import SampleMean
from esper.common.plots.sparkline import sample_to_width
from esper.recordings.effects.paying import HEADING, paying_command
from esper.recordings.events import RunStarted
from esper.recordings.files.runs import shortest_name
from esper.recordings.history.summary import BlueprintWorth
from esper.recordings.state.series import BlueprintStats
from esper.recordings.state.state import SERIES_POINTS, EnvState
from esper.sanctum.keys import KeyCategory, bindings
from esper.sanctum.screens.base import RunScreen
from esper.sanctum.symbols import (
    SEVERITIES,
    STAGE_BY_LETTER,
    STAGES,
    Cell,
    return_cell,
    score_cell,
    score_heading,
    shorten_name,
    slot_labels,
    wrap_cells,
)
from esper.sanctum.view import ViewState
from esper.sanctum.widgets.chart_grid import ChartGrid
from esper.sanctum.widgets.env_panel import EnvRowsPanel, step_axis
from esper.sanctum.widgets.paced_panel import PacedPanel
from esper.sanctum.widgets.panel import CyclingPanel, Line, Row, StyledText
from esper.sanctum.widgets.population_charts import BlueprintChart, EnvScatterChart, StageChart, blueprint_letters

_MIN_NAME_COLS, _MAX_NAME_COLS = 6, 11
_SCORE_COLS = 6
_ENV_COLS = 6
_FEW_ENVS = 16
"""Number of envs up to which the charts stand below the envs, however wide the screen is."""
_CACHED_STRIPS = 4096
"""Number of strips of stages that are kept: those of many envs are equal, and most do not change with a step."""
_MIN_STEP_COLS = 10
"""Minimum number of columns for the steps of a slot if rows stand side by side."""
_MAX_SLOT_STEP_COLS = 40
"""Columns for the steps of a slot that take precedence over the name of its blueprint."""
_INTERVAL_COLS, _MEAN_COLS = 27, 9
"""Width of a mean with its interval, and of a mean alone."""
_WORTH_COLS = ((_INTERVAL_COLS, _INTERVAL_COLS), (_INTERVAL_COLS, _MEAN_COLS), (11, _MEAN_COLS))
"""Widths of the first column of an effect and of the others, in a wide, a narrower and a narrow table."""
_WORTH_COLUMNS: dict[str, Callable[[BlueprintWorth], SampleMean]] = {
    "net return": lambda worth: worth.net,
    "gain": lambda worth: worth.gain,
    "rent": lambda worth: worth.rent,
}
"""Columns of effects on the return, keyed by heading. The first one has its interval in a narrow table, too."""
_COUNT_COLUMNS: dict[str, tuple[int, Callable[[BlueprintStats, BlueprintWorth | None], float | None]]] = {
    "n": (5, lambda _, worth: worth.net.n if worth else None),
    "planted": (8, lambda record, _: record.planted),
    "fossilized": (11, lambda record, _: record.fossilized),
    "culled": (7, lambda record, _: record.culled),
    "params": (8, lambda record, _: record.size),
}
"""Width and value of the other columns, keyed by heading. In a narrow table, the last ones are left out."""
_NAME_COLS = 14


class GrowthScreen(RunScreen):
    """The envs, the charts of the population, and the blueprint table."""

    AUTO_FOCUS = "GrowthChart"
    CATEGORIES = (KeyCategory.ROWS, KeyCategory.ENVS, KeyCategory.GROWTH)
    BINDINGS = bindings(KeyCategory.GROWTH)

    def body(self) -> ComposeResult:
        """Yield the envs, the charts, which follow when the slots are known, and the blueprint table."""
        yield GrowthChart(self.view)
        with Vertical(id="population"):
            yield ChartGrid([StageChart(self.view), EnvScatterChart(self.view)], "growth.charts")
            yield BlueprintTable(self.view)

    def update(self) -> None:
        """Update all panels. When the slots are known, add a chart for each."""
        started, grid = self.view.source.state.started, self.query_one(ChartGrid)
        if started is not None and not self.query(BlueprintChart):
            stages, scatter = self.query_one(StageChart), self.query_one(EnvScatterChart)
            by_slot = [BlueprintChart(self.view, slot) for slot in started.slot_names]
            grid.show_charts([stages, *by_slot, scatter])
        self.set_class(len(self.view.source.state.envs) <= _FEW_ENVS, "-few")
        super().update()

    def action_order(self) -> None:
        """Sort the blueprints by the next column."""
        self.query_one(BlueprintTable).show_next()

    def action_charts(self) -> None:
        """Show the next charts; in a low terminal, on the whole screen, and the envs after the last ones."""
        grid = self.query_one(ChartGrid)
        is_last = grid.page == grid.num_pages - 1
        if not self.has_class("-short"):
            grid.turn_page(1)
        elif not self.has_class("-charts"):
            self.add_class("-charts")
        elif is_last:
            self.remove_class("-charts")
            grid.show_first_page()
        else:
            grid.turn_page(1)
        if self.has_class("-charts", "-short") and grid.query("*:focus"):
            self.set_focus(None)
        if not self.has_class("-charts"):
            self.focus_main()
        self.update()


class GrowthChart(EnvRowsPanel, PacedPanel):
    """One row per env: a strip of stage letters by step for each slot, and the blueprint of its seed if it fits.

    Rows stand side by side if they do not all fit below each other.
    """

    METRICS = ("growth timeline", "score")

    PANEL_TITLE = "growth in this episode ─ stage by step"

    def __init__(self, view: ViewState, *, id: str | None = None) -> None:
        super().__init__(view, id=id)
        self._column_width = 1
        """Width of the rows that stand side by side."""

    def preferred_height(self) -> int:
        """Return one line for the heading, and one per env."""
        return 1 + len(self.state.envs)

    def key_at(self, x: int, y: int) -> int | None:
        """Return the env in a column and line of the content; None if there is none."""
        rows = max(self.size.height - 1, 1)
        place = x // self._column_width * rows + y - 1
        return self._visible[place] if y >= 1 and place < len(self._visible) else None

    def draw_lines(self, size: Size) -> list[Line] | list[Row]:
        """Draw the heading and the visible rows."""
        started = self.state.started
        if started is None:
            return []
        room, num_slots = max(size.height - 1, 1), len(started.slot_names)
        done = max((env.stepped.step for env in self.state.envs if env.stepped), default=0)
        steps, first = step_axis(started.steps, done)
        min_width = _ENV_COLS + _SCORE_COLS + num_slots * (min(steps, _MIN_STEP_COLS) + 1)
        columns = max(min(-(-len(self.state.envs) // room), size.width // min_width), 1)
        width = self._column_width = size.width // columns
        slot_width = (width - _ENV_COLS - _SCORE_COLS) // num_slots - 1
        spare = slot_width - min(steps, _MAX_SLOT_STEP_COLS)
        name_width = min(spare, _MAX_NAME_COLS) if spare >= _MIN_NAME_COLS else 0
        strip_width = min(slot_width - name_width, steps)
        shown = self.visible_envs(range(len(self.state.envs)), room * columns)
        self.panel_subtitle = self.position_text if shown else None
        worst = self.view.severity_by_env()
        heading = self._heading(started, f"{first}–{first + steps - 1}", strip_width + name_width).row(width)
        rows: list[Row] = [heading * columns]
        cells: list[Row] = []
        for index in shown:
            env = self.state.envs[index]
            selected, severity = index == self.view.selected_env, worst.get(index)
            draw = partial(self._row, env, started, first, strip_width, name_width, severity, selected=selected)
            cells.append(
                self.cached_row(index, width, draw, env.revision, first, strip_width, name_width, severity, selected)
            )
        for y in range(min(room, len(cells))):
            row = [segment for cell in cells[y::room] for segment in cell]
            rows.append(Segment.adjust_line_length(row, size.width, self.view.palette["normal"]))
        rows[0] = Segment.adjust_line_length(rows[0], size.width, self.view.palette["normal"])
        self.draw_scroll_arrows(rows, size.width)
        return rows

    def _heading(self, started: RunStarted, steps: str, slot_width: int) -> Line:
        line = self.line("env   ", "head")
        for label in slot_labels(started.slot_names, slot_width):
            line.append_fitted(f"{label} {steps}", slot_width, "head").append(" ")
        return line.append(score_heading(short_score_name(started.score_name), started.score_scale), "head")

    def _row(
        self,
        env: EnvState,
        started: RunStarted,
        first: int,
        strip_width: int,
        name_width: int,
        severity: str | None,
        *,
        selected: bool,
    ) -> Line:
        line = Line(self.view.palette, selected=selected).append("▸" if selected else " ", "key")
        line.append(f"{env.env:02d}".rjust(3 if len(self.state.envs) > 100 else 2), "bright" if selected else "dim")
        line.append(SEVERITIES[severity].glyph if severity else " ", severity or "normal").pad_to(_ENV_COLS)
        num_slots, total = len(started.slot_names), min(started.steps, SERIES_POINTS)
        stages = [step.stages.ljust(num_slots)[:num_slots] for step in env.trace if step.step >= first]
        before = " " * (env.trace[-1].step - len(stages) - first + 1) if stages else ""
        letters = "".join(stages)
        for slot in range(num_slots):
            line.extend(_strip(before + letters[slot::num_slots], total, strip_width))
            if name_width:
                reading = env.stepped.slot(slot) if env.stepped else None
                line.append(" ").append_fitted(
                    shorten_name(strip_control(reading.blueprint or "") if reading else "", name_width - 1),
                    name_width - 1,
                    "dim",
                )
            line.append(" ")
        return line.append_cell(
            score_cell(env.stepped.score if env.stepped else None, started.score_scale), "bright" if selected else None
        )


@lru_cache(_CACHED_STRIPS)
def _strip(letters: str, total: int, width: int) -> StyledText:
    """Draw the stages of a slot by step.

    The result is cached: callers may append it to a line, but not append to it.

    Args:
        letters: Letter of each step so far.
        total: Number of steps of the whole strip.
        width: Number of columns.
    """
    text = StyledText()
    for letter, run in groupby(sample_to_width(letters, total, width)):
        stage = STAGE_BY_LETTER.get(letter or "")
        count = len(list(run))
        text.append(STAGES[stage].glyph * count if stage else " " * count, stage or "normal")
    return text


class BlueprintTable(CyclingPanel):
    """One line per blueprint with its effects on the return, and the plantings that pay.

    The lines are sorted by one column in descending order, by default by the net effect.
    """

    METRICS = ("blueprints", HEADING)

    def __init__(self, view: ViewState, *, id: str | None = None) -> None:
        super().__init__(view, id=id)
        self._letters: dict[str, str] = {}
        """Letter of each blueprint, as in the charts."""

    def cache_key(self) -> Hashable:
        """Return a key that changes with every event, with the known effects, and with the sorted column."""
        return super().cache_key(), self.view.what_if.version, self.num_skipped

    def preferred_height(self) -> int:
        """Return one line for the heading, one per blueprint, and one for the plantings that pay."""
        return len(self.state.blueprints) + 2

    def draw_lines(self, size: Size) -> list[Line]:
        """Draw the heading, the blueprints, and the plantings that pay."""
        if self.state.started is None:
            return []
        headings = [*_WORTH_COLUMNS, *_COUNT_COLUMNS]
        sort_column = headings[self.num_skipped % len(headings)]
        columns = _fitting_columns(size.width, sort_column)
        self.panel_title = f"blueprints, whole run ─ by {sort_column} ↓"
        blueprints = self.state.blueprints
        self.panel_subtitle = "effects on the return: gain − rent = net"
        paying = self._paying(size.width)
        room = max(size.height - 1 - len(paying), 0)
        if room < len(blueprints):
            self.panel_subtitle = f"{room} of {len(blueprints)}"
        if not blueprints:
            return self.message("no seed planted yet")
        self._letters = blueprint_letters(sorted(blueprints))
        head = self.line(" blueprint".ljust(_NAME_COLS), "head")
        for name, width in columns.items():
            head.append(name.rjust(width), "key" if name == sort_column else "head")
        worths = self.view.what_if.blueprint_effects(self.state.round)

        def sort_key(name: str) -> tuple[bool, float, str]:
            number = _value(sort_column, blueprints[name], worths.get(name))
            return number is None, -(number or 0.0), name

        names = sorted(blueprints, key=sort_key)
        rows = [self._row(name, blueprints[name], worths.get(name), columns) for name in names[:room]]
        return [head, *rows, *paying]

    def _paying(self, width: int) -> list[Line]:
        """Draw how many plantings pay; if it is not known, the command that measures it, where it fits."""
        line = self.line(f" {HEADING} ", "dim")
        if found := self.view.what_if.paying_plantings(self.state.round):
            first, *further = wrap_cells(found.describe(with_effect=False), max(width - line.width, 1))
            return [line.append(first, "bright"), *(self.line(f" {row}", "bright") for row in further)]
        command = self._paying_command()
        line.append(f"{NOT_MEASURED} ", "absent")
        return [line.append(command, "dim") if command and line.width + len(command) <= width else line]

    def _paying_command(self) -> str | None:
        """Return the command that measures how many plantings pay; None if it is unknown or no round has ended."""
        directory, state = self.view.source.directory, self.state
        if directory is None or state.search is not None:
            return None
        return paying_command(shortest_name(directory, Path(Config().telemetry_dir)), state.rounds_ended)

    def _row(self, name: str, record: BlueprintStats, worth: BlueprintWorth | None, columns: Mapping[str, int]) -> Line:
        line = self.line(f" {self._letters[name]} ", "dim").append_fitted(
            shorten_name(strip_control(name), _NAME_COLS - 3), _NAME_COLS - 3
        )
        for heading, width in columns.items():
            if heading in _WORTH_COLUMNS:
                line.append_cell(_worth_cell(worth, _WORTH_COLUMNS[heading], width))
            else:
                line.append_cell(_count_cell(_value(heading, record, worth), width))
        return line


def _fitting_columns(width: int, sort_column: str) -> dict[str, int]:
    """Return the width of each column that fits into a table; intervals are left out before columns are.

    The column that sorts the table always stays.
    """
    counts = {heading: columns for heading, (columns, _) in _COUNT_COLUMNS.items()}
    first, *others = _WORTH_COLUMNS
    columns: dict[str, int] = {}
    for first_cols, other_cols in _WORTH_COLS:
        columns = {first: first_cols} | dict.fromkeys(others, other_cols) | counts
        if _NAME_COLS + sum(columns.values()) <= width:
            return columns
    for heading in [*reversed(columns)]:
        if _NAME_COLS + sum(columns.values()) > width and heading != sort_column:
            del columns[heading]
    return columns


def _value(heading: str, record: BlueprintStats, worth: BlueprintWorth | None) -> float | None:
    """Return the value of a blueprint in a column; None if it is not known."""
    if heading in _COUNT_COLUMNS:
        return _COUNT_COLUMNS[heading][1](record, worth)
    return _WORTH_COLUMNS[heading](worth).mean if worth is not None else None


def _worth_cell(worth: BlueprintWorth | None, mean_of: Callable[[BlueprintWorth], SampleMean], width: int) -> Cell:
    """Format a mean effect, with its interval where the column is wide enough for any."""
    if worth is None:
        return Cell(NOT_MEASURED.rjust(width), "absent")
    mean, mark = mean_of(worth), "" if worth.exact else APPROXIMATE
    shown = return_cell(mean.mean)
    text = mean.signed.replace("-", "−") if width >= _INTERVAL_COLS else shown.text.strip()
    return Cell(f"{mark}{text}".rjust(width), shown.role)


def _count_cell(value: float | None, width: int) -> Cell:
    if value is None:
        return Cell(NOT_MEASURED.rjust(width), "absent")
    return Cell(f"{value:,.0f}".rjust(width), "normal" if value else "dim")
