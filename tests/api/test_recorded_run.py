"""`esper.read_run`: a recording as a Python session reads it."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from html import escape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import esper
from esper.cli.main import main
from esper.common.formatting import html_text
from esper.common.printed_table import PrintedTable
from esper.recordings import events as ev
from esper.recordings.effects.store import RESULTS_FILE
from esper.recordings.history.history import open_history
from esper.recordings.history.tables import TABLES, ColumnType
from esper.recordings.state.state import RunState
from tests.factory import example_run, growth_run, run_started, stamp
from tests.recordings.effects.growing import growing_run
from tests.recordings.effects.stored import store_effects
from tests.recordings.files.recordings import fold, recording, write_segment

DEMO = Path(__file__).parents[2] / "telemetry" / "demo"


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


def test_events_without_a_round_belong_to_the_round_in_progress(tmp_path: Path) -> None:
    whole, state = example_run(envs=2, rounds=3), RunState()
    by_round: dict[int, list[ev.AnyEvent]] = {}
    for event in whole:
        state.apply(event)
        by_round.setdefault(state.round, []).append(event)
    write_segment(tmp_path / "run", 1, recording(whole))
    run = esper.read_run(tmp_path / "run")
    for number in (1, 2, 3):
        assert repr(list(run.events(round=number))) == repr(by_round[number])
    anomalies = [event for number in (1, 2, 3) for event in run.events(ev.AnomalyFound, round=number)]
    assert len(anomalies) == sum(run.summary.anomalies.values()) > 0


def test_events_of_an_excerpt_begin_in_the_round_of_its_keyframe(tmp_path: Path) -> None:
    before = stamp([run_started(), ev.RoundStarted(round=3)])
    after = stamp([ev.Logged(severity="warning", text="late"), ev.RoundStarted(round=4)], first=3)
    write_segment(tmp_path / "excerpt", 2, recording(after, fold(before)))
    assert list(esper.read_run(tmp_path / "excerpt").events(round=3)) == after[:1]


def test_rounds_and_envs_that_do_not_exist_are_named_with_those_that_do(run: esper.RecordedRun, tmp_path: Path) -> None:
    for number in (0, 9):
        with pytest.raises(esper.ReadError, match=rf"^{run.name} has no round {number}; it has rounds 1 to 8$"):
            run.decisions(round=number)
    for number in (-1, 8):
        with pytest.raises(esper.ReadError, match=rf"^{run.name} has no env {number}; it has envs 0 to 7$"):
            run.events(env=number)  # before the first event is read
    before = stamp([run_started(), ev.RoundStarted(round=3)])
    write_segment(tmp_path / "excerpt", 2, recording(stamp([ev.RoundStarted(round=4)], first=2), fold(before)))
    with pytest.raises(esper.ReadError, match=r"has no round 2; it has rounds 3 to 4$"):
        esper.read_run(tmp_path / "excerpt").events(round=2)
    write_segment(tmp_path / "started", 1, recording(stamp([run_started()])))
    with pytest.raises(esper.ReadError, match=r"has no round 1; it has no round yet$"):
        esper.read_run(tmp_path / "started").decisions(round=1)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with a Parquet file per table."""
    pytest.importorskip("pyarrow")
    out = tmp_path_factory.mktemp("exported") / "out"
    assert main(["export", str(DEMO), "--to", "parquet", "--out", str(out)]) == 0
    return out


@pytest.mark.slow
def test_polars_frames_equal_the_export(run: esper.RecordedRun, exported: Path) -> None:
    polars: Any = pytest.importorskip("polars")
    for table in TABLES:
        frame, wanted = run.table(table.name), polars.read_parquet(exported / f"{table.name}.parquet")
        assert frame.schema == wanted.schema
        assert frame.equals(wanted)


