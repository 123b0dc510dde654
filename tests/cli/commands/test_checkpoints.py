"""The `checkpoints` command: its text and JSON output, and its errors."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from esper.cli.commands import checkpoints as command
from esper.cli.main import main
from esper.cli.options import EXIT_OK, EXIT_USAGE
from esper.common.configuration.config import Config
from esper.recordings.checkpoints.catalog import checkpoint_path, find_checkpoint, list_checkpoints
from esper.recordings.checkpoints.manifest import MANIFEST_FILE, STATE_FILE, TENSORS_FILE
from esper.training.checkpoint.files import Checkpoint, write_checkpoint

MIB = 1 << 20


def save(run: Path, round_number: int, step: int) -> Path:
    path = checkpoint_path(run, round_number, step)
    run.mkdir(parents=True, exist_ok=True)
    write_checkpoint(path, Checkpoint(Config(), round_number, step, {"text": "x" * 3 * MIB}, {}, b"{}"))
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with three checkpoints, written two days ago, three hours ago and just now."""
    directory = tmp_path / "telemetry" / "some-run"
    for round_and_step, age in (((9, 0), 2 * 86400 + 99), ((10, 0), 3 * 3600 + 99), ((10, 7), 0)):
        manifest = save(directory, *round_and_step) / MANIFEST_FILE
        written = time.time() - age
        os.utime(manifest, (written, written))
    return directory


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["checkpoints", *map(str, arguments)]) == EXIT_OK
    said = capsys.readouterr()
    assert said.err == ""
    return said.out


def listed(capsys: pytest.CaptureFixture[str], run: Path) -> list[dict[str, Any]]:
    return json.loads(printed(capsys, run, "--json"))


def test_checkpoints_are_listed_oldest_first(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, run).splitlines()
    paths = list_checkpoints(run)
    assert [line.split(": ")[0] for line in lines] == [str(path) for path in paths]
    for line, age in zip(lines, ("2 d ago", "3 h ago", "just now"), strict=True):
        assert line.endswith(f" ({age}), 3.0 MiB, verified")


def test_checkpoints_json_has_the_listed_values(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = listed(capsys, run)
    assert [(info["round"], info["step"]) for info in found] == [(9, 0), (10, 0), (10, 7)]
    for info, path in zip(found, list_checkpoints(run), strict=True):
        assert info["path"] == str(path)
        assert info["bytes"] == sum(file.stat().st_size for file in path.iterdir())
        assert info["time"] == (path / MANIFEST_FILE).stat().st_mtime
        assert info["problem"] is None


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_checkpoints_list_shows_why_one_is_damaged(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second, third = list_checkpoints(run)
    flip(first / STATE_FILE)
    (second / TENSORS_FILE).unlink()
    flip(third / MANIFEST_FILE)
    found = listed(capsys, run)
    assert found[0]["problem"] == f"{first / STATE_FILE} is damaged: its digest does not match {MANIFEST_FILE}"
    assert found[1]["problem"] == f"{second / TENSORS_FILE} cannot be read: No such file or directory"
    assert found[2]["problem"].startswith(f"{third / MANIFEST_FILE} is ")
    assert [(info["round"], info["step"]) for info in found] == [(9, 0), (10, 0), (None, None)]
    lines = printed(capsys, run).splitlines()
    for line, info in zip(lines, found, strict=True):
        assert line.endswith(info["problem"])


def test_checkpoint_with_foreign_configuration_is_a_problem(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The files are intact, but no run can resume from the checkpoint."""
    to_builtins = msgspec.to_builtins

    def add_unknown_key(value: object, **options: Any) -> Any:
        builtins = to_builtins(value, **options)
        return {**builtins, "of-the-future": 1} if isinstance(value, Config) else builtins

    monkeypatch.setattr(msgspec, "to_builtins", add_unknown_key)
    path = save(run, 11, 0)
    monkeypatch.undo()
    last = listed(capsys, run)[-1]
    assert (last["path"], last["round"]) == (str(path), 11)
    assert "a configuration that this version cannot read" in last["problem"]


def test_checkpoint_removed_meanwhile_is_not_listed(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, third = list_checkpoints(run)
    read = command.read_manifest

    def remove_then_read(path: Path):
        shutil.rmtree(second, ignore_errors=True)  # one disappears before it is inspected, one meanwhile
        if path == third:
            shutil.rmtree(third)
        return read(path)

    monkeypatch.setattr(command, "read_manifest", remove_then_read)
    assert [info["path"] for info in listed(capsys, run)] == [str(first)]


def test_checkpoints_finds_a_run_by_name(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "run.json").write_text("{}")
    for name in ("some-run", "last"):
        lines = printed(capsys, name, "--telemetry-dir", run.parent).splitlines()
        assert lines[-1].startswith(str(find_checkpoint(run)))


def test_checkpoints_of_run_without_any_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.json").write_text("{}")
    assert printed(capsys, tmp_path) == f"{tmp_path} has no checkpoints\n"
    assert listed(capsys, tmp_path) == []


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("", " is not a run directory: it contains neither run.json nor checkpoints/"),
        ("file.txt", " is not a run directory: it contains neither run.json nor checkpoints/"),
        ("nothing", "is neither a file nor a run in telemetry; it contains no runs"),
    ],
)
def test_checkpoints_of_missing_run_is_refused(
    name: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file.txt").write_text("dear diary")
    monkeypatch.chdir(tmp_path)
    assert main(["checkpoints", str(tmp_path / name)]) == EXIT_USAGE
    said = capsys.readouterr()
    assert said.out == ""
    assert sentence in said.err
    assert len(said.err.splitlines()) == 1


def test_checkpoints_command_does_not_import_torch(run: Path) -> None:
    command_line = ["checkpoints", str(run)]
    script = f"import sys; from esper.cli.main import main; main({command_line}); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    *lines, loaded = done.stdout.splitlines()
    assert (len(lines), loaded) == (3, "False")
