"""Flipped bits, cuts and swapped parts: all commands agree on what a damaged file is, and no damage passes for data."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from esper.cli.main import main
from esper.recordings.checkpoints.manifest import CheckpointError
from esper.recordings.files.segments import ReadError, packed_path, segment_path
from esper.recordings.history.history import open_history
from esper.training.checkpoint.files import read_checkpoint
from tests.faults.programs import write_run

DAMAGED_FILES = 25


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("telemetry"))


def damage(content: bytes, generator: random.Random) -> bytes:
    """Return content with a flipped bit, without its end, without a part, or with random bytes in its middle."""
    at = generator.randrange(len(content))
    length = generator.randrange(1, 64)
    match generator.randrange(4):
        case 0:
            return content[:at] + bytes([content[at] ^ (1 << generator.randrange(8))]) + content[at + 1 :]
        case 1:
            return content[:at]
        case 2:
            return content[:at] + content[at + length :]
        case _:
            return content[:at] + generator.randbytes(length) + content[at:]


@pytest.mark.parametrize("seed", range(DAMAGED_FILES))
def test_no_event_of_a_damaged_packed_file_is_changed(tmp_path: Path, intact: Path, seed: int) -> None:
    expected = {event.seq: repr(event) for event in open_history(intact).events()}
    run = Path(shutil.copytree(intact, tmp_path / intact.name))
    file = packed_path(segment_path(run, 1))
    content = damage(file.read_bytes(), random.Random(seed))
    file.write_bytes(content)
    try:
        history = open_history(run)
    except ReadError:
        return
    found = {event.seq: repr(event) for event in history.events()}
    assert found.items() <= expected.items()
    assert history.notices or found == expected


@pytest.mark.parametrize("name", ["manifest.json", "state.json", "tensors.safetensors", "telemetry.json"])
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, intact: Path, name: str) -> None:
    (checkpoint,) = (intact / "checkpoints").iterdir()
    generator = random.Random(name)
    for _ in range(DAMAGED_FILES):
        copy = Path(shutil.copytree(checkpoint, tmp_path / "copy", dirs_exist_ok=True))
        content = (copy / name).read_bytes()
        damaged = damage(content, generator)
        (copy / name).write_bytes(damaged)
        if damaged == content:
            continue
        with pytest.raises(CheckpointError):
            read_checkpoint(copy)


@pytest.mark.parametrize("size", [0, 3, 4, 20, 100, 2000])
def test_commands_agree_on_a_cut_recording(
    tmp_path: Path, intact: Path, size: int, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(intact, tmp_path / intact.name))
    file = packed_path(segment_path(run, 1))
    file.write_bytes(file.read_bytes()[:size])
    codes = [
        main(["show", str(run)]),
        main(["compare", str(run), str(run)]),
        main(["replay", str(run), "--no-tui"]),
        main(["export", str(run), "--to", "csv", "--out", str(tmp_path / "csv")]),
    ]
    said = capsys.readouterr().err
    assert len(set(codes)) == 1, (codes, said)
    if size:
        assert codes == [2] * 4, said
