"""Files made to harm: every command refuses them in one sentence, within bounded time and memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from esper.recordings.checkpoints.manifest import (
    MANIFEST_FILE,
    STATE_FILE,
    TELEMETRY_FILE,
    TENSORS_FILE,
    CheckpointError,
)
from esper.recordings.files.run_lock import LOCK_FILE
from esper.recordings.files.segments import packed_path, segment_path
from esper.training.checkpoint.files import read_checkpoint
from tests.faults.programs import Ended, ProgramServer, write_run

MAX_MB = 500.0
MAX_LOAD_MB = 900.0
"""Limit of a command that loads torch, which takes some 350 MB itself."""


READING = ("replay", "show", "compare", "export", "runs", "checkpoints")


@pytest.fixture(scope="module")
def programs() -> Iterator[ProgramServer]:
    """Programs that start with the modules of the commands that read."""
    server = ProgramServer(*(f"esper.cli.commands.{command}" for command in READING))
    yield server
    server.close()


@pytest.fixture(scope="module")
def loaded_programs() -> Iterator[ProgramServer]:
    """Programs that start with the engine, and so with torch."""
    server = ProgramServer("esper.training.engine.setup", "esper.cli.commands.train")
    yield server
    server.close()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "telemetry")


def zstd_bomb(byte: bytes, blocks: int = 80_000) -> bytes:
    """Return a zstd frame of unknown size that unpacks to blocks of 128 KiB of one byte: 10 GB in 320 kB."""
    block = (1 << 1 | (1 << 17) << 3).to_bytes(3, "little") + byte  # run-length encoded, not the last
    return b"\x28\xb5\x2f\xfd" + b"\x00\x38" + block * blocks


def sized_bomb(byte: bytes) -> bytes:
    """Return the same with a header that states the size."""
    return b"\x28\xb5\x2f\xfd" + b"\xe0" + (80_000 << 17).to_bytes(8, "little") + zstd_bomb(byte)[6:]


def write_sparse(path: Path) -> None:
    """Write a file of 1 GB of zeros, which takes no space on the disk."""
    with path.open("wb") as file:
        file.truncate(10**9)


def assert_refused(ended: Ended, *, limit: float = MAX_MB) -> None:
    assert ended.code == 2, ended
    assert "Traceback" not in ended.output, ended
    assert len(ended.output.strip().splitlines()) == 1, ended
    assert ended.peak_mb < limit, ended


def commands(programs: ProgramServer, run: Path) -> list[Ended]:
    """Return how the commands end that read a recording."""
    return [
        programs.run("replay", run, "--no-tui"),
        programs.run("show", run),
        programs.run("compare", run, run),
        programs.run("export", run, "--to", "csv", "--out", run.parent / "out"),
    ]


def replace_segment(run: Path, content: bytes | None, *, packed: bool) -> None:
    plain = segment_path(run, 1)
    packed_path(plain).unlink()
    path = packed_path(plain) if packed else plain
    if content is None:
        write_sparse(path)
    else:
        path.write_bytes(content)


@pytest.mark.parametrize(
    ("content", "packed"),
    [
        pytest.param(zstd_bomb(b"x"), True, id="bomb"),
        pytest.param(sized_bomb(b"x"), True, id="bomb that states its size"),
        pytest.param(zstd_bomb(b"\n"), True, id="bomb of empty lines", marks=pytest.mark.slow),
        pytest.param(b'{"type":"' + b"[" * 100_000 + b"\n", False, id="brackets in a type"),
        pytest.param((b'{"type":"RunStarted","config":' + b"[" * 100_000 + b"\n") * 20, False, id="brackets"),
        pytest.param(None, False, id="1 GB without a line end"),
    ],
)
def test_every_command_refuses_a_recording_that_would_fill_memory(
    run: Path, content: bytes | None, packed: bool, programs: ProgramServer
) -> None:
    replace_segment(run, content, packed=packed)
    for ended in commands(programs, run):
        assert_refused(ended)


def make_fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def link_to_zeros(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


def make_directory(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


SPECIAL = (make_fifo, link_to_zeros, make_directory)


@pytest.mark.parametrize("make", SPECIAL)
def test_a_special_file_in_the_place_of_events_is_refused(
    run: Path, make: Callable[[Path], None], programs: ProgramServer
) -> None:
    make(packed_path(segment_path(run, 1)))
    for ended in commands(programs, run):
        assert_refused(ended)


@pytest.mark.parametrize(
    ("name", "make"),
    [("run.json", make_fifo), ("run.json", link_to_zeros), (LOCK_FILE, make_fifo), (LOCK_FILE, make_directory)],
)
def test_a_special_file_beside_the_events_harms_no_command(
    run: Path, name: str, make: Callable[[Path], None], programs: ProgramServer
) -> None:
    make(run / name)
    for ended in [*commands(programs, run), programs.run("runs", "--telemetry-dir", run.parent)]:
        assert ended.code in {0, 2}, ended
        assert "Traceback" not in ended.output, ended
        assert ended.peak_mb < MAX_MB, ended


CHECKPOINT_FILES = (MANIFEST_FILE, STATE_FILE, TENSORS_FILE, TELEMETRY_FILE)


@pytest.mark.parametrize("name", CHECKPOINT_FILES)
@pytest.mark.parametrize("make", [*SPECIAL, write_sparse])
def test_a_special_file_in_a_checkpoint_is_refused(run: Path, name: str, make: Callable[[Path], None]) -> None:
    (checkpoint,) = (run / "checkpoints").iterdir()
    make(checkpoint / name)
    with pytest.raises(CheckpointError):
        read_checkpoint(checkpoint)


@pytest.mark.parametrize("name", [MANIFEST_FILE, TENSORS_FILE])
def test_a_list_of_checkpoints_with_a_huge_file_takes_little_memory(
    run: Path, name: str, programs: ProgramServer
) -> None:
    (checkpoint,) = (run / "checkpoints").iterdir()
    write_sparse(checkpoint / name)
    listed = programs.run("checkpoints", run)
    assert listed.code in {0, 2}, listed
    assert "Traceback" not in listed.output, listed
    assert listed.peak_mb < MAX_MB, listed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "make"), zip(CHECKPOINT_FILES, (write_sparse, make_fifo, write_sparse, link_to_zeros), strict=True)
)
def test_a_resume_from_a_checkpoint_with_a_special_file_takes_little_memory(
    run: Path, name: str, make: Callable[[Path], None], loaded_programs: ProgramServer
) -> None:
    (checkpoint,) = (run / "checkpoints").iterdir()
    make(checkpoint / name)
    assert_refused(loaded_programs.run("--no-tui", "--resume", run, "--devices", "cpu:0"), limit=MAX_LOAD_MB)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("slots = " + "[" * 3_000, id="nested"),
        pytest.param(f'data_dir = "{"x" * 2_000_000}"', id="long"),
    ],
)
def test_a_hostile_configuration_is_refused(tmp_path: Path, text: str, programs: ProgramServer) -> None:
    file = tmp_path / "config.toml"
    file.write_text(text)
    assert_refused(programs.run("--no-tui", "--config", file))
    theme = tmp_path / "theme.toml"
    theme.write_text(text)
    assert_refused(programs.run("demo", "--theme", theme))
