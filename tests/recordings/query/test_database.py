"""SQL over recordings: the views, the recordings that a statement reads, and its limits."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from esper.common.configuration.config import ConfigError
from esper.recordings import events as ev
from esper.recordings.files.notes import NOTES_FILE, RunNotes, write_notes
from esper.recordings.files.run_directory import RunDirectory
from esper.recordings.files.run_lock import RunLock
from esper.recordings.history.run_status import LIVE_STATES
from esper.recordings.query import database
from esper.recordings.query.database import answer_query
from esper.recordings.query.tables import RECORDING_TABLES, RUN_COLUMNS, VIEWS
from tests.factory import env_stepped, example_run, growth_run, run_started, stamp
from tests.recordings.effects.growing import growing_run
from tests.recordings.effects.stored import store_effects
from tests.recordings.files.recordings import lines, recording, write_segment

duckdb: Any = pytest.importorskip("duckdb")
pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def telemetry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four runs: two alike, a growth, and one with a known effect."""
    folder = tmp_path_factory.mktemp("telemetry")
    for name in ("first", "second"):
        write_segment(folder / name, 1, recording(example_run()))
    write_segment(folder / "growth", 1, recording(growth_run()))
    write_segment(folder / "grown", 1, recording(growing_run()))
    write_notes(folder / "second", RunNotes(tags=("baseline",)))
    return folder


def rows(sql: str, telemetry: Path, *, max_rows: int = 100) -> list[tuple[Any, ...]]:
    answer = answer_query(sql, telemetry, max_rows=max_rows)
    assert answer.problems == []
    return [tuple(row.values()) for row in answer.table.to_pylist()]


def test_names_need_no_quotes() -> None:
    for name in ["runs", *VIEWS, *(table.name for table in RECORDING_TABLES)]:
        duckdb.extract_statements(f"select * from {name}")
    tables = [RUN_COLUMNS, *(table.columns for table in RECORDING_TABLES)]
    for columns in tables:
        names = [column.name.lower() for column in columns]
        assert len(set(names)) == len(names)
        duckdb.extract_statements(f"select {', '.join(names)} from runs")


def test_runs_have_facts_measures_and_settings(telemetry: Path) -> None:
    sql = "select run, state, task, tags, rounds, score > 0.5, return, ppo_gamma, devices from runs order by run"
    found = rows(sql, telemetry)
    assert [row[0] for row in found] == ["first", "grown", "growth", "second"]
    assert found[0] == ("first", "done", "digits_impaired", [], 2, True, pytest.approx(0.6), None, None)
    assert found[2][4] is None  # a growth has no number of rounds
    assert found[3][3] == ["baseline"]


def test_each_view_has_rows(telemetry: Path) -> None:
    store_effects(telemetry / "grown", 1, 0, {2: 0.25, 5: -0.5})
    assert rows("select count(*), count(distinct run) from steps where run <> 'growth'", telemetry) == [(89, 3)]
    decided = "select step, op, decision_blueprint_choice from decisions where run = 'grown' and op <> 'wait' limit 2"
    assert rows(decided, telemetry) == [(2, "germinate", "depthwise"), (4, "advance", None)]
    assert rows("select distinct slot from slots where run='first' order by 1", telemetry) == [
        ("early",), ("late",), ("mid",),
    ]  # fmt: skip
    assert rows("select sum(minibatches) from updates where run = 'second'", telemetry) == [(32,)]
    assert rows("select rule from anomalies where run = 'first' and env = 1", telemetry)[0] == ("non-finite gradient",)
    best = "select name, score_interval_low > 0.8 from candidates where origin = 'known' order by score desc limit 1"
    assert rows(best, telemetry) == [("2:conv_small@mid", True)]
    effects = "select step, slot, blueprint, round(net_return, 3), exact, whole from effects order by step"
    assert rows(effects, telemetry) == [
        (2, "early", "depthwise", 0.25, True, True),
        (5, "mid", "norm", -0.5, True, True),
    ]


