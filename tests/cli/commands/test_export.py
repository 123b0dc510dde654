from __future__ import annotations

import csv
import json
import math
import statistics
import subprocess
import sys
from collections import Counter
from datetime import datetime
from pathlib import Path

import msgspec
import pytest

from esper.cli.commands import export as command
from esper.cli.main import main
from esper.recordings import events as ev
from esper.recordings.history import export as module
from esper.recordings.history.tables import TABLES
from tests.factory import SLOTS, device_sampled, env_stepped, example_run, run_started, stamp
from tests.recordings.files.recordings import recording, write_segment
from tests.terminals import Terminal

DEMO = Path(__file__).parents[3] / "telemetry" / "demo"
RUN = example_run()
STRANGE = stamp(
    [
        env_stepped(3, round=3, loss=math.nan, grad_norm=-math.inf, value=None),
        ev.Logged(severity="info", text='one,\n"two" é'),
    ],
    first=len(RUN),
    start=RUN[-1].time,
)
EVENTS = [*RUN[:-1], *STRANGE]
KINDS = Counter(type(event).__name__ for event in EVENTS)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_segment(tmp_path / "run", 1, recording(EVENTS))
    return tmp_path / "run"


def export(run: Path, to: str, out: Path) -> Path:
    assert main(["export", str(run), "--to", to, "--out", str(out)]) == 0
    return out


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_csv_has_a_file_per_table_and_a_row_per_event(run: Path, tmp_path: Path) -> None:
    out = export(run, "csv", tmp_path / "out")

    counts = {path.stem: len(rows(path)) for path in out.iterdir()}
    assert counts.keys() == {table.name for table in TABLES}
    assert {name: counts[name] for name in KINDS} == dict(KINDS)
    assert counts["SlotReading"] == len(SLOTS) * KINDS["EnvStepped"]


def test_csv_keeps_values_distinguishable(run: Path, tmp_path: Path) -> None:
    out = export(run, "csv", tmp_path / "out")

    steps = rows(out / "EnvStepped.csv")
    events = [event for event in EVENTS if isinstance(event, ev.EnvStepped)]
    assert [float(row["score"]) for row in steps] == [event.score for event in events]
    assert [float(row["reward_parts_rent"]) for row in steps] == [event.reward_parts["rent"] for event in events]
    last = steps[-1]
    assert (last["loss"], last["grad_norm"], last["value"]) == ("NaN", "-inf", "")
    assert list(last)[:6] == ["run", "seq", "time", "round", "step", "env"]
    assert {datetime.fromisoformat(row["time"]).timestamp() for row in steps} == {event.time for event in events}
    readings = rows(out / "SlotReading.csv")
    assert {row["blueprint"] for row in readings if row["slot"] == SLOTS[1]} == {"conv_small"}
    assert {row["stage"] for row in readings if row["slot"] == SLOTS[0]} == {"dormant"}
    [text] = rows(out / "Logged.csv")
    assert text["text"] == 'one,\n"two" é'
    check = next(row for row in rows(out / "GateCheck.csv") if row["name"] == "age")
    assert (check["opened"], check["passed"], check["threshold"]) == ("false", "false", "2.0")
    update = rows(out / "PolicyUpdated.csv")[0]
    assert (update["heads_tempo_entropy"], update["heads_op_grad_norm"]) == ("0.8", "0.1")
    assert update["heads_tempo_grad_norm"] == ""  # not measured
    started = rows(out / "RunStarted.csv")[0]
    assert json.loads(started["lanes"]) == ["cpu:0", "cpu:1", "cpu:0", "cpu:1"]
    assert started["run"] == last["run"]


