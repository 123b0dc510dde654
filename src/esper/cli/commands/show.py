"""`show RUN`: prints the summary of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from esper.cli.options import EXIT_OK, Parser, add_run_argument, print_warnings
from esper.cli.streams import print_json, print_text
from esper.config import Config
from esper.effects.plantings import summarise_with_effects
from esper.formatting import (
    APPROXIMATE,
    NOT_MEASURED,
    format_config_value,
    format_duration,
    format_number,
)
from esper.history.history import open_history
from esper.history.summary import BlueprintSummary, RunSummary, flat_config
from esper.paying import HEADING, paying_command
from esper.plots.axis import finite_range
from esper.plots.sparkline import sample_to_width, sparkline
from esper.printed_table import PrintedTable
from esper.recording.runs import resolve_run, shortest_name
from esper.tasks import is_built_in, load_task, with_task_settings
from esper.telemetry.codec import encode_json
from esper.telemetry.sentences import format_lanes

_MAX_SPARKLINE_CHARS = 60
"""Maximum number of characters of a sparkline."""
_MIN_PHASE_FRACTION = 0.005
"""Fraction of the time, 0 to 1, below which a phase is left out."""


def run(arguments: Sequence[str]) -> int:
    """Print the summary."""
    parser = Parser(prog="esper-sanctum show", description="Print the summary of a live or ended run")
    add_run_argument(parser, "RUN")
    parser.add_argument("--json", action="store_true", help="print JSON that includes every finished round")
    options = parser.parse_args(arguments)
    summary = load_summary(options.run, options.telemetry_dir)
    if options.json:
        print_json(encode_json(summary))
    else:
        print_text("\n".join(summary_table(summary).lines()))
    return EXIT_OK


def summary_table(summary: RunSummary) -> PrintedTable[Sequence[str]]:
    """Return the summary of a run as a table."""
    return PrintedTable.from_cells(("", ""), _summary_rows(summary))


def _summary_rows(summary: RunSummary) -> Iterator[tuple[str, str]]:
    """Yield heading and text of each row. The heading is empty where a row continues the one before."""
    yield "run", summary.run
    yield "state", summary.health + (f": {summary.reason}" if summary.reason else "")
    yield "setup", f"{summary.policy} on {summary.task}, random seed {summary.seed}, {format_lanes(summary.lanes)}"
    yield "versions", ", ".join(f"{name} {version}" for name, version in summary.versions.items())
    yield from _configuration_rows(summary)
    yield "started", f"{datetime.fromtimestamp(summary.started):%Y-%m-%d %H:%M:%S}"
    pace = format_number(summary.env_steps_per_second, ",.0f")
    duration = f"{format_duration(summary.duration)} recorded"
    if (search := summary.search) is not None:
        yield "length", f"{duration}: {summary.env_steps:,} env-steps, {pace} per second"
        yield "growth", f"{search.describe_progress(sum(summary.phases.values()))}; {search.describe_counts()}"
        yield "", search.answer or search.describe_best()
    else:
        total = summary.rounds * summary.steps
        yield "length", f"{duration}, {len(summary.finished)} of {summary.rounds} rounds"
        yield "", f"{summary.steps_done:,} of {total:,} steps: {summary.env_steps:,} env-steps, {pace} per second"
        yield from _learning_rows(summary)
    yield from _seed_rows(summary)
    yield from _problem_rows(summary)
    spent = sum(summary.phases.values())
    if spent > 0:
        phases = sorted(summary.phases.items(), key=lambda phase: -phase[1])
        yield (
            "time by phase",
            ", ".join(
                f"{name} {seconds / spent:.0%}" for name, seconds in phases if seconds / spent >= _MIN_PHASE_FRACTION
            ),
        )
    last = f", last: {summary.last_checkpoint}" if summary.last_checkpoint else ""
    yield "checkpoints", f"{summary.checkpoints or 'none'} written{last}"


def _configuration_rows(summary: RunSummary) -> Iterator[tuple[str, str]]:
    """Yield the settings that differ from their defaults for the task."""
    defaults = flat_config(_default_config(summary.config)) | flat_config(summary.task_defaults)
    changed = [
        f"{key} = {format_config_value(value)} (default: {_format_default(key, defaults.get(key))})"
        for key, value in flat_config(summary.config).items()
        if value not in (None, defaults.get(key)) and not (key == "rounds" and summary.search)
    ]
    headings = ["configuration", *[""] * len(changed)]
    yield from zip(headings, changed or ["defaults"], strict=False)


def _default_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return the default configuration, with the settings and slots of the task of a run if that is built in."""
    defaults, task = Config(), str(config.get("task", ""))
    if is_built_in(task):
        filled = with_task_settings(msgspec.structs.replace(defaults, task=task))
        defaults = msgspec.structs.replace(filled, task=defaults.task, slots=tuple(load_task(task).slots))
    return msgspec.json.decode(msgspec.json.encode(defaults))


