"""Loss of power at every moment of a recording with checkpoints: what was promised before is found afterwards."""

from __future__ import annotations

import random
import shutil
import time
from datetime import datetime
from pathlib import Path

import msgspec
import pytest

from esper.recordings.checkpoints.catalog import checkpoint_path, find_checkpoint, prune_checkpoints, remove_incomplete
from esper.recordings.files import recorder as recorder_module
from esper.recordings.files.recorder import Recorder, write_manifest
from esper.recordings.files.run_directory import RunDirectory
from esper.recordings.files.runs import make_run_directory
from esper.recordings.files.segments import ReadError
from esper.recordings.history.history import open_history
from esper.training.checkpoint.files import read_checkpoint, write_checkpoint
from tests.factory import example_run
from tests.faults.power import PowerRecorder, write_state
from tests.faults.programs import example_checkpoint

EVENTS_PER_CHECKPOINT = 60


def record_run(root: Path, monkeypatch: pytest.MonkeyPatch) -> PowerRecorder:
    """Record a run with three checkpoints, of which two are kept, several segments, and their packing."""
    monkeypatch.setattr(recorder_module, "MAX_SEGMENT_BYTES", 20_000)
    power = PowerRecorder(root)
    events = example_run(2, 4, 12)[: 3 * EVENTS_PER_CHECKPOINT]
    assert len(events) == 3 * EVENTS_PER_CHECKPOINT
    with power.recording():
        run = make_run_directory("digits", datetime(2026, 1, 1), root / "telemetry")
        recorder = Recorder(RunDirectory.make(run))
        write_manifest(RunDirectory.make(run), {"run": run.name, "config": {}, "versions": {}})
        power.promise("manifest", 1)
        for number in range(1, 4):
            for event in events[(number - 1) * EVENTS_PER_CHECKPOINT : number * EVENTS_PER_CHECKPOINT]:
                recorder.put(event)
            write_checkpoint(checkpoint_path(run, number, 1), example_checkpoint(number))
            power.promise("checkpoint", number)
            prune_checkpoints(run, 2)
            assert recorder.flush()
            power.promise("events", number * EVENTS_PER_CHECKPOINT)
        # The same checkpoint again, as after a restore.
        write_checkpoint(checkpoint_path(run, 3, 1), example_checkpoint(3))
        recorder.close()
    return power


def check_recovery(run: Path, promised: dict[str, int]) -> None:
    """Check what a user finds after a crash, given the greatest number that each promise had before."""
    manifest, checkpoint, events = run / "run.json", promised.get("checkpoint"), promised.get("events")
    if "manifest" in promised or manifest.exists():
        assert msgspec.json.decode(manifest.read_bytes())["run"] == "digits-20260101-000000"
    if checkpoint:
        remove_incomplete(run)
        found = read_checkpoint(find_checkpoint(run))
        assert found.round >= checkpoint
        assert found.tensors["weight"][0] == found.round
    if events:
        history = open_history(run)
        assert history.length >= events
        assert [event.seq for event in history.events()] == list(range(1, history.length + 1))
    elif run.exists():
        try:
            open_history(run)
        except ReadError:
            return  # a run without a single event


@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_no_promise_is_broken_by_a_loss_of_power(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stride: int) -> None:
    root = tmp_path / "disk"
    root.mkdir()
    power = record_run(root, monkeypatch)
    generator, crash, states = random.Random(0), tmp_path / "crash", 0
    assert len(power.moments) > 50
    for moment in range(0, len(power.moments), stride):
        promised = {name: number for when, name, number in power.promises if when <= moment}
        for state in power.moments[moment].crash_states(generator):
            states += 1
            write_state(state, crash)
            check_recovery(crash / "telemetry" / "digits-20260101-000000", promised)
            shutil.rmtree(crash)
    print(f"{len(power.moments)} operations, {states} crash states")
    assert states > 100


def test_the_model_loses_what_was_not_synced(tmp_path: Path) -> None:
    power = PowerRecorder(tmp_path)
    with power.recording():
        (tmp_path / "part").write_bytes(b"content")
        (tmp_path / "part").replace(tmp_path / "file")
        (tmp_path / "other").mkdir()
    states = list(power.moments[-1].crash_states(random.Random(0)))
    assert {} in states  # nothing was synced
    assert {"file": b""} in states  # the rename came before the content
    assert {"file": b"content"} in states


def test_events_are_synced_without_being_asked(tmp_path: Path) -> None:
    power = PowerRecorder(tmp_path)
    with power.recording():
        recorder = Recorder(RunDirectory.make(tmp_path / "run"), sync_seconds=0.5)
        for event in example_run(1, 1, 4):
            recorder.put(event)
        deadline = time.monotonic() + 20
        while b"RunStarted" not in b"".join(power.durable_files().values()) and time.monotonic() < deadline:
            time.sleep(0.05)
        durable = power.durable_files()
        recorder.close()
    assert b"RunEnded" in durable["run/events-00001.jsonl"]
