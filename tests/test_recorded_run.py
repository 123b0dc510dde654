"""`esper.read_run`: a recording as a Python session reads it."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import esper
from esper.cli.main import main
from esper.history.history import open_history
from esper.telemetry import events as ev

DEMO = Path(__file__).parents[1] / "telemetry" / "demo"


@pytest.fixture(scope="module")
def run() -> esper.RecordedRun:
    return esper.read_run(DEMO)


def test_events_and_decisions_are_those_of_the_history(run: esper.RecordedRun) -> None:
    every = list(open_history(DEMO).events())
    assert repr(list(run.events())) == repr(every)
    steps = [event for event in every if isinstance(event, ev.EnvStepped) and (event.round, event.env) == (2, 3)]
    assert list(run.events(ev.EnvStepped, round=2, env=3)) == steps
    decisions = run.decisions(round=2, env=3)
    assert [(found.step, found.op, found.target) for found in decisions] == [
        (step.step, step.op, step.target) for step in steps
    ]
    planted = next(found for found in decisions if found.op == "germinate")
    assert planted.choices["slot"] == planted.target
    assert "blueprint" in planted.choices


@pytest.mark.parametrize("library", ["polars", "pandas"])
def test_table_equals_the_export(
    run: esper.RecordedRun, library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(library)
    monkeypatch.setattr("esper.recorded_run.FRAME_LIBRARIES", (library,))
    assert main(["export", str(DEMO), "--to", "csv", "--out", str(tmp_path / "out")]) == 0
    for name, column in (("EnvStepped", "op"), ("SlotReading", "stage"), ("AnomalyFound", "rule")):
        table = run.table(name)
        assert type(table).__module__.startswith(library)
        with (tmp_path / "out" / f"{name}.csv").open() as file:
            heading, *rows = csv.reader(file)
        assert list(table.columns) == heading
        assert list(table[column]) == [row[heading.index(column)] for row in rows]


def test_wrong_names_are_answered_with_the_nearest(run: esper.RecordedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyError, match="did you mean EnvStepped"):
        run.table("EnvSteped")
    with pytest.raises(KeyError, match="did you mean policy/kl"):
        run.plot("policy/kll")
    monkeypatch.setattr("esper.recorded_run.FRAME_LIBRARIES", ("no_such_library",))
    with pytest.raises(ImportError, match="a data frame needs no_such_library; install one of them"):
        run.table()
    with pytest.raises(esper.ReadError, match="is neither a file nor a run in"):
        esper.read_run("nothing", "nowhere")


def test_run_shows_its_summary_and_curve(run: esper.RecordedRun, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(DEMO)]) == 0
    assert f"{run!r}\n" == capsys.readouterr().out
    table, _, picture = run._repr_html_().partition("</table>")
    assert f"<td>{run.name}</td>" in table
    assert picture == run.plot().svg
    medians = run.curves()["all envs/accuracy median"]
    assert medians.values == [found.score[1] for found in run.summary.finished]
    assert len(medians.steps) == len(medians.values)


def test_plot_names_its_curves_and_axis(run: esper.RecordedRun) -> None:
    names = ["policy/kl", "env 03/accuracy"]
    texts = [found.text for found in ElementTree.fromstring(run.plot(*names).svg).iter()]
    assert {*names, "step of the run"} <= set(texts)


def test_reading_needs_no_torch() -> None:
    code = f"import sys, esper; run = esper.read_run({str(DEMO)!r}); str(run); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
