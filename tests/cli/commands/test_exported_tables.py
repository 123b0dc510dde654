"""DuckDB, polars, pyarrow and pandas read exported tables without options."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import zstandard

from esper.cli.main import main
from tests.factory import env_stepped, run_started, stamp
from tests.recordings.files.recordings import recording, write_segment
from tests.runs import LiveRun

duckdb: Any = pytest.importorskip("duckdb")
polars: Any = pytest.importorskip("polars")
pandas: Any = pytest.importorskip("pandas")
dataset: Any = pytest.importorskip("pyarrow.dataset")
compute: Any = pytest.importorskip("pyarrow.compute")

NORMS = [1.0, math.nan, 250.0, None, 3.0, math.nan, math.inf]


@pytest.fixture(scope="module")
def strange(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables of a run with gradient norms that are NaN, infinite, large, and absent."""
    directory = tmp_path_factory.mktemp("strange")
    events = [run_started(8, 1, 1), *(env_stepped(env, grad_norm=norm) for env, norm in enumerate(NORMS))]
    write_segment(directory / "run", 1, recording(stamp(events)))
    for to in ("parquet", "csv"):
        assert main(["export", str(directory / "run"), "--to", to, "--out", str(directory / to)]) == 0
    return directory


def count(query: str) -> int:
    [[number]] = duckdb.sql(query).fetchall()
    return number


def test_nan_and_large_values_are_found_everywhere(strange: Path) -> None:
    parquet = strange / "parquet" / "EnvStepped.parquet"
    assert count(f"select count(*) from '{parquet}' where isnan(grad_norm)") == 2
    assert count(f"select count(*) from '{parquet}' where grad_norm > 100 and not isnan(grad_norm)") == 2
    assert count(f"select count(*) from '{parquet}' where grad_norm is null") == 1

    norm = polars.col("grad_norm")
    frame = polars.scan_parquet(parquet)
    for condition, wanted in ((norm.is_nan(), 2), ((norm > 100) & norm.is_not_nan(), 2), (norm.is_null(), 1)):
        assert frame.filter(condition).select(polars.len()).collect().item() == wanted

    table, field = dataset.dataset(parquet), compute.field("grad_norm")
    assert table.count_rows(filter=compute.is_nan(field)) == 2
    assert table.count_rows(filter=field > 100) == 2
    assert table.count_rows(filter=field.is_null()) == 1


def test_csv_tells_absent_from_nan(strange: Path) -> None:
    csv = strange / "csv" / "EnvStepped.csv"
    assert count(f"select count(*) from '{csv}' where isnan(grad_norm)") == 2
    assert count(f"select count(*) from '{csv}' where grad_norm is null") == 1
    frame = polars.read_csv(csv, infer_schema_length=None)
    assert frame["grad_norm"].is_nan().sum() == 2
    assert frame["grad_norm"].is_null().sum() == 1
    texts = pandas.read_csv(csv, keep_default_na=False, na_values=[""], dtype={"grad_norm": "string"})["grad_norm"]
    assert (texts.isna().sum(), (texts == "NaN").sum()) == (1, 2)


def test_raw_events_have_one_type_per_field_and_real_times(tmp_path: Path) -> None:
    """The first line of a recording, a Keyframe, has the time of the first event."""
    live = LiveRun(tmp_path, envs=2, steps=2, rounds=1)
    live.start().finish()
    [packed] = live.run.directory.glob("events-*.zst")
    [[first]] = duckdb.sql(f"select min(time) from '{packed}'").fetchall()
    assert first > 1_700_000_000
    plain = tmp_path / "events.jsonl"
    with zstandard.open(packed, "rb", dctx=None) as file:
        plain.write_bytes(file.read())
    json = pytest.importorskip("pyarrow.json")
    table = json.read_json(plain)
    assert {"slots", "slot_names"} <= set(table.column_names)


@pytest.fixture(scope="module")
def two_tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables of two runs: tasks with other slots, one of them with a loss scale."""
    directory = tmp_path_factory.mktemp("two")
    runs: list[str] = []
    for task, amp in (("recall", "off"), ("mnist1d", "fp16")):
        live = LiveRun(directory / task, task=task, amp=amp, envs=2, steps=2, rounds=1)
        assert live.start().finish().status == "done"
        runs.append(str(live.run.directory))
    assert main(["export", *runs, "--to", "parquet", "--out", str(directory / "out")]) == 0
    return directory / "out"


def test_tables_of_two_tasks_combine(two_tasks: Path) -> None:
    for name in ("EnvStepped", "SlotReading", "PolicyUpdated", "RunStarted", "Phase"):
        rows = count(f"select count(*) from '{two_tasks / name}/*.parquet'")
        assert rows > 0
        assert len(polars.read_parquet(two_tasks / name)) == rows
        assert dataset.dataset(two_tasks / name).count_rows() == rows
        assert len(pandas.read_parquet(two_tasks / name)) == rows
    runs = duckdb.sql(
        f"select run, count(loss_scale) from '{two_tasks}/EnvStepped/*.parquet' group by run order by run"
    )
    assert [(run.partition("-")[0], scaled) for run, scaled in runs.fetchall()] == [("mnist1d", 4), ("recall", 0)]
    slots = duckdb.sql(f"select distinct slot from '{two_tasks}/SlotReading/*.parquet' order by slot").fetchall()
    assert [slot for [slot] in slots] == ["early", "first", "late", "mid", "second"]


def test_times_are_timestamps(two_tasks: Path) -> None:
    [[seconds]] = duckdb.sql(
        f"select max(time) - min(time) < interval 1 hour from '{two_tasks}/EnvStepped/*.parquet'"
    ).fetchall()
    assert seconds
    frame = pandas.read_parquet(two_tasks / "EnvStepped")
    assert str(frame["time"].dtype) == "datetime64[us, UTC]"
    assert frame["time"].dt.year.min() >= 2026


def test_table_is_smaller_than_the_recording(tmp_path: Path) -> None:
    demo = Path(__file__).parents[3] / "telemetry" / "demo"
    assert main(["export", str(demo), "--to", "parquet", "--out", str(tmp_path / "out")]) == 0
    recorded = sum(path.stat().st_size for path in demo.glob("events-*"))
    assert all(path.stat().st_size < recorded for path in (tmp_path / "out").iterdir())
