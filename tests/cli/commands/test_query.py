"""`query` and `esper.query`: the forms of an answer, and its warnings."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import esper
from esper.cli.main import main
from tests.factory import env_stepped, run_started, stamp
from tests.recordings.files.recordings import recording, write_segment

pytest.importorskip("duckdb")
pytest.importorskip("pyarrow")


@pytest.fixture
def telemetry(tmp_path: Path) -> Path:
    started = run_started(envs=2)
    steps = [env_stepped(0, grad_norm=math.nan, value=None), env_stepped(1, grad_norm=0.25)]
    write_segment(tmp_path / "run", 1, recording(stamp([started, *steps])))
    return tmp_path


def asked(telemetry: Path, capsys: pytest.CaptureFixture[str], *options: str, sql: str = "") -> str:
    sql = sql or "select env, grad_norm, value, step > 0 as later, time::date as day, time from steps order by env"
    assert main(["query", sql, "--telemetry-dir", str(telemetry), *options]) == 0
    return capsys.readouterr().out


def test_answer_is_a_table_json_or_csv(telemetry: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = asked(telemetry, capsys).splitlines()
    assert [line.split() for line in table] == [
        ["env", "grad_norm", "value", "later", "day", "time"],
        ["0", "NaN", "–", "true", "2026-09-21", "2026-09-21T14:13:20.010000Z"],
        ["1", "0.25", "0.2", "true", "2026-09-21", "2026-09-21T14:13:20.020000Z"],
    ]
    assert asked(telemetry, capsys, "--csv").splitlines() == [
        "env,grad_norm,value,later,day,time",
        "0,NaN,,true,2026-09-21,2026-09-21T14:13:20.010000Z",
        "1,0.25,0.2,true,2026-09-21,2026-09-21T14:13:20.020000Z",
    ]
    first, second = json.loads(asked(telemetry, capsys, "--json"))
    assert (first["grad_norm"], first["value"], second["grad_norm"], second["later"]) == ("NaN", None, 0.25, True)


def test_lists_are_json_in_csv(telemetry: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = asked(telemetry, capsys, "--csv", sql="select [1, 2] as a, 'b, c' as d")
    assert text == 'a,d\n"[1,2]","b, c"\n'


def test_warnings_name_left_out_rows_and_runs(telemetry: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_segment(telemetry / "bad", 1, b"nonsense\n" * 3)
    sql = "select run from steps"
    assert main(["query", sql, "--telemetry-dir", str(telemetry), "--max-rows", "1"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "run\nrun\n"
    assert "only the first 1 rows are shown; see --max-rows" in printed.err
    assert "bad" in printed.err
    with pytest.warns(UserWarning, match="^(only the first 1 rows|bad)") as warned:
        esper.query(sql, telemetry, max_rows=1)
    assert [str(found.message).split()[0] for found in warned] == ["only", "bad"]
    assert {found.filename for found in warned} == {__file__}


def test_wrong_query_ends_with_one_sentence(telemetry: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query", "select 1; select 2", "--telemetry-dir", str(telemetry)]) == 2
    assert "a query is one SELECT statement" in capsys.readouterr().err
    with pytest.raises(esper.ConfigError, match="a query is one SELECT statement"):
        esper.query("drop table runs", telemetry)


@pytest.mark.parametrize("package", ["duckdb", "pyarrow"])
def test_missing_package_is_named(
    package: str, telemetry: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("esper.cli.options", "esper.api.query"):
        monkeypatch.setattr(f"{module}.find_spec", lambda name: None if name == package else object())
    assert main(["query", "select 1", "--telemetry-dir", str(telemetry)]) == 2
    assert f"query: {package} is not installed: run `uv sync --inexact --extra sql`" in capsys.readouterr().err
    with pytest.raises(ImportError, match=f"esper.query needs {package}: run `uv sync --inexact --extra sql`"):
        esper.query("select 1", telemetry)


@pytest.mark.parametrize("library", ["polars", "pandas"])
def test_frame_has_the_types_of_the_table(library: str, telemetry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(library)
    monkeypatch.setattr("esper.api.recorded_run.FRAME_LIBRARIES", (library,))
    run = esper.read_run(telemetry / "run")
    for name in ("RunStarted", "EnvStepped"):
        frame: Any = esper.query(f"select * from {name}", telemetry)
        assert list(frame.dtypes) == list(run.table(name).dtypes)


@pytest.mark.slow
def test_query_needs_no_torch(telemetry: Path) -> None:
    code = (
        f"import sys, esper; esper.query('select run from runs', {str(telemetry)!r}); sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