def test_null_is_not_measured_and_nan_is_measured(tmp_path: Path) -> None:
    steps = [env_stepped(grad_norm=value) for value in (None, math.nan, math.inf, 0.5)]
    write_segment(tmp_path / "run", 1, recording(stamp([run_started(), *steps])))
    sql = "select grad_norm is null, isnan(grad_norm), grad_norm > 1e300 from steps order by seq"
    assert rows(sql, tmp_path) == [(True, None, None), (False, True, True), (False, False, True), (False, False, False)]
    assert rows("select count(*) from steps where grad_norm > 0.1", tmp_path) == [(3,)]  # NaN is the greatest number


def test_only_the_runs_of_the_condition_are_read(telemetry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    open_history = database.open_history
    monkeypatch.setattr(database, "open_history", lambda path: opened.append(path.name) or open_history(path))
    assert rows("select count(*) from steps where run = 'first' and step < 3", telemetry) == [(16,)]
    assert opened == ["first"]
    opened.clear()
    sql = "with a as (select * from slots where run in ('first', 'grown')) select count(distinct run) from a"
    assert rows(sql, telemetry) == [(2,)]
    assert sorted(opened) == ["first", "grown"]
    opened.clear()
    assert len(rows("select run from runs", telemetry)) == 4
    assert opened == []


def test_live_run_is_included(tmp_path: Path) -> None:
    events = [event for event in example_run() if not isinstance(event, ev.RunEnded)]
    content = recording(events[:50])
    lock = RunLock(RunDirectory(write_segment(tmp_path / "live", 1, content).parent))
    sql = "select state, count(*) from runs join steps using (run) group by all"
    [(state, before)] = rows(sql, tmp_path)
    write_segment(tmp_path / "live", 1, content + lines(events[50:]))
    [(_, after)] = rows(sql, tmp_path)
    assert state in LIVE_STATES
    assert 0 < before < after == 40
    lock.release()


def test_unreadable_runs_are_named_and_left_out(telemetry: Path, tmp_path: Path) -> None:
    for name in ("good", "bad"):
        write_segment(tmp_path / name, 1, recording(example_run()))
    (tmp_path / "bad" / "events-00001.jsonl").write_bytes(b"nonsense\n" * 3)
    huge = stamp([run_started(), env_stepped(skipped_batches=10**30)])
    write_segment(tmp_path / "huge", 1, recording(huge))
    for sql in (
        "select run from runs where run <> 'huge'",
        "select distinct run from steps where skipped_batches >= 0",
    ):
        answer = answer_query(sql, tmp_path, max_rows=10)
        assert answer.table.to_pylist() == [{"run": "good"}]
        assert any(text.startswith("bad") for text in answer.problems)
    assert any(text.startswith("huge cannot be read, and is left out: ") for text in answer.problems)


@pytest.mark.parametrize(
    "sql",
    [
        "copy (select 1) to '{out}'",
        "attach '{out}'",
        "export database '{out}'",
        "create table a (b int)",
        "create persistent secret s (type http)",
        "install httpfs",
        "load httpfs",
        "set memory_limit = '100GB'",
        "pragma database_list",
        "call enable_logging()",
        "explain analyze select 1",
        "select 1; select 2",
        "",
        "-- nothing",
    ],
)
def test_other_statements_are_refused(sql: str, telemetry: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^a query is one SELECT statement"):
        answer_query(sql.format(out=tmp_path / "out"), telemetry, max_rows=10)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "source",
    [
        "read_csv('{file}')",
        "read_text('{file}')",
        "read_blob('{file}')",
        "read_parquet('{file}')",
        "sniff_csv('{file}')",
        "glob('/*')",
        "'{file}'",
        "telemetry",  # a variable of this function
        "query('copy (select 1) to ''{file}.out''')",
    ],
)
def test_files_and_variables_cannot_be_read(source: str, telemetry: Path, tmp_path: Path) -> None:
    file = tmp_path / "file.csv"
    file.write_text("a\n1\n")
    with pytest.raises(ConfigError, match=r"^the query failed: "):
        answer_query(f"select * from {source.format(file=file)}", telemetry, max_rows=10)
    assert list(tmp_path.iterdir()) == [file]


def test_configuration_is_locked(telemetry: Path) -> None:
    names = "'enable_external_access', 'autoload_known_extensions', 'lock_configuration', 'temp_directory'"
    sql = f"select name, value from duckdb_settings() where name in ({names}) order by 1"
    assert [value for _, value in rows(sql, telemetry)] == ["false", "false", "true", ""]


@pytest.mark.parametrize(
    "sql",
    [
        "select count(*) from range(1000000) a, range(1000000) b, range(1000000) c",
        "with recursive a as (select 1 i union all select i + 1 from a) select count(*) from a",
    ],
)
def test_endless_statement_ends_at_its_limit(sql: str, telemetry: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"^the query was stopped after 0.2 s; ask about fewer runs, or raise the limit$"
    ):
        answer_query(sql, telemetry, max_rows=10, max_seconds=0.2)


@pytest.mark.slow
def test_statement_without_memory_fails(telemetry: Path) -> None:
    with pytest.raises(ConfigError, match=r"^the query failed: Out of Memory"):
        answer_query("select string_agg(range::varchar) from range(100000000000)", telemetry, max_rows=10)


@pytest.mark.parametrize("sql", ["select * from range(1000000000000)", "select * from steps -- limit 5", "from steps"])
def test_further_rows_are_left_out(sql: str, telemetry: Path) -> None:
    answer = answer_query(sql, telemetry, max_rows=3)
    assert (answer.table.num_rows, answer.is_truncated) == (3, True)


def test_sums_are_integers(telemetry: Path) -> None:
    sql = "select sum(step), sum(step) * 1000000000000000000000::hugeint, 0.5 from steps where run = 'grown'"
    [(total, huge, half)] = rows(sql, telemetry)
    assert (total, type(total)) == (45, int)
    assert (huge, half) == (4.5e22, 0.5)


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("select nothing from runs", 'Referenced column "nothing" not found'),
        ("select * from step", "Table with name step does not exist! Did you mean"),
        ("selec 1", "syntax error at or near"),
    ],
)
def test_wrong_statement_is_one_sentence(sql: str, message: str, telemetry: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        answer_query(sql, telemetry, max_rows=10)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_missing_directory_and_wrong_limits_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere not found"):
        answer_query("select 1", tmp_path / "nowhere", max_rows=1)
    for limits in ({"max_rows": 0}, {"max_rows": 1, "max_seconds": math.nan}):
        with pytest.raises(ConfigError, match="must be above 0"):
            answer_query("select 1", tmp_path, **limits)


def test_hostile_names_are_inert(tmp_path: Path) -> None:
    name = "x' or 1=1; drop table runs; -- \x1b[31m"
    started = msgspec.structs.replace(run_started(), task=name)
    write_segment(tmp_path / name, 1, recording(stamp([started, env_stepped()])))
    os.mkdir(os.fsencode(tmp_path) + b"/\xff")
    (tmp_path / os.fsdecode(b"\xff") / "run.json").write_text("{}")
    (tmp_path / name / NOTES_FILE).write_text('{"format": 1, "name": "$(rm -rf /)"}')
    answer = answer_query("select run, task from runs", tmp_path, max_rows=5)
    assert answer.table.to_pylist() == [{"run": name, "task": name}]
    assert "its name is not UTF-8" in answer.problems[0]
    [found] = answer_query("select run from steps where run like 'x%'", tmp_path, max_rows=5).table.to_pylist()
    assert found == {"run": name}
