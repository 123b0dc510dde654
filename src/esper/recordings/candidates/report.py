"""Report of the candidates of a growth: order, table, and chart of score against parameters, as text and as HTML.

The dashboard has its own table and chart, with the order, the letters and the cells of this module.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from string import ascii_lowercase
from typing import NamedTuple, TypeAlias, get_args

from esper.common.formatting import NOT_MEASURED, format_number, html_text, strip_control
from esper.common.intervals import IntervalEstimate
from esper.common.plots.chart import score_quantity
from esper.common.plots.scatter import PointKind, Scatter, ScatterPoint, point_glyph
from esper.common.plots.svg import SvgScatter
from esper.common.printed_table import PrintedColumn, PrintedTable
from esper.common.score_scale import PERCENT, ScoreScale
from esper.recordings.candidates.candidates import (
    BARE_HOST,
    COMPARED,
    Candidate,
    Objective,
    Outcome,
    describe_candidate,
    front,
)

MAX_ROWS = 24
"""Maximum number of rows of a printed table."""
MARK_LEGEND = "◆ your network   ● best for its size   ○ others   · one trial   ⡇ interval"
"""Meaning of the marks of candidates, in one line."""
_KIND_ORDER = ("trial", "point", "host")
"""Kinds of candidates in the order in which they are drawn: later ones cover earlier ones."""
_PLOT_ROWS = 12
MARK_COLS = 3
"""Width of letter and mark of a candidate."""
NAME, TRAININGS, ORIGIN, OUTCOME = "candidate", "trainings", "from", "outcome"
"""Headings of columns."""
_WANTED_NAME_COLS = 28
"""Width of a candidate's name for which other columns are left out."""
_MIN_OUTCOME_COLS = len("▶ env 03")
"""Minimum width of the outcome. The dashboard shows there which env trains the candidate."""
_ELLIPSIS = "…"


class Standing(NamedTuple):
    """A candidate with its place among the others."""

    candidate: Candidate
    letter: str
    """Letter in table and chart; empty without one."""
    kind: PointKind | None
    """Kind of its point in the chart; None if it has no place there."""
    is_on_front: bool
    outcome: str
    """Outcome in one or two words: `chosen`, `trains`, `fresh host 2`, `done`, `pruned`, `broke down` or `failed`."""

    @property
    def mark(self) -> str:
        """Mark in table and chart; empty if it has no place in the chart."""
        return "" if self.kind is None else point_glyph(self.kind, is_on_front=self.is_on_front)

    @property
    def label(self) -> str:
        """Letter and mark."""
        return f"{self.letter:1} {self.mark}".rstrip()

    @property
    def name(self) -> str:
        """Plan, or name of a policy."""
        return self.candidate.name


def rank_candidates(candidates: Sequence[Candidate], objective: Objective) -> list[Candidate]:
    """Return the candidates, the best first.

    Those that were trained on fresh hosts come first, by the mean of the objective; completed trials follow, then
    candidates that train, then those that were pruned, broke down or failed, by their score.
    """

    def rank(one: Candidate) -> tuple[int, float]:
        if one.is_fresh:
            return 0, -statistics.fmean(one.values(objective).values())
        value = one.trial_value(objective)
        if value is not None:
            return 1, -value
        group = 2 if one.outcome is None else 3 if one.outcome == "pruned" else 4
        return group, -one.scale.gain(one.score) if one.score is not None and math.isfinite(one.score) else math.inf

    return sorted(candidates, key=rank)


