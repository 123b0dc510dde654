"""Figures of an evaluation: the Pareto front, and where the policies are drawn."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from esper.studies.evaluation.comparison import EvaluationReport
from esper.studies.evaluation.figure import draw_text, front_policies, write_figure
from tests.studies.evaluation.reports import episode, report, run

POLICIES = {
    "static": (0.40, 1.0),
    "small": (0.90, 2.0),
    "plan:1:conv_light@early": (0.93, 3.0),
    "dear": (0.92, 5.0),
    "equal": (0.93, 3.5),
}
"""Mean accuracy and parameters of each policy."""


def drawn(policies: dict[str, tuple[float, float]] = POLICIES) -> EvaluationReport:
    return report(
        {
            policy: [run(*(episode(test_score=accuracy + change, ratio=ratio) for change in (-0.01, 0.01)))]
            for policy, (accuracy, ratio) in policies.items()
        },
        "a",
    )


def test_front_has_the_policies_that_no_other_one_dominates() -> None:
    assert front_policies(drawn().policies) == {"static", "small", "plan:1:conv_light@early"}
    twins = {"one": (0.5, 2.0), "two": (0.5, 2.0)}
    assert front_policies(drawn(twins).policies) == {"one", "two"}


def test_text_plot_places_every_policy() -> None:
    lines = draw_text(drawn(), 80, 16)
    assert all(len(line) <= 80 for line in lines[1:])
    plot, legend = lines[1:17], lines[18:]
    places = {
        letter: (row, line.index(letter)) for row, line in enumerate(plot) for letter in "abcde" if letter in line
    }
    assert sorted(places) == list("abcde")
    assert [plot[places[letter][0]][places[letter][1] + 1] for letter in "abcde"] == list("●●●○○")
    columns = [places[letter][1] for letter in "abced"]
    assert columns == sorted(columns)
    assert places["a"][0] > places["b"][0] > places["c"][0]
    assert legend == ["  a ● static", "  b ● small", "  c ● 1:conv_light@early", "  d ○ dear", "  e ○ equal"]


def test_text_plot_of_a_single_policy_is_drawn() -> None:
    lines = draw_text(drawn({"static": (0.4, 1.0)}), 60, 8)
    assert sum("a●" in line for line in lines[1:9]) == 1


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_figure_file_has_the_policies(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"figure.{ending}"
    write_figure(drawn(), path)
    assert path.stat().st_size > 1000
    if ending == "svg":
        text = path.read_text()
        assert ElementTree.fromstring(text).tag.endswith("svg")
        assert all(policy.removeprefix("plan:") in text for policy in POLICIES)
        write_figure(drawn(), path)
        assert path.read_text() == text  # the same for the same report