def _format_default(key: str, default: Any) -> str:
    """Format a default. A recording may lack those of a task that is the user's code."""
    is_of_task = key == "slots" or key.startswith("training.")
    return "that of the task" if is_of_task and default in (None, []) else format_config_value(default)


def _learning_rows(summary: RunSummary) -> Iterator[tuple[str, str]]:
    best = summary.best
    location = f" (env {best.env:02d}, round {best.round} step {best.step})" if best else ""
    yield f"best {summary.score_name}", format_number(best.score if best else None, ".1%") + location
    if not summary.finished:
        yield summary.score_name, f"{NOT_MEASURED}: no finished round"
        return
    last = summary.finished[-1].score
    text = f"median {last.median:.1%} in the last finished round, {last.minimum:.1%} to {last.maximum:.1%}"
    yield summary.score_name, text
    medians = [finished.score.median for finished in summary.finished]
    yield "", f"{_sparkline(medians, 0.0, 1.0)}  by round, from 0 to 100%"
    for name, metric in summary.metrics.items():
        text = f"median {metric.median:.4g} in the last finished round, {metric.minimum:.4g} to {metric.maximum:.4g}"
        yield name, text
    returns = [finished.episode_return for finished in summary.finished]
    low, high = finite_range(returns) or (0.0, 0.0)
    yield "return", f"mean {format_number(returns[-1], '+.3f')} in the last finished round"
    yield "", f"{_sparkline(returns, low, high)}  by round, from {low:+.3f} to {high:+.3f}"
    yield (
        "parameters",
        f"{summary.finished[-1].parameter_ratio:.2f} × bare host ({summary.host_parameters:,})",
    )


def _sparkline(values: Sequence[float], low: float, high: float) -> str:
    count = len(values)
    return sparkline(sample_to_width(values, count, min(count, _MAX_SPARKLINE_CHARS)), low, high)


def _seed_rows(summary: RunSummary) -> Iterator[tuple[str, str]]:
    if not summary.seeds:
        yield "seeds", "none planted"
        return
    names = ("", "planted", "fossilized", "culled", "mean contribution, pp", "mean effect on the return (n)")
    rows: list[tuple[str, ...]] = []
    for blueprint, seeds in sorted(summary.seeds.items()):
        counts = (str(seeds.planted), str(seeds.fossilized), str(seeds.culled))
        points = None if seeds.contribution is None else 100 * seeds.contribution
        rows.append((blueprint, *counts, format_number(points, "+.1f"), _format_effect(seeds)))
    headings = ["seeds", *[""] * len(rows)]
    yield from zip(headings, PrintedTable.from_cells(names, rows, right=range(1, len(names))).lines(), strict=True)
    run = shortest_name(Path(summary.path), Path(Config().telemetry_dir))
    command = paying_command(run, len(summary.finished)) if summary.search is None else None
    if summary.paying or command:
        yield HEADING, str(summary.paying or f"{NOT_MEASURED}: `{command}` measures them")


def _format_effect(seeds: BlueprintSummary) -> str:
    if seeds.effect is None:
        return NOT_MEASURED
    return f"{APPROXIMATE if seeds.effects_approximate else ''}{seeds.effect:+.3f} ({seeds.effects})"


def _problem_rows(summary: RunSummary) -> Iterator[tuple[str, str]]:
    anomalies = ", ".join(f"{rule} ×{count}" for rule, count in summary.anomalies.items())
    yield "anomalies", anomalies or "none"
    overflows = ", ".join(f"{owner} ×{count}" for owner, count in summary.overflows_by_owner.items())
    yield "skipped batches", f"{summary.skipped_batches} (overflows: {overflows})" if summary.skipped_batches else "0"
    yield "rollbacks", str(summary.rollbacks or "none")


def load_summary(text: str, telemetry_dir: Path) -> RunSummary:
    """Summarise a run, and print warnings about what could not be read of it.

    Args:
        text: Name or path of the run, or `last`.
        telemetry_dir: Directory in which run names are looked up.

    Raises:
        ReadError: The run does not exist, or nothing of it can be read.
        ConfigError: The run has no events yet.
    """
    summary = summarise_with_effects(open_history(resolve_run(text, telemetry_dir)))
    print_warnings(summary.notices)
    return summary