def standings(
    candidates: Sequence[Candidate],
    objective: Objective,
    *,
    chosen: str | None = None,
    training: Mapping[str, int | None] | None = None,
) -> list[Standing]:
    """Return the candidates with letters, marks and outcomes, the best first.

    Candidates that were trained on fresh hosts have letters; before there are any, the front and the bare host have.

    Args:
        candidates: Candidates of a growth.
        objective: Quantity that the search maximises.
        chosen: Name of the chosen candidate; None without one.
        training: Number of the fresh host, None on the host of the search, on which a candidate trains now, keyed by
            its name.
    """
    on_front = {one.name for one in front(candidates)}
    has_fresh = any(one.is_fresh for one in candidates)
    letters = iter(ascii_lowercase)
    found: list[Standing] = []
    for one in rank_candidates(candidates, objective):
        is_placed = place_of(one) is not None
        is_lettered = is_placed and (one.is_fresh if has_fresh else one.name in on_front or one.name == BARE_HOST)
        letter = next(letters, "") if is_lettered else ""
        kind: PointKind = "host" if one.name == BARE_HOST else "point" if is_lettered else "trial"
        outcome = "chosen" if one.name == chosen else _outcome(one, training or {})
        found.append(Standing(one, letter, kind if is_placed else None, one.name in on_front, outcome))
    return found


def place_of(one: Candidate) -> tuple[float, float] | None:
    """Return the parameters (× host) and the score of a candidate in the chart; None if they were not measured."""
    ratio, score = one.parameter_ratio, one.mean_score
    if ratio is None or score is None or not math.isfinite(score) or not 0 < ratio < math.inf:
        return None
    return ratio, score


def _outcome(one: Candidate, training: Mapping[str, int | None]) -> str:
    if one.name in training:
        fresh = training[one.name]
        return "trains" if fresh is None else f"fresh host {fresh}"
    return one.outcome or ("done" if one.fresh_scores else NOT_MEASURED)


def format_score(one: Candidate) -> str:
    """Return the score without its unit: mean and interval over fresh hosts, else that of the trial."""
    return _format(one.scale, one.mean_score, one.score_interval)


def format_test(one: Candidate) -> str:
    """Return the score on the test split without its unit: mean and interval over fresh hosts, else that of one
    network."""
    return _format(one.scale, one.test_score, one.test_interval)


def format_with_unit(one: Candidate) -> str:
    """Return the score with its unit; a dash if it was not measured."""
    text = format_score(one)
    return text if text == NOT_MEASURED else one.scale.with_unit(text)


def format_return(one: Candidate) -> str:
    """Return the mean return on fresh hosts, else that of the trial; a dash if it was not measured."""
    return format_number(statistics.fmean(one.fresh_returns) if one.fresh_returns else one.net_return, "+.3f")


def format_ratio(one: Candidate) -> str:
    """Return the parameters as a multiple of those of the bare host; a dash if they were not measured."""
    return NOT_MEASURED if one.parameter_ratio is None else f"×{format_number(one.parameter_ratio, '.2f')}"


def label_of(one: Candidate) -> str:
    """Return the label of a candidate: `your network`, the seeds of its plan, or a policy with the seeds it planted."""
    label = describe_candidate(one.name)
    if one.seeds and one.origin in ("policy", "comparison"):
        label += f": {', '.join(one.seeds)}"
    return strip_control(label)


def format_trainings(one: Candidate) -> str:
    """Return the number of completed trainings: `1`, its trial, or `1 + 8 fresh` with those on fresh hosts."""
    fresh = [f"{len(one.fresh_scores)} fresh"] if one.fresh_scores else []
    return " + ".join([str(int(one.outcome == "done"))] * (one.name not in COMPARED) + fresh)


def fit_label(one: Candidate, width: int) -> str:
    """Return the label of a candidate in at most `width` characters: if it is too long, its name, perhaps cut."""
    label = label_of(one)
    return label if len(label) <= width else fit_name(one.name, width)


def fit_name(name: str, width: int) -> str:
    """Return the name of a candidate in words, in at most `width` characters: `norm late 5` if `norm in late at step 5`
    is too long, perhaps cut."""
    text = strip_control(describe_candidate(name))
    if len(text) > width and "@" in name:
        text = text.replace(" in ", " ").replace(" at step ", " ")
    return text if len(text) <= width else f"{text[: max(width - 1, 0)]}{_ELLIPSIS}"[: max(width, 0)]