@pytest.mark.slow
def test_pandas_frames_equal_the_export(
    run: esper.RecordedRun, exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pytest.importorskip("pandas")
    monkeypatch.setattr("esper.api.recorded_run.FRAME_LIBRARIES", ("pandas",))
    for table in TABLES:
        frame, wanted = run.table(table.name), parquet.read_table(exported / f"{table.name}.parquet")
        for column, values in zip(table.columns, wanted.columns, strict=True):
            series = frame[column.name]
            if column.type is ColumnType.NUMBER:  # null and NaN are one value in pandas
                assert repr(series.tolist()) == repr([math.nan if v is None else v for v in values.to_pylist()])
            else:
                assert pyarrow.array(series, values.type, from_pandas=True).to_pylist() == values.to_pylist()


@pytest.mark.parametrize("library", ["polars", "pandas"])
@pytest.mark.slow
def test_types_of_a_frame_do_not_depend_on_its_values(
    run: esper.RecordedRun, library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frames of two runs can be concatenated, although one run never measured a column that the other did."""
    pytest.importorskip(library)
    monkeypatch.setattr("esper.api.recorded_run.FRAME_LIBRARIES", (library,))
    write_segment(tmp_path / "empty", 1, recording(stamp([run_started()])))
    empty = esper.read_run(tmp_path / "empty")
    for table in TABLES:
        assert list(empty.table(table.name).dtypes) == list(run.table(table.name).dtypes)


def test_wrong_names_are_answered_with_the_nearest(run: esper.RecordedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyError, match="did you mean EnvStepped"):
        run.table("EnvSteped")
    with pytest.raises(KeyError, match="did you mean KL/policy"):
        run.plot("kll/policy")
    monkeypatch.setattr("esper.api.recorded_run.find_spec", lambda _: None)
    with pytest.raises(ImportError, match="a data frame needs polars or pandas; install one of them"):
        run.table()
    with pytest.raises(esper.ReadError, match="is neither a file nor a run in"):
        esper.read_run("nothing", "nowhere")


def test_run_shows_its_summary_and_curve(run: esper.RecordedRun, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(DEMO)]) == 0
    assert f"{run!r}\n" == capsys.readouterr().out
    table, _, picture = run._repr_html_().partition("</table>")
    assert f"<td>{run.name}</td>" in table
    assert picture == run.plot().svg
    medians = run.curves()["final accuracy/median"]
    assert medians.values == [found.score.median for found in run.summary.finished]
    assert len(medians.steps) == len(medians.values)


def test_run_shows_the_effects_that_are_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_segment(tmp_path, 1, recording(growing_run()))
    store_effects(tmp_path, 1, 0, {2: 0.25})
    shown = esper.read_run(tmp_path)
    worth = shown.summary.seeds["depthwise"].worth
    assert worth
    assert worth.net.mean == pytest.approx(0.25)
    assert main(["show", str(tmp_path)]) == 0
    assert f"{shown}\n" == capsys.readouterr().out


def test_effects_that_cannot_be_read_are_a_notice(tmp_path: Path) -> None:
    write_segment(tmp_path, 1, recording(growing_run()))
    (tmp_path / RESULTS_FILE).mkdir()
    [notice] = esper.read_run(tmp_path).notices
    assert notice.startswith("stored effects cannot be read: ")


def test_growth_shows_its_candidates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_segment(tmp_path, 1, recording(growth_run()))
    grown = esper.read_run(tmp_path)
    assert [one.name for one in grown.search[:2]] == ["2:conv_small@mid", "pretrained"]
    page = grown._repr_html_()
    assert "<td>conv_small in mid at step 2</td><td>86.0 [83.5, 88.5]</td>" in page
    assert page.count("<svg") == 1
    assert main(["show", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^growth +12 of 12 trials; 12 candidates: 8 done", shown, re.MULTILINE)
    assert "85.0% [82.5, 87.5] against 77.0% [74.5, 79.5] on the test split" in shown
    assert "rounds" not in shown
    assert main(["show", str(tmp_path), "--json"]) == 0
    assert '"candidates":' in capsys.readouterr().out
    assert esper.read_run(DEMO).search == []


def test_recording_without_a_readable_event_is_refused(tmp_path: Path) -> None:
    write_segment(tmp_path / "damaged", 1, recording(growing_run()[1:]))  # without the start of the run
    with pytest.raises(esper.ReadError, match="line 3 is damaged and was skipped"):
        esper.read_run(tmp_path / "damaged")
    write_segment(tmp_path / "new", 1, recording([]))
    with pytest.raises(esper.ConfigError, match="new has no events yet"):
        esper.read_run(tmp_path / "new")


def test_texts_are_escaped_in_html() -> None:
    text = "<script>alert(1)</script> & co"
    assert f"<td>{escape(text)}</td>" in PrintedTable.from_cells(("", ""), [("run", text)]).html()
    assert html_text(text) == f"<pre>{escape(text)}</pre>"


def test_plot_names_its_curves_and_axis(run: esper.RecordedRun) -> None:
    names = ["KL/policy", "accuracy/env 03"]
    texts = [found.text for found in ElementTree.fromstring(run.plot(*names).svg).iter()]
    assert {*names, "step of the run"} <= set(texts)


def test_reading_needs_no_torch() -> None:
    code = f"""
import importlib.util, sys, esper
run = esper.read_run({str(DEMO)!r})
str(run), run._repr_html_(), list(run.events()), run.decisions(), run.curves()
if any(map(importlib.util.find_spec, ("polars", "pandas"))):
    run.table()
sys.exit("torch" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_run_is_found_by_name_path_and_last(tmp_path: Path) -> None:
    path = tmp_path / "first"
    write_segment(path, 1, recording(stamp([run_started()])))
    runs = [esper.read_run("last", tmp_path), esper.read_run("first", str(tmp_path)), esper.read_run(path)]
    assert [found.directory for found in runs] == [path] * 3
    assert "<svg" in runs[0]._repr_html_()  # without a finished round
