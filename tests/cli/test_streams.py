"""Output to a closed pipe, a full disk or closed streams."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.terminals import PROGRAM, TIMEOUT_S

FULL = Path("/dev/full")


def test_broken_pipe_is_not_an_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as unread:
        program = [*PROGRAM, "schema"]
        done = subprocess.run(program, check=False, stdout=unread, stderr=subprocess.PIPE, timeout=TIMEOUT_S)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(not FULL.exists(), reason="/dev/full does not exist")
def test_full_disk_is_reported_in_one_sentence() -> None:
    with FULL.open("wb") as full:
        done = subprocess.run([*PROGRAM, "schema"], check=False, stdout=full, stderr=subprocess.PIPE, timeout=TIMEOUT_S)
    assert (done.returncode, done.stderr) == (1, b"esper-sanctum: cannot write output: No space left on device\n")


def test_exceeded_file_size_is_reported_in_one_sentence(tmp_path: Path) -> None:
    program = ["sh", "-c", 'ulimit -f 0; "$@" > output', "sh", *PROGRAM, "--help"]
    done = subprocess.run(program, check=False, cwd=tmp_path, stderr=subprocess.PIPE, timeout=TIMEOUT_S)
    assert (done.returncode, done.stderr) == (1, b"esper-sanctum: cannot write output: File too large\n")


@pytest.mark.parametrize("command", [("config",), ("show", "none")])
def test_closed_streams_are_not_an_error(command: tuple[str, ...], tmp_path: Path) -> None:
    program = ["sh", "-c", '"$@" >&- 2>&-', "sh", *PROGRAM, *command]
    done = subprocess.run(program, check=False, cwd=tmp_path, timeout=TIMEOUT_S)
    assert done.returncode == (0 if command == ("config",) else 2)