def describe_reason(standing: Standing) -> str:
    """Return origin, outcome and reason of a candidate in words: `drawn by the search; pruned`."""
    one = standing.candidate
    reason = f"{standing.outcome}: {one.reason}" if one.reason else standing.outcome
    return strip_control(f"{ORIGINS[one.origin]}; {reason}")


ORIGINS = {
    "host": "your network, without a seed",
    "policy": "played by a policy",
    "known": "a plan that was good elsewhere",
    "drawn": "drawn by the search",
    "variation": "a variation of the best plan",
    "comparison": "a comparison, never chosen",
}
"""Description of each origin of a candidate."""


def select_rows(found: Sequence[Standing], limit: int) -> tuple[list[Standing], int]:
    """Return the first standings, always with the bare host, and the number of those that are left out."""
    if len(found) <= limit:
        return list(found), 0
    rows = list(found[:limit])
    host = next((one for one in found if one.name == BARE_HOST), None)
    if host is not None and host not in rows:
        rows[-1] = host
    return rows, len(found) - limit


Column: TypeAlias = PrintedColumn[Standing]
"""A column of the table."""


def _table(found: Sequence[Standing], score_name: str) -> PrintedTable[Standing]:
    """Return the table of candidates, without their marks. The test score is left out if no network was tested."""
    name = Column(
        NAME,
        lambda one: label_of(one.candidate),
        shorten=lambda one, width: fit_label(one.candidate, width),
        wanted_width=_WANTED_NAME_COLS,
    )
    unit = found[0].candidate.scale.unit if found else ""
    columns = [
        name,
        Column(strip_control(score_name), lambda one: format_score(one.candidate), unit=unit, is_right=True),
        Column("return", lambda one: format_return(one.candidate), is_right=True, priority=1),
        Column("params", lambda one: format_ratio(one.candidate), is_right=True),
        Column(TRAININGS, lambda one: format_trainings(one.candidate), is_right=True, priority=4),
        Column(ORIGIN, lambda one: one.candidate.origin, priority=3),
        Column(OUTCOME, lambda one: one.outcome.ljust(_MIN_OUTCOME_COLS)),
    ]
    if any(format_test(one.candidate) != NOT_MEASURED for one in found):
        columns.append(Column("test", lambda one: format_test(one.candidate), unit=unit, is_right=True, priority=2))
    return PrintedTable(columns, found)


def result_columns(found: Sequence[Standing], score_name: str) -> Sequence[Column]:
    """Return the columns after the name.

    Args:
        found: The candidates with their standings.
        score_name: Name of the task's score.
    """
    return _table(found, score_name).columns[1:]


def _format(scale: ScoreScale, value: float | None, interval: IntervalEstimate | None) -> str:
    """Return a mean and its interval without their unit, else the value; a dash if it was not measured."""
    return scale.number(value) if interval is None else scale.interval(interval, unit="")


def format_table(found: Sequence[Standing], score_name: str, *, width: int | None, limit: int = MAX_ROWS) -> list[str]:
    """Return the table as lines of text.

    Args:
        found: The candidates with their standings.
        score_name: Name of the task's score.
        width: Number of columns; None for no limit.
        limit: Maximum number of rows. A further line says how many candidates are left out.
    """
    shown, left_out = select_rows(found, limit)
    lines = list(_marked_table(shown, score_name).lines(width))
    return [*lines, f"and {left_out} more"] if left_out else lines


def _marked_table(found: Sequence[Standing], score_name: str) -> PrintedTable[Standing]:
    """Return the table of candidates with their letters and marks."""
    marks = Column("", lambda one: one.label)
    return PrintedTable([marks, *_table(found, score_name).columns], found)


