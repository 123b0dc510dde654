"""`compare RUN RUN…`: prints runs side by side."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from esper.cli.commands.show import load_summary
from esper.cli.options import EXIT_OK, Parser, add_run_argument
from esper.config import ConfigError
from esper.formatting import (
    NOT_MEASURED,
    align_columns,
    format_config_value,
    format_duration,
    format_number,
    strip_control,
)
from esper.history.summary import RoundSummary, RunSummary, flat_config
from esper.telemetry.codec import encode_json
from esper.telemetry.sentences import format_lanes
from esper.text_plot import finite_range

_PLOT_WIDTH, _PLOT_HEIGHT = 36, 8
"""Size of a plot, in columns and lines."""
_LABEL_COLS = 7
"""Columns of the labels of the y axis."""

_ROWS: tuple[tuple[str, Callable[[RunSummary], str]], ...] = (
    ("state", lambda run: run.state),
    ("policy", lambda run: run.policy),
    ("task", lambda run: run.task),
    ("random seed", lambda run: str(run.seed)),
    ("envs", lambda run: format_lanes(run.lanes)),
    ("rounds finished", lambda run: f"{len(run.finished)} of {run.rounds}"),
    ("env-steps", lambda run: f"{run.env_steps:,}"),
    ("env-steps/s", lambda run: format_number(run.env_steps_per_second, ",.0f")),
    ("recorded", lambda run: format_duration(run.duration)),
    ("best {score}", lambda run: format_number(run.best.score if run.best else None, ".1%")),
    ("last round: {score}", lambda run: _from_last_round(run, lambda last: format_number(last.score.median, ".1%"))),
    ("last round: return", lambda run: _from_last_round(run, lambda last: format_number(last.episode_return, "+.3f"))),
    (
        "last round: parameters",
        lambda run: _from_last_round(run, lambda last: f"{format_number(last.parameter_ratio, '.2f')} × host"),
    ),
    ("seeds planted", lambda run: str(sum(seeds.planted for seeds in run.seeds.values()))),
    ("seeds fossilized", lambda run: str(sum(seeds.fossilized for seeds in run.seeds.values()))),
    ("seeds culled", lambda run: str(sum(seeds.culled for seeds in run.seeds.values()))),
    ("anomalies", lambda run: str(sum(run.anomalies.values()))),
    ("skipped batches", lambda run: str(run.skipped_batches)),
    ("rollbacks", lambda run: str(run.rollbacks)),
    ("checkpoints", lambda run: str(run.checkpoints)),
)
"""Heading and cell of each table row. The score is the median over the envs, return and parameters the mean."""

_CURVES: tuple[tuple[str, Callable[[RoundSummary], float], str], ...] = (
    ("{score}, median over the envs", lambda finished: finished.score.median, ".1%"),
    ("return, mean over the envs", lambda finished: finished.episode_return, "+.3f"),
)
"""Title, value per finished round, and number format of each plot."""


def run(arguments: Sequence[str]) -> int:
    """Print runs side by side."""
    parser = Parser(
        prog="esper-sanctum compare",
        description="Compare runs: results, differing settings, and curves on common axes",
    )
    add_run_argument(parser, "RUN", several=True)
    parser.add_argument("--json", action="store_true", help="print a JSON list with the output of show --json per run")
    options = parser.parse_args(arguments)
    if len(options.runs) < 2:
        raise ConfigError("compare needs at least two runs; use `esper-sanctum show RUN` for one")
    summaries = [load_summary(text, options.telemetry_dir) for text in options.runs]
    if options.json:
        print(encode_json(summaries).decode())
        return EXIT_OK
    width = shutil.get_terminal_size().columns
    print("\n".join(align_columns(list(_table_rows(summaries)))))
    for title, metric, spec in _CURVES:
        title = title.format(score=_score_name(summaries))
        print("\n".join(["", *map(strip_control, _plots(title, metric, spec, summaries, width))]))
    return EXIT_OK


def _table_rows(summaries: Sequence[RunSummary]) -> Iterator[tuple[str, ...]]:
    yield "run", *(summary.run for summary in summaries)
    for heading, format_cell in _ROWS:
        yield heading.format(score=_score_name(summaries)), *map(format_cell, summaries)
    for key, values in _config_differences(summaries).items():
        yield f"config: {key}", *values


def _score_name(summaries: Sequence[RunSummary]) -> str:
    """Return the name of the score of all runs; "score" if their tasks name it differently."""
    names = {summary.score_name for summary in summaries}
    return names.pop() if len(names) == 1 else "score"


def _config_differences(summaries: Sequence[RunSummary]) -> dict[str, tuple[str, ...]]:
    """Return the configuration keys whose values differ, each with its value in every run."""
    configs = [flat_config(summary.config) for summary in summaries]
    values = {
        key: tuple(format_config_value(config.get(key)) for config in configs) for key in dict.fromkeys(chain(*configs))
    }
    return {key: of_runs for key, of_runs in values.items() if len(set(of_runs)) > 1}


def _from_last_round(summary: RunSummary, format_cell: Callable[[RoundSummary], str]) -> str:
    """Format a value of the last finished round."""
    return format_cell(summary.finished[-1]) if summary.finished else NOT_MEASURED


def _plots(
    title: str, metric: Callable[[RoundSummary], float], spec: str, summaries: Sequence[RunSummary], width: int
) -> Iterator[str]:
    """Yield the lines of one plot per run, on common axes, as many plots side by side as the terminal has room for."""
    from esper.dots import draw_curve  # numpy, which `compare --help` does not need

    curves = [[metric(finished) for finished in summary.finished] for summary in summaries]
    value_range = finite_range([value for values in curves for value in values])
    if value_range is None:
        yield f"{title}: {NOT_MEASURED}"
        return
    low, high = value_range
    rounds = max(map(len, curves))
    yield f"{title}, by round, 1 to {rounds}; from {format_number(low, spec)} to {format_number(high, spec)}"
    per_row = max(1, width // (_LABEL_COLS + 2 + _PLOT_WIDTH + 2))
    for start in range(0, len(summaries), per_row):
        shown = range(start, min(start + per_row, len(summaries)))
        blocks = [
            [
                f"{'':{_LABEL_COLS}}  {_plot_title(summaries[index].run)}",
                *_axis(draw_curve(curves[index], rounds, low, high, _PLOT_WIDTH, _PLOT_HEIGHT), low, high, spec),
            ]
            for index in shown
        ]
        for line in zip(*blocks, strict=True):
            yield "  ".join(part.ljust(_LABEL_COLS + 2 + _PLOT_WIDTH) for part in line).rstrip()


def _plot_title(run: str) -> str:
    """Return the name of a run, with an ellipsis if it is wider than the plot."""
    return run if len(run) <= _PLOT_WIDTH else f"{run[: _PLOT_WIDTH - 1]}…"


def _axis(rows: Sequence[str], low: float, high: float, spec: str) -> Iterator[str]:
    """Put a y axis with labels before the rows of a plot."""
    labels = {0: format_number(high, spec), len(rows) - 1: format_number(low, spec)}
    for index, row in enumerate(rows):
        yield f"{labels.get(index, ''):>{_LABEL_COLS}} {'┤' if index in labels else '│'}{row}"
