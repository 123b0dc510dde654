"""Training in a terminal: first frame, signals, and terminals that are closed or frozen."""

from __future__ import annotations

import errno
import os
import re
import signal
import time
from base64 import b64encode
from contextlib import nullcontext
from pathlib import Path
from typing import NoReturn

import pytest

from esper.cli.dashboard import DisplayOptions
from esper.cli.run_display import run_in_dashboard
from esper.common.configuration.files import resolve_config
from esper.common.control import Request, RequestKind
from esper.recordings import events as ev
from esper.recordings.checkpoints.catalog import list_checkpoints
from esper.training.checkpoint.files import read_checkpoint
from esper.training.engine.start_point import StartPoint
from esper.training.engine.thread import EngineThread
from tests.factory import example_run
from tests.recordings.files.recordings import recording
from tests.runs import LiveRun, only_run, recorded, tiny
from tests.terminals import ENTER_SCREEN, SLOW_STEPS, TIMEOUT_S, Terminal, assert_refused

# In a terminal


def test_unknown_theme_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with Terminal("--theme", "sanctum-drak", cwd=tmp_path) as terminal:
        assert terminal.leave() == 2
        text = terminal.output.decode().replace("\r\n", "\n")
        assert_refused(2, "", text, "sanctum-dark")
        assert "'sanctum-drak'" in text
    assert list(tmp_path.iterdir()) == []


def test_replay_in_terminal_exits_on_q(tmp_path: Path) -> None:
    (tmp_path / "events-00001.jsonl").write_bytes(recording(example_run()))
    with Terminal("replay", ".", cwd=tmp_path) as terminal:
        terminal.wait_for("REPLAY")
        terminal.type("q")
        assert terminal.leave() == 0
        terminal.assert_restored()


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
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_second_signal_to_dashboard_exits_at_once(number: signal.Signals, code: int, tmp_path: Path) -> None:
    with Terminal(*SLOW_STEPS, cwd=tmp_path) as terminal:
        terminal.wait_for("RUNNING")
        terminal.process.send_signal(number)
        terminal.wait_for("checkpointing, then quitting")
        terminal.process.send_signal(number)
        assert terminal.leave() == code
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


@pytest.mark.slow
@pytest.mark.parametrize("dashboard", [True, False], ids=["dashboard", "no dashboard"])
def test_repeated_hangup_does_not_count_as_second_signal(dashboard: bool, tmp_path: Path) -> None:
    """When a terminal is closed, its shell forwards SIGHUP, and the kernel sends it again when the shell has ended."""
    options = () if dashboard else ("--no-tui",)
    with Terminal(*SLOW_STEPS, *options, cwd=tmp_path, controlling=True) as terminal:
        terminal.wait_for("RUNNING" if dashboard else " run ")
        for _ in range(3):
            terminal.process.send_signal(signal.SIGHUP)
            time.sleep(0.1)
        assert terminal.close() == 0
    directory = only_run(tmp_path)
    ended = recorded(directory)[-1]
    assert isinstance(ended, ev.RunEnded)
    assert ended.outcome == "stopped"
    assert read_checkpoint(list_checkpoints(directory)[-1]).step > 0


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


class Engine(EngineThread):
    """Engine that trains nothing and records whether `join` was called."""

    waited_for = is_starting = False

    @property
    def is_engine_alive(self) -> bool:
        return True

    @property
    def is_preparing(self) -> bool:
        return self.is_starting

    def join(self) -> None:
        self.waited_for = True


@pytest.mark.parametrize("code", [0, 1])
def test_dashboard_crash_checkpoints_the_run(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, ended = Engine(StartPoint(resolve_config(None, tiny(tmp_path)))), list[int]()
    monkeypatch.setattr("esper.cli.run_display.show_dashboard", lambda *_: code)
    monkeypatch.setattr(os, "_exit", ended.append)
    with pytest.raises(SystemExit) if code else nullcontext():
        run_in_dashboard(engine, DisplayOptions("", "", bell=False), "digits")
    assert engine.control.get() == Request(RequestKind.STOP, "dashboard")
    assert engine.waited_for
    assert ended == [code] * bool(code)


def test_quitting_a_start_does_not_wait_for_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, ended = Engine(StartPoint(resolve_config(None, tiny(tmp_path)))), list[int]()
    engine.is_starting = True
    monkeypatch.setattr("esper.cli.run_display.show_dashboard", lambda *_: 0)
    monkeypatch.setattr(os, "_exit", ended.append)
    with pytest.raises(SystemExit):
        run_in_dashboard(engine, DisplayOptions("", "", bell=False), "digits")
    assert (ended, engine.waited_for) == ([0], False)


def test_dashboard_crash_without_output_checkpoints_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(StartPoint(resolve_config(None, tiny(tmp_path))))

    def fail(*_: object) -> NoReturn:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("esper.cli.run_display.show_dashboard", fail)
    with pytest.raises(OSError, match="Input/output error"):
        run_in_dashboard(engine, DisplayOptions("", "", bell=False), "digits")
    assert engine.control.get() == Request(RequestKind.STOP, "dashboard")
    assert engine.waited_for
