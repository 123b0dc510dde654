"""`show RUN`: prints the summary of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from esper.cli.options import EXIT_OK, Parser, add_run_argument, print_warnings
from esper.cli.streams import print_json, print_text
from esper.common.configuration.config import default_config
from esper.common.formatting import APPROXIMATE, format_config_value
from esper.common.plots.axis import finite_range
from esper.common.plots.sparkline import sample_to_width, sparkline
from esper.common.printed_table import PrintedTable
from esper.networks.tasks import is_built_in, load_task, with_task_settings
from esper.recordings.effects.plantings import summarise_with_effects
from esper.recordings.effects.report import WORTH_HEADINGS, worth_cells
from esper.recordings.events.codec import encode_json
from esper.recordings.events.sentences import format_lanes
from esper.recordings.files.runs import resolve_run
from esper.recordings.history.history import open_history
from esper.recordings.history.measures import MEASURES
from esper.recordings.history.summary import BlueprintSummary, RunSummary, flat_config

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
    if (search := summary.search) is not None:
        yield "growth", f"{search.describe_progress(sum(summary.phases.values()))}; {search.describe_counts()}"
        yield "", search.answer or search.describe_best()
    yield from _measure_rows(summary)
    for name, metric in summary.metrics.items():
        text = f"median {metric.median:.4g} in the last finished round, {metric.minimum:.4g} to {metric.maximum:.4g}"
        yield name, text
    yield from _seed_rows(summary)
    yield from zip(("habits of the policy", ""), summary.habits, strict=False)
    spent = sum(summary.phases.values())
    if spent > 0:
        phases = sorted(summary.phases.items(), key=lambda phase: -phase[1])
        yield (
            "time by phase",
            ", ".join(
                f"{name} {seconds / spent:.0%}" for name, seconds in phases if seconds / spent >= _MIN_PHASE_FRACTION
            ),
        )


def _measure_rows(summary: RunSummary) -> Iterator[tuple[str, str]]:
    """Yield a row for each measure, and another one with its course by round."""
    scale = summary.score_scale
    for key, measure in MEASURES.items():
        if summary.search is not None and key in _NOT_OF_GROWTHS:
            continue
        details = _DETAILS[key](summary) if key in _DETAILS else ""
        yield measure.heading_in(summary, summary.score_name), measure.text(measure.of(summary), scale) + details
        if measure.of_round is not None and summary.finished and summary.search is None:
            values = [measure.of_round(finished) for finished in summary.finished]
            low, high = finite_range(values) or (0.0, 0.0)
            if measure.unit == "score" and scale.is_percent:
                low, high = scale.limits
            count = len(values)
            course = sparkline(sample_to_width(values, count, min(count, _MAX_SPARKLINE_CHARS)), low, high)
            yield "", f"{course}  by round, from {measure.text(low, scale)} to {measure.text(high, scale)}"


def _range_of_last_round(summary: RunSummary) -> str:
    if summary.search is not None:
        return ""
    if not summary.finished:
        return ": no finished round"
    last = summary.finished[-1].score
    scale = summary.score_scale
    reference = next((found for found in summary.references if found.round == summary.finished[-1].round), None)
    mark = APPROXIMATE if reference is not None and not reference.exact else ""
    without = f", {mark}{scale.text(reference.score)} without growth" if reference is not None else ""
    return f"{without}, {scale.text(last.minimum)} to {scale.text(last.maximum)} over the envs"


def _place_of_best(summary: RunSummary) -> str:
    best = summary.best
    return f" (env {best.env:02d}, round {best.round} step {best.step})" if best else ""


def _counts_text(counts: dict[str, int], heading: str = "") -> str:
    """Return counts by name in parentheses; empty without any."""
    listed = ", ".join(f"{name} ×{count}" for name, count in counts.items())
    return f" ({heading}{listed})" if listed else ""


_DETAILS: dict[str, Callable[[RunSummary], str]] = {
    "score": _range_of_last_round,
    "best": _place_of_best,
    "parameters": lambda run: f"; bare host: {run.host_parameters:,}",
    "anomalies": lambda run: _counts_text(run.anomalies),
    "finished_rounds": lambda run: f" of {run.rounds:,}",
    "env_steps": lambda run: "" if run.search else f" in {run.steps_done:,} of {run.rounds * run.steps:,} steps",
    "skipped_batches": lambda run: _counts_text(run.overflows_by_owner, "overflows: "),
    "checkpoints": lambda run: f", last: {run.last_checkpoint}" if run.last_checkpoint else "",
}
"""Text after the number of a measure, keyed by its name."""
_NOT_OF_GROWTHS = ("smoothed", "finished_rounds")
"""Measures that `show` leaves out for a growth, whose rounds are trials."""


def _configuration_rows(summary: RunSummary) -> Iterator[tuple[str, str]]:
    """Yield the settings that differ from their defaults for the task; of a growth, from those of `grow`."""
    defaults = flat_config(_default_config(summary)) | flat_config(summary.task_defaults)
    changed = [
        f"{key} = {format_config_value(value)} (default: {_format_default(key, defaults.get(key))})"
        for key, value in flat_config(summary.config).items()
        if value not in (None, defaults.get(key)) and not (key == "rounds" and summary.search)
    ]
    headings = ["configuration", *[""] * len(changed)]
    yield from zip(headings, changed or ["defaults"], strict=False)


def _default_config(summary: RunSummary) -> dict[str, Any]:
    """Return the default configuration, with the settings and slots of the task of a run if that is built in."""
    defaults, task = default_config(is_growth=summary.search is not None), str(summary.config.get("task", ""))
    if is_built_in(task):
        filled = with_task_settings(msgspec.structs.replace(defaults, task=task))
        defaults = msgspec.structs.replace(filled, task=defaults.task, slots=tuple(load_task(task).slots))
    return msgspec.json.decode(msgspec.json.encode(defaults))


def _format_default(key: str, default: Any) -> str:
    """Format a default. A recording may lack those of a task that is the user's code."""
    is_of_task = key == "slots" or key.startswith("training.")
    return "that of the task" if is_of_task and default in (None, []) else format_config_value(default)


def _seed_rows(summary: RunSummary) -> Iterator[tuple[str, str]]:
    if not summary.seeds:
        yield "seeds", "none planted"
        return
    names = ("", "planted", "fossilized", "culled", *WORTH_HEADINGS)

    def rank(item: tuple[str, BlueprintSummary]) -> tuple[bool, float, str]:
        blueprint, seeds = item
        return seeds.worth is None, -seeds.worth.net.mean if seeds.worth else 0.0, blueprint

    rows: list[tuple[str, ...]] = []
    for blueprint, seeds in sorted(summary.seeds.items(), key=rank):
        counts = (str(seeds.planted), str(seeds.fossilized), str(seeds.culled))
        rows.append((blueprint, *counts, *worth_cells(seeds.worth)))
    headings = ["seeds", *[""] * len(rows)]
    yield from zip(headings, PrintedTable.from_cells(names, rows, right=range(1, len(names))).lines(), strict=True)


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
