"""Table, chart and HTML of the candidates of a growth."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from esper.cli.growth_lines import format_growth
from esper.common.plots.svg import SvgScatter
from esper.recordings.candidates.candidates import BARE_HOST, FROM_SCRATCH, Candidate
from esper.recordings.candidates.report import (
    candidate_scatter,
    fit_label,
    format_chart,
    format_report,
    format_table,
    format_trainings,
    html_report,
    label_of,
    standings,
)
from esper.recordings.state.search_state import SearchState
from tests.factory import FINALISTS, growth_run
from tests.recordings.files.recordings import fold


def search_of(**options: int) -> SearchState:
    search = fold(growth_run(**options)).search
    assert search is not None
    return search


def test_fresh_results_come_first_and_have_letters() -> None:
    found = search_of().standings()
    best = "2:conv_small@mid"
    assert [one.name for one in found[:4]] == [best, "pretrained", FROM_SCRATCH, BARE_HOST]
    assert [one.label for one in found[:4]] == ["a ●", "b ●", "c ○", "d ◆"]
    assert {one.label for one in found[4:]} == {"  ·", ""}
    returns = [one.candidate.net_return for one in found[4:] if one.candidate.net_return is not None]
    assert returns == sorted(returns, reverse=True)
    assert [one.outcome for one in found if one.outcome != "done"] == [
        "chosen", "pruned", "pruned", "broke down", "failed",
    ]  # fmt: skip
    assert [format_trainings(one.candidate) for one in found[:4]] == ["1 + 3 fresh"] * 2 + ["3 fresh", "1 + 3 fresh"]
    before = search_of(stop=2).standings()
    assert [(one.label, one.name) for one in before[:3]] == [("a ●", best), ("b ●", "pretrained"), ("c ◆", BARE_HOST)]
    assert [one.outcome for one in before].count("trains") == 2
    assert "fresh host 1" in {one.outcome for one in search_of(stop=4).standings()}


@pytest.mark.parametrize("width", [60, 80, 200])
def test_table_fits_the_terminal_and_keeps_the_host(width: int) -> None:
    found = search_of(trials=40, fresh=0).standings()
    lines = format_table(found, "accuracy", width=width, limit=5)
    assert all(len(line) <= width for line in lines)
    assert lines[-1] == "and 35 more"
    assert len(lines) == 7
    assert "◆  your network" in lines[-2]
    name = "conv_small mid 2" if width == 60 else "conv_small in mid at step 2"
    assert "86.0" in next(line for line in lines if f"{name} " in line)
    assert ("trainings" in lines[0], "return" in lines[0]) == (width == 200, width > 60)


def test_labels_name_what_a_policy_has_planted() -> None:
    policy = Candidate(name="pretrained", origin="policy", seeds=["conv_heavy in s3"])
    assert label_of(policy) == "pretrained: conv_heavy in s3"
    assert fit_label(policy, 12) == "pretrained"
    assert fit_label(Candidate(name="4:norm@late 2:norm@mid", origin="drawn"), 20) == "norm late 4, norm m…"


def test_chart_places_fresh_candidates_by_their_parameters() -> None:
    found = search_of().standings()
    heading, *plot, axis, legend = format_chart(found, "accuracy", width=80, height=12)
    assert all(len(line) <= 80 for line in plot)
    assert heading == "accuracy % by parameters, ×host"
    text = "\n".join(plot)
    places = {letter: (text.index(f"{letter}{mark}"), mark) for letter, mark in (("a", "●"), ("b", "●"), ("d", "◆"))}
    columns = {letter: len(text[:at].rpartition("\n")[2]) for letter, (at, _) in places.items()}
    assert columns["d"] < columns["b"] < columns["a"]
    rows = {letter: text[:at].count("\n") for letter, (at, _) in places.items()}
    assert rows["a"] <= rows["b"] < rows["d"]
    assert re.search("[⡇⢸]", "".join(format_chart(found, "accuracy", width=80, height=40)[1:-2]))  # intervals
    assert axis.split()[0] == "×1"
    assert "your network" in legend
    alone = standings(
        [Candidate(name=BARE_HOST, origin="host", outcome="done", score=0.5, parameter_ratio=1.0)], "score"
    )
    assert sum("a◆" in line for line in format_chart(alone, "accuracy", width=40)) == 1
    assert format_chart(standings([Candidate(name=BARE_HOST, origin="host")], "score"), "accuracy", width=40) == []


def test_report_has_table_chart_and_answer() -> None:
    search = search_of()
    assert search.answer is not None
    text = format_growth(search, "accuracy", width=80)
    assert text == format_report(search.standings(), "accuracy", search.answer, width=80)
    assert text.endswith(search.answer)
    assert format_growth(SearchState(info=search.info), "accuracy") == "no trial has started"


def test_html_escapes_names_and_draws_every_measured_candidate() -> None:
    search = search_of()
    search.candidates.append(
        Candidate(name="2:<b>@mid", origin="drawn", outcome="done", score=0.4, net_return=0.1, parameter_ratio=9.0)
    )
    page = html_report(search.standings(), "accuracy", search.answer)
    assert "<b>" not in page
    assert "&lt;b&gt; in mid at step 2" in page
    root = ElementTree.fromstring(SvgScatter(candidate_scatter(search.standings(), "accuracy")).svg)
    groups = [found for found in root if found.tag.endswith("}g")]
    assert len(groups) == len(search.candidates) - 1  # one has failed
    shapes = [[part.tag.rpartition("}")[2] for part in group] for group in groups]
    assert shapes.count(["title", "path", "circle", "text"]) == len(FINALISTS) - 1
    assert shapes.count(["title", "path", "path", "text"]) == 1  # the bare host, a diamond
    assert {"×1", "×5"} <= {found.text for found in root if found.tag.endswith("}text")}
