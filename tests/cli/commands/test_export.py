from __future__ import annotations

import csv
import json
import math
import sys
from collections import Counter
from pathlib import Path

import pytest

from esper.cli.main import main
from esper.history import export as module
from esper.telemetry import events as ev
from tests.factory import SLOTS, device_sampled, env_stepped, example_run, stamp
from tests.recording.recordings import recording, write_segment
from tests.terminals import Terminal
from tests.terminals import run as printed_by

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


def test_csv_has_a_file_per_type_and_a_row_per_event(run: Path, tmp_path: Path) -> None:
    out = export(run, "csv", tmp_path / "out")

    assert {path.name: len(rows(path)) for path in out.iterdir()} == {f"{kind}.csv": n for kind, n in KINDS.items()}


def test_csv_keeps_values_distinguishable(run: Path, tmp_path: Path) -> None:
    out = export(run, "csv", tmp_path / "out")

    steps = rows(out / "EnvStepped.csv")
    events = [event for event in EVENTS if isinstance(event, ev.EnvStepped)]
    assert [float(row["accuracy"]) for row in steps] == [event.accuracy for event in events]
    assert [float(row["reward_parts.rent"]) for row in steps] == [event.reward_parts["rent"] for event in events]
    assert {row[f"slots.{SLOTS[1]}.blueprint"] for row in steps} == {"conv_small"}
    assert {row[f"slots.{SLOTS[0]}.stage"] for row in steps} == {"dormant"}
    last = steps[-1]
    assert (last["loss"], last["grad_norm"], last["value"]) == ("NaN", "-Infinity", "")
    assert list(last)[:5] == ["seq", "time", "round", "step", "env"]
    [text] = rows(out / "Logged.csv")
    assert text["text"] == 'one,\n"two" é'
    gate = rows(out / "GateRefused.csv")[0]
    assert (gate["checks.age.passed"], gate["checks.age.threshold"]) == ("false", "2.0")
    update = rows(out / "PolicyUpdated.csv")[0]
    assert (update["heads.tempo.entropy"], update["heads.op.grad_norm"]) == ("0.8", "0.1")
    assert "heads.tempo.grad_norm" not in update  # no update measured it
    assert json.loads(rows(out / "RunStarted.csv")[0]["lanes"]) == ["cpu:0", "cpu:1", "cpu:0", "cpu:1"]


def test_parquet_has_the_same_rows_with_types(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(module, "PARQUET_BATCH_ROWS", 7)  # so that tables are written in pieces

    out = export(run, "parquet", tmp_path / "out")

    assert {path.name: parquet.read_metadata(path).num_rows for path in out.iterdir()} == {
        f"{kind}.parquet": n for kind, n in KINDS.items()
    }
    steps = parquet.read_table(out / "EnvStepped.parquet")
    events = [event for event in EVENTS if isinstance(event, ev.EnvStepped)]
    assert steps["accuracy"].to_pylist() == [event.accuracy for event in events]
    assert str(steps.schema.field("env").type) == "int64"
    assert math.isnan(steps["loss"].to_pylist()[-1])
    assert steps["value"].to_pylist()[-1] is None
    gates = parquet.read_table(out / "GateRefused.parquet")
    assert gates["checks.age.passed"].to_pylist() == [False, False]


def test_parquet_mixed_column_has_the_common_type(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    begun = EVENTS[0]
    assert isinstance(begun, ev.RunStarted)
    configs = [{"a": 1, "b": 1, "c": True}, {"a": 0.5, "b": "x", "c": None}]
    started = [
        ev.RunStarted(**{**{f: getattr(begun, f) for f in begun.__struct_fields__}, "config": c}) for c in configs
    ]
    write_segment(tmp_path / "run", 1, recording(stamp(started)))

    table = parquet.read_table(export(tmp_path / "run", "parquet", tmp_path / "out") / "RunStarted.parquet")

    assert table["config.a"].to_pylist() == [1.0, 0.5]
    assert table["config.b"].to_pylist() == ["1", "x"]
    assert table["config.c"].to_pylist() == [True, None]


def test_tensorboard_reads_the_curves(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    out = export(run, "tensorboard", tmp_path / "out")

    [file] = out.iterdir()
    scalars = {
        (value.tag, event.step): (value.tensor.float_val[0], event.wall_time)
        for event in EventFileLoader(str(file)).Load()
        for value in event.summary.value
    }
    for event in EVENTS:
        if isinstance(event, ev.EnvStepped) and event is not STRANGE[0]:
            step = (event.round - 1) * 5 + event.step
            value, time = scalars[f"EnvStepped/env {event.env:02d}/accuracy", step]
            assert (value, time) == (pytest.approx(event.accuracy), event.time)
    assert scalars["PolicyUpdated/heads/op/entropy", 5][0] == pytest.approx(0.9)
    assert scalars["PhaseTimed/phases/train", 10][0] == pytest.approx(0.12)
    assert ("DeviceSampled/cpu:1/busy", 10) in scalars
    assert any(math.isnan(value) for (tag, _), (value, _) in scalars.items() if tag == "EnvStepped/env 03/loss")
    assert not {tag for tag, _ in scalars if "round" in tag or "slots" in tag or "stopped_early" in tag}


@pytest.mark.parametrize(("to", "package"), [("parquet", "pyarrow"), ("tensorboard", "tensorboard")])
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
        f"esper-sanctum: --to {to}: {package} is not installed: pip install 'esper-sanctum[{to}]'\n"
    )
    assert not (tmp_path / "out").exists()


def test_export_neither_overwrites_nor_guesses_the_format(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(run), "--to", "csv"]) == 0
    assert capsys.readouterr().out == f"wrote {len(EVENTS)} events of {run} to run-csv\n"

    assert main(["export", str(run), "--to", "csv"]) == 2
    assert "cannot create directory run-csv: File exists; choose another with --out" in capsys.readouterr().err
    assert main(["export", str(run), "--to", "tensorbord"]) == 2
    assert "did you mean tensorboard?" in capsys.readouterr().err


def test_full_disk_leaves_no_partial_export(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fill(_history: object, out: Path, _track: object) -> None:
        (out / "half.csv").touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setitem(module.EXPORTERS, "csv", fill)

    assert main(["export", str(run), "--to", "csv", "--out", str(tmp_path / "out")]) == 2

    assert capsys.readouterr().err == f"esper-sanctum: cannot write to {tmp_path / 'out'}: No space left on device\n"
    assert not (tmp_path / "out").exists()


def test_export_keeps_byte_counts_exact(tmp_path: Path) -> None:
    sampled = stamp([device_sampled(total=2**53 + 1)])
    write_segment(tmp_path / "run", 1, recording(sampled))

    [row] = rows(export(tmp_path / "run", "csv", tmp_path / "out") / "DeviceSampled.csv")

    assert row["total"] == str(2**53 + 1)


def test_export_shows_progress_only_on_a_terminal(run: Path, tmp_path: Path) -> None:
    on_pipes = printed_by("export", str(run), "--to", "csv", "--out", "piped", cwd=tmp_path)
    assert (on_pipes.returncode, on_pipes.stderr) == (0, "")
    assert on_pipes.stdout == f"wrote {len(EVENTS)} events of {run} to piped\n"
    with Terminal("export", str(run), "--to", "csv", "--out", "shown", cwd=tmp_path) as terminal:
        assert terminal.leave() == 0
        assert b"reading" in terminal.output
        assert b"writing" in terminal.output
        assert b"100%" in terminal.output
    assert sorted(path.name for path in (tmp_path / "shown").iterdir()) == sorted(
        path.name for path in (tmp_path / "piped").iterdir()
    )
