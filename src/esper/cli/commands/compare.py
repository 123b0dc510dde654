"""`compare RUN RUN…`: runs side by side."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence

from esper.cli.commands.show import format_config_value, load_summary
from esper.cli.options import EXIT_OK, Parser, add_run_argument
from esper.config import ConfigError
from esper.formatting import NOT_MEASURED, align_columns, format_duration, format_number
from esper.history.summary import RoundSummary, RunSummary, config_diff, config_value
from esper.tasks import with_recorded_settings
from esper.telemetry.codec import encode_json
from esper.telemetry.sentences import format_lanes
from esper.text_plot import draw_curve, finite_range

_PLOT_WIDTH, _PLOT_HEIGHT = 36, 8
_LABEL = 7
"""Columns of the labels of the y axis."""

_ROWS: tuple[tuple[str, Callable[[RunSummary], str]], ...] = (
    ("state", lambda run: run.state),
    ("policy", lambda run: run.policy),
    ("task", lambda run: run.task),
    ("seed", lambda run: str(run.seed)),
    ("envs", lambda run: format_lanes(run.lanes)),
    ("rounds finished", lambda run: f"{len(run.finished)} of {run.rounds}"),
    ("env-steps", lambda run: f"{run.env_steps:,}"),
    ("env-steps/s", lambda run: format_number(run.env_steps_per_second, ",.0f")),
    ("recorded", lambda run: format_duration(run.duration)),
    ("best accuracy", lambda run: format_number(run.best.accuracy if run.best else None, ".1%")),
    ("last round: accuracy", lambda run: _from_last_round(run, lambda last: format_number(last.accuracy[1], ".1%"))),
    ("last round: return", lambda run: _from_last_round(run, lambda last: format_number(last.episode_return, "+.3f"))),
    (
        "last round: parameters",
        lambda run: _from_last_round(run, lambda last: f"{format_number(last.parameter_ratio, '.2f')} × host"),
    ),
    ("seeds planted", lambda run: str(sum(seeds.planted for seeds in run.seeds.values()))),
    ("seeds fossilized", lambda run: str(sum(seeds.fossilized for seeds in run.seeds.values()))),
    ("seeds culled", lambda run: str(sum(seeds.culled for seeds in run.seeds.values()))),
    ("anomalies", lambda run: str(sum(run.anomalies.values()))),
    ("steps skipped", lambda run: str(sum(run.skipped.values()))),
    ("rollbacks", lambda run: str(run.rollbacks)),
    ("checkpoints", lambda run: str(run.checkpoints)),
)
"""What is said of each run: a row each. Accuracy is the median over the envs, return and parameters the mean."""


def run(arguments: Sequence[str]) -> int:
    """Print them."""
    parser = Parser(
        prog="esper-sanctum compare",
        description="Print runs side by side: what they came to, where their configurations differ, and their curves "
        "on common axes.",
    )
    add_run_argument(parser, "RUN", several=True)
    parser.add_argument("--json", action="store_true", help="print JSON: a list of what show --json prints of each")
    chosen = parser.parse_args(arguments)
    if len(chosen.runs) < 2:
        raise ConfigError("compare needs two runs or more; esper-sanctum show tells of one")
    summaries = [load_summary(text, chosen.telemetry_dir) for text in chosen.runs]
    if chosen.json:
        print(encode_json(summaries).decode())
        return EXIT_OK
    width = shutil.get_terminal_size().columns
    print("\n".join(align_columns(list(_table_rows(summaries)))))
    for title, of, form in _CURVES:
        print("\n".join(["", *_plots(title, of, form, summaries, width)]))
    return EXIT_OK


def _table_rows(summaries: Sequence[RunSummary]) -> Iterator[tuple[str, ...]]:
    yield "run", *(summary.run for summary in summaries)
    for heading, say in _ROWS:
        yield heading, *map(say, summaries)
    for key, values in _config_differences(summaries).items():
        yield f"config: {key}", *values


def _config_differences(summaries: Sequence[RunSummary]) -> dict[str, tuple[str, ...]]:
    """Keys in which the configurations differ, each with its value in every run."""
    first, *others = configs = [with_recorded_settings(summary.config) for summary in summaries]
    keys = dict.fromkeys(key for other in others for key in config_diff(first, other))
    return {key: tuple(format_config_value(config_value(config, key)) for config in configs) for key in keys}


def _from_last_round(summary: RunSummary, say: Callable[[RoundSummary], str]) -> str:
    """Something of the last finished round."""
    return say(summary.finished[-1]) if summary.finished else NOT_MEASURED


def _plots(
    title: str, of: Callable[[RoundSummary], float], form: str, summaries: Sequence[RunSummary], width: int
) -> Iterator[str]:
    """A curve for each run, on common axes, as many beside each other as the terminal has room for."""
    curves = [[of(finished) for finished in summary.finished] for summary in summaries]
    span = finite_range([value for values in curves for value in values])
    if span is None:
        yield f"{title}: {NOT_MEASURED}"
        return
    low, high = span
    extent = max(map(len, curves))
    yield f"{title}, by round, 1 to {extent}; from {format_number(low, form)} to {format_number(high, form)}"
    beside = max(1, width // (_LABEL + 2 + _PLOT_WIDTH + 2))
    for start in range(0, len(summaries), beside):
        shown = range(start, min(start + beside, len(summaries)))
        blocks = [
            [
                f"{'':{_LABEL}}  {summaries[index].run[:_PLOT_WIDTH]}",
                *_axis(draw_curve(curves[index], extent, low, high, _PLOT_WIDTH, _PLOT_HEIGHT), low, high, form),
            ]
            for index in shown
        ]
        for line in zip(*blocks, strict=True):
            yield "  ".join(part.ljust(_LABEL + 2 + _PLOT_WIDTH) for part in line).rstrip()


def _axis(rows: Sequence[str], low: float, high: float, form: str) -> Iterator[str]:
    """The rows of a plot with a y axis before them."""
    labels = {0: format_number(high, form), len(rows) - 1: format_number(low, form)}
    for index, row in enumerate(rows):
        yield f"{labels.get(index, ''):>{_LABEL}} {'┤' if index in labels else '│'}{row}"


_CURVES: tuple[tuple[str, Callable[[RoundSummary], float], str], ...] = (
    ("accuracy, median over the envs", lambda finished: finished.accuracy[1], ".1%"),
    ("return, mean over the envs", lambda finished: finished.episode_return, "+.3f"),
)