def test_parquet_has_the_same_rows_with_types(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(module, "BATCH_ROWS", 7)  # so that tables are written in pieces

    out = export(run, "parquet", tmp_path / "out")

    counts = {path.stem: parquet.read_metadata(path).num_rows for path in out.iterdir()}
    assert {name: counts[name] for name in KINDS} == dict(KINDS)
    steps = parquet.read_table(out / "EnvStepped.parquet")
    events = [event for event in EVENTS if isinstance(event, ev.EnvStepped)]
    assert steps["score"].to_pylist() == [event.score for event in events]
    assert steps["seq"].to_pylist() == sorted(event.seq for event in events)
    assert [str(steps.schema.field(name).type) for name in ("env", "time", "decision_tempo_choice")] == [
        "int64",
        "timestamp[us, tz=UTC]",
        "int64",
    ]
    assert math.isnan(steps["loss"].to_pylist()[-1])
    assert steps["value"].to_pylist()[-1] is None


def test_names_need_no_quotes(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    for table in TABLES:
        columns = ", ".join(f"{column.name} int" for column in table.columns)
        duckdb.connect().execute(f"create table {table.name} ({columns})")


def test_unknown_key_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stepped = env_stepped(0, reward_parts={"rent": -0.1, "luck": 2.0})
    write_segment(tmp_path / "run", 1, recording(stamp([RUN[0], stepped])))
    export(tmp_path / "run", "csv", tmp_path / "out")
    assert "EnvStepped.reward_parts.luck has no column, and is left out" in capsys.readouterr().err


def test_tensorboard_shows_all_envs_and_the_policy(run: Path, tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    out = export(run, "tensorboard", tmp_path / "out")

    found = accumulator.EventAccumulator(str(out))
    found.Reload()
    tags = found.Tags()["scalars"]
    assert not any("/env " in tag for tag in tags)
    rounds = [event.round for event in EVENTS if isinstance(event, ev.PolicyUpdated)]
    for name, value in (("min", min), ("median", statistics.median), ("max", max)):
        wanted = [
            value([event.score for event in EVENTS if isinstance(event, ev.EpisodeEnded) and event.round == number])
            for number in rounds
        ]
        points = found.Scalars(f"final accuracy/{name}")
        assert [point.value for point in points] == pytest.approx(wanted)
        assert [point.step for point in points] == [5 * number for number in rounds]
    updates = [event for event in EVENTS if isinstance(event, ev.PolicyUpdated)]
    assert [point.value for point in found.Scalars("KL/policy")] == pytest.approx([event.kl for event in updates])
    texts = [value.tensor_proto.string_val[0].decode() for value in found.Tensors("anomalies/text_summary")]
    assert texts == [
        f"{event.rule}, {event.where}: {event.text}" for event in EVENTS if isinstance(event, ev.AnomalyFound)
    ]
    assert "_hparams_/session_start_info" in found.PluginTagToContent("hparams")


def test_tensorboard_shows_single_envs_on_request(run: Path, tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    assert main(["export", str(run), "--to", "tensorboard", "--per-env", "--out", str(tmp_path / "out")]) == 0

    found = accumulator.EventAccumulator(str(tmp_path / "out"))
    found.Reload()
    events = [event for event in EVENTS if isinstance(event, ev.EnvStepped) and event.env == 1]
    points = found.Scalars("accuracy/env 01")
    assert [point.value for point in points] == pytest.approx([event.score for event in events])
    assert [point.step for point in points] == [(event.round - 1) * 5 + event.step for event in events]
    assert [point.wall_time for point in points] == [event.time for event in events]
    assert math.isnan(found.Scalars("loss/env 03")[-1].value)


@pytest.mark.slow
def test_wandb_finds_an_offline_run(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    out = export(run, "wandb", tmp_path / "out")
    [offline] = (out / "wandb").glob("offline-run-*")
    program = [sys.executable, "-m", "wandb", "sync", "--dry-run", str(offline)]
    shown = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "Would sync 1 run" in shown.stdout + shown.stderr
    [file] = offline.glob("*.wandb")
    content = file.read_bytes()
    for text in (b"accuracy/median", b"KL/policy"):
        assert text in content


@pytest.mark.parametrize(
    ("to", "package"), [("parquet", "pyarrow"), ("tensorboard", "tensorboard"), ("wandb", "wandb")]
)
def test_export_without_extra_gives_the_install_command(
    to: str,
    package: str,
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)

    assert main(["export", str(run), "--to", to, "--out", str(tmp_path / "out")]) == 2

    assert capsys.readouterr().err == (
        f"esper-sanctum: --to {to}: {package} is not installed: run `uv sync --inexact --extra {to}` in the checkout\n"
    )
    assert not (tmp_path / "out").exists()


def test_export_neither_overwrites_nor_guesses_the_format(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(run), "--to", "csv"]) == 0
    assert capsys.readouterr().out == f"wrote {len(EVENTS)} events of {run} to run-csv\n"

    assert main(["export", str(run), "--to", "csv"]) == 2
    assert "run-csv exists already; choose another directory with --out" in capsys.readouterr().err
    assert main(["export", str(run), "--to", "tensorbord"]) == 2
    assert "did you mean tensorboard?" in capsys.readouterr().err
    assert main(["export", str(run), "--to", "parquet", "--per-env", "--out", "x"]) == 2
    assert "--per-env is for tensorboard and wandb" in capsys.readouterr().err
    assert main(["export", str(run), str(run), "--to", "csv", "--out", "x"]) == 2
    assert "2 of the recordings are of the run" in capsys.readouterr().err
    assert not Path("x").exists()


@pytest.mark.parametrize(
    ("to", "name"),
    [
        *(("csv", name) for name in ("../../../escaped", "..", ".", "", "a/b", "null\0byte")),
        ("tensorboard", "../../../escaped"),
    ],
)
def test_export_of_runs_ignores_a_name_that_is_no_file_name(to: str, name: str, run: Path, tmp_path: Path) -> None:
    if to == "tensorboard":
        pytest.importorskip("tensorboard")
    write_segment(tmp_path / "other", 1, recording([msgspec.structs.replace(run_started(), seq=1, run=name)]))
    before = set(tmp_path.iterdir())
    out = tmp_path / "deep" / "er" / "out"

    assert main(["export", str(run), str(tmp_path / "other"), "--to", to, "--out", str(out)]) == 0

    names = {path.name for path in (out / "RunStarted" if to == "csv" else out).iterdir()}
    suffix = ".csv" if to == "csv" else ""
    assert names == {f"{run_started().run}{suffix}", f"other{suffix}"}
    assert {path for path in tmp_path.rglob("*") if "escaped" in path.name} == set()
    assert set(tmp_path.iterdir()) == before | {tmp_path / "deep"}


def test_full_disk_leaves_no_partial_export(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fill(_recordings: object, out: Path, _track: object, *, to: str) -> None:
        (out / f"half.{to}").touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(command, "export_tables", fill)

    assert main(["export", str(run), "--to", "csv", "--out", str(tmp_path / "out")]) == 2

    assert capsys.readouterr().err == f"esper-sanctum: cannot write to {tmp_path / 'out'}: No space left on device\n"
    assert not (tmp_path / "out").exists()


def test_export_keeps_byte_counts_exact(tmp_path: Path) -> None:
    sampled = stamp([device_sampled(total=2**53 + 1)])
    write_segment(tmp_path / "run", 1, recording(sampled))

    [row] = rows(export(tmp_path / "run", "csv", tmp_path / "out") / "DeviceSampled.csv")

    assert row["total"] == str(2**53 + 1)


@pytest.mark.parametrize(
    ("to", "written"),
    [*(("csv", time) for time in (math.inf, math.nan, 1e300, 253_402_300_800.0)), ("parquet", math.inf)],
)
def test_export_leaves_out_a_time_that_no_date_has(to: str, written: float, tmp_path: Path) -> None:
    saved = ev.CheckpointSaved(
        round=1, step=1, path="checkpoints/00001-001", bytes=1, seconds=0.1, origin="user", written=written
    )
    write_segment(tmp_path / "run", 1, recording(stamp([saved])))
    out = export(tmp_path / "run", to, tmp_path / "out")
    if to == "csv":
        assert rows(out / "CheckpointSaved.csv")[0]["written"] == ""
    else:
        parquet = pytest.importorskip("pyarrow.parquet")
        assert parquet.read_table(out / "CheckpointSaved.parquet")["written"].to_pylist() == [None]


def test_export_shows_progress_only_on_a_terminal(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export(run, "csv", tmp_path / "piped")
    assert capsys.readouterr() == (f"wrote {len(EVENTS)} events of {run} to {tmp_path / 'piped'}\n", "")
    with Terminal("export", str(run), "--to", "csv", "--out", "shown", cwd=tmp_path) as terminal:
        assert terminal.leave() == 0
        assert b"reading" in terminal.output
        assert b"writing" in terminal.output
        assert b"100%" in terminal.output
    assert sorted(path.name for path in (tmp_path / "shown").iterdir()) == sorted(
        path.name for path in (tmp_path / "piped").iterdir()
    )
