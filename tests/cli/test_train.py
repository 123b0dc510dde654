"""Training in a terminal: first frame, signals, and terminals that are closed or frozen."""

from __future__ import annotations

import re
import signal
import time
from base64 import b64encode
from pathlib import Path

import pytest

from esper.common.control import RequestKind
from esper.recordings import events as ev
from esper.recordings.checkpoints.catalog import list_checkpoints
from esper.training.checkpoint.files import read_checkpoint
from tests.factory import example_run
from tests.recordings.files.recordings import recording
from tests.runs import LiveRun, only_run, recorded
from tests.terminals import ENTER_SCREEN, SLOW_STEPS, TIMEOUT_S, Terminal

# In a terminal


def test_address_opens_view_and_is_copied_via_terminal(tmp_path: Path) -> None:
    (tmp_path / "events-00001.jsonl").write_bytes(recording(example_run()))
    address = ".#step=7&env=2&view=env"
    with Terminal("replay", address, cwd=tmp_path) as terminal:
        terminal.wait_for("env 02 on cpu:0")
        terminal.type("Y")
        terminal.wait_for(f"\x1b]52;c;{b64encode(address.encode()).decode()}\a")
        terminal.type("q")
        assert terminal.leave() == 0
        terminal.assert_restored()


@pytest.mark.slow
def test_live_run_in_terminal_draws_first_and_can_quit(tmp_path: Path) -> None:
    """The first frame is drawn before torch is imported; `q` asks, and `w` then leaves without a checkpoint."""
    with Terminal("--envs", "2", cwd=tmp_path, python=["-X", "importtime"]) as terminal:
        terminal.wait_for("RUNNING")
        frame = terminal.output.index(b"starting: loading torch")
        torch_imports = re.search(rb"\| +torch\b", terminal.output)
        assert torch_imports is not None
        assert frame < torch_imports.start()
        terminal.type("q")
        terminal.wait_for("The run is live. End the run?")
        terminal.type("w")
        assert terminal.leave() == 0
        terminal.assert_restored()
    directory = only_run(tmp_path)
    assert list_checkpoints(directory) == []
    ended = recorded(directory)[-1]
    assert isinstance(ended, ev.RunEnded)
    assert ended.outcome == "stopped"
    assert f"run {directory.name}: stopped".encode() in terminal.output


@pytest.mark.slow
def test_signal_to_dashboard_checkpoints_and_exits(tmp_path: Path) -> None:
    with Terminal("--envs", "2", cwd=tmp_path) as terminal:
        terminal.wait_for("RUNNING")
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.leave() == 0
        terminal.assert_restored()
    directory = only_run(tmp_path)
    assert read_checkpoint(list_checkpoints(directory)[-1])
    saved, ended = recorded(directory)[-2:]
    assert isinstance(saved, ev.CheckpointSaved)
    assert isinstance(ended, ev.RunEnded)
    assert (saved.origin, ended.outcome) == ("signal", "stopped")


@pytest.mark.slow
def test_signal_before_first_frame_ends_the_run(tmp_path: Path) -> None:
    with Terminal("--envs", "2", cwd=tmp_path) as terminal:
        terminal.wait_for(ENTER_SCREEN.decode())
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.leave() == 0
        terminal.assert_restored()
    assert not list(tmp_path.iterdir())  # the run was not set up yet, so no checkpoint is written


@pytest.mark.slow
def test_second_signal_to_dashboard_exits_at_once(tmp_path: Path) -> None:
    with Terminal(*SLOW_STEPS, cwd=tmp_path) as terminal:
        terminal.wait_for("RUNNING")
        terminal.process.send_signal(signal.SIGINT)
        terminal.wait_for("checkpointing, then quitting")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.leave() == 130
        terminal.assert_restored()
    assert not any(isinstance(event, ev.RunEnded) for event in recorded(only_run(tmp_path)))


# In a terminal that is closed


@pytest.mark.slow
@pytest.mark.parametrize("controlling", [True, False], ids=["with a signal", "without a signal"])
def test_lost_terminal_of_dashboard_checkpoints_the_run(controlling: bool, tmp_path: Path) -> None:
    with Terminal("--envs", "2", "--devices", "cpu:0", cwd=tmp_path, controlling=controlling) as terminal:
        terminal.wait_for("RUNNING")
        assert terminal.close() == 0
    directory = only_run(tmp_path)
    saved, ended = recorded(directory)[-2:]
    assert isinstance(saved, ev.CheckpointSaved)
    assert isinstance(ended, ev.RunEnded)
    assert (saved.origin, ended.outcome) == ("signal" if controlling else "dashboard", "stopped")
    assert read_checkpoint(list_checkpoints(directory)[-1]).step == saved.step


# In a frozen terminal: open, but its output is not read


@pytest.mark.slow
@pytest.mark.parametrize("dashboard", [True, False], ids=["dashboard", "no dashboard"])
def test_signal_is_handled_while_terminal_is_frozen(dashboard: bool, tmp_path: Path) -> None:
    options = ("--envs", "2", "--steps", "2", "--rounds", "100000", "--checkpoint-every", "0", "--devices", "cpu:0")
    with Terminal(*options, *(() if dashboard else ("--no-tui",)), cwd=tmp_path) as terminal:
        terminal.wait_for("RUNNING" if dashboard else "round 1/")
        terminal.freeze()
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.process.wait(TIMEOUT_S) == 0
    saved, ended = recorded(only_run(tmp_path))[-2:]
    assert isinstance(saved, ev.CheckpointSaved)
    assert isinstance(ended, ev.RunEnded)
    assert (saved.origin, ended.outcome) == ("signal", "stopped")
    assert read_checkpoint(list_checkpoints(only_run(tmp_path))[-1])


# On a slow machine, where the import of torch takes long

_SLOW_IMPORT = """
import sys, time

class Slow:
    def find_spec(self, name, *_):
        if name.startswith("torch."):
            time.sleep(200)

sys.meta_path.insert(0, Slow())
"""


@pytest.mark.slow
def test_keys_are_heard_before_torch_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(_SLOW_IMPORT)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    start = time.monotonic()
    with Terminal("--devices", "cpu:0", cwd=tmp_path) as terminal:
        terminal.type("p")  # before the program can read it
        terminal.wait_for("pausing…")
        terminal.type("q")
        assert terminal.leave() == 0
        terminal.assert_restored()
    assert time.monotonic() - start < 150
    assert not list((tmp_path / "telemetry").glob("*"))


@pytest.mark.parametrize("controlling", [True, False], ids=["with a signal", "without a signal"])
def test_closed_terminal_ends_the_replay(controlling: bool, tmp_path: Path) -> None:
    (tmp_path / "events-00001.jsonl").write_bytes(recording(example_run()))
    with Terminal("replay", ".", "--at", "50%", cwd=tmp_path, controlling=controlling) as terminal:
        terminal.wait_for("REPLAY")  # held: nothing more is drawn, so no write fails
        assert terminal.close() == 0


@pytest.mark.slow
@pytest.mark.parametrize("controlling", [True, False], ids=["with a signal", "without a signal"])
def test_closed_terminal_ends_viewer_but_not_run(controlling: bool, tmp_path: Path) -> None:
    live = LiveRun(tmp_path).start_paused()
    with Terminal("attach", str(live.run.directory), cwd=tmp_path, controlling=controlling) as terminal:
        terminal.wait_for("PAUSED")
        assert terminal.close() == 0
    live.control.put(RequestKind.RESUME, "test")
    assert live.finish().status == "done"