def format_chart(found: Sequence[Standing], score_name: str, *, width: int, height: int = _PLOT_ROWS) -> list[str]:
    """Return the chart of score against parameters as lines of text; none without a measured candidate.

    Args:
        found: The candidates with their standings.
        score_name: Name of the task's score.
        width: Number of columns, at least 40.
        height: Number of lines of the plot.
    """
    chart = candidate_scatter(found, score_name).chart()
    if chart is None:
        return []
    return [f"{chart.quantity.label} by parameters, ×host", *chart.text(width, height + 1), f"  {MARK_LEGEND}"]


def candidate_points(found: Sequence[Standing], *, selected: str | None = None) -> list[ScatterPoint]:
    """Return the candidates of a chart: trials first, the bare host last, but the selected one after it.

    Better ones come after others of their kind, and cover them.

    Args:
        found: The candidates with their standings.
        selected: Name of the candidate under the cursor; None without one.
    """
    points: list[ScatterPoint] = []

    def importance(one: Standing) -> tuple[bool, int]:
        return one.name == selected, _KIND_ORDER.index(one.kind or "trial")

    for one in sorted(found, key=importance, reverse=True):
        at, interval = place_of(one.candidate), one.candidate.score_interval
        if at is not None and one.kind is not None:
            points.append(
                ScatterPoint(
                    *at,
                    one.kind,
                    one.is_on_front,
                    label=one.letter,
                    title=f"{label_of(one.candidate)}: {format_with_unit(one.candidate)}",
                    role="key" if one.name == selected else "",
                    y_ends=None if interval is None else (interval.low, interval.high),
                )
            )
    return points[::-1]


def candidate_scatter(found: Sequence[Standing], score_name: str) -> Scatter:
    """Return the chart of score against parameters, with the candidates that have a place in it."""
    scale = found[0].candidate.scale if found else PERCENT
    quantity = score_quantity(strip_control(score_name), scale)
    return Scatter(candidate_points(found), quantity, "parameters, × your network")


def format_report(
    found: Sequence[Standing], score_name: str, answer: str | None, *, width: int | None, plot_width: int = 80
) -> str:
    """Return table, chart and answer of a growth as text.

    Args:
        found: The candidates with their standings.
        score_name: Name of the task's score.
        answer: The answer; None before the end of the search.
        width: Number of columns of the table; None for no limit.
        plot_width: Number of columns of the chart, at least 40.
    """
    table = format_table(found, score_name, width=width)
    chart = format_chart(found, score_name, width=plot_width)
    blocks = [table, chart, [strip_control(answer)] if answer else []]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def html_report(found: Sequence[Standing], score_name: str, answer: str | None = None) -> str:
    """Return table, chart and answer of a growth as HTML, for notebooks.

    Args:
        found: The candidates with their standings.
        score_name: Name of the task's score.
        answer: The answer; None without one.
    """
    shown, left_out = select_rows(found, MAX_ROWS)
    parts = [html_text(answer)] if answer else []
    parts.append(_marked_table(shown, score_name).html())
    parts += [html_text(f"and {left_out} more")] if left_out else []
    scatter = candidate_scatter(found, score_name)
    return "".join(parts) + (SvgScatter(scatter).svg if scatter.points else "")


def best_candidate(candidates: Sequence[Candidate], objective: Objective) -> Candidate | None:
    """Return the best candidate so far, which is the bare host if none is better; None before the first result.

    Networks that are only compared are left out.
    """
    ranked = rank_candidates([one for one in candidates if one.name not in COMPARED], objective)
    first = ranked[0] if ranked else None
    return first if first is not None and (first.is_fresh or first.trial_value(objective) is not None) else None


def count_outcomes(candidates: Collection[Candidate]) -> dict[str, int]:
    """Return the number of candidates with each outcome of their trial, without outcomes that none has."""
    counts = dict.fromkeys(get_args(Outcome), 0)
    for one in candidates:
        if one.outcome is not None:
            counts[one.outcome] += 1
    return {outcome: count for outcome, count in counts.items() if count}
