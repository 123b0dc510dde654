"""The `attach` command and the `--detach` option, each in a process and, where needed, a terminal of its own."""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from esper.cli.commands.attach import find_live_run
from esper.cli.main import main
from esper.recordings import events as ev
from esper.recordings.checkpoints.catalog import list_checkpoints
from esper.recordings.events.codec import encode_json
from esper.recordings.files.recorder import Recorder
from esper.recordings.files.run_directory import RunDirectory
from esper.recordings.files.run_lock import LOCK_FILE, RunLock, is_live, read_holder
from esper.training.checkpoint.files import read_checkpoint
from tests.factory import example_run
from tests.recordings.files.recordings import recording
from tests.runs import only_run, recorded
from tests.terminals import TIMEOUT_S, Terminal, assert_refused, printed, run, started, wait_until

LONG = ("--envs", "2", "--steps", "4", "--rounds", "100000", "--checkpoint-every", "0")


def end(directory: Path) -> None:
    """Kill the process of a run if a failed test left it alive."""
    holder = read_holder(directory)
    if holder is not None and is_live(directory):
        os.kill(holder.pid, signal.SIGKILL)


# Runs that cannot be attached to: exit code 2 and one sentence


def ended_run(folder: Path, name: str = "over") -> Path:
    directory = folder / "telemetry" / name
    directory.mkdir(parents=True)
    (directory / "events-00001.jsonl").write_bytes(recording(example_run()))
    return directory


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "no run in telemetry is live; replay the last one with `esper-sanctum replay telemetry/over`"),
        (
            ("over",),
            "telemetry/over is not live: no process trains it; replay it with `esper-sanctum replay telemetry/over`",
        ),
        (
            ("last",),
            "telemetry/over is not live: no process trains it; replay it with `esper-sanctum replay telemetry/over`",
        ),
        (
            ("telemetry/over/events-00001.jsonl",),
            "telemetry/over/events-00001.jsonl is not a run directory; replay it with `esper-sanctum replay "
            "telemetry/over/events-00001.jsonl`",
        ),
        (("ovre",), "'ovre' is neither a file nor a run in telemetry; did you mean over?"),
        (("--telemetry-dir", "none"), "no run in none is live"),
    ],
)
def test_attach_to_a_run_that_is_not_live_is_refused(
    arguments: tuple[str, ...],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ended_run(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(["attach", *arguments]) == 2
    assert printed(capsys) == ("", f"esper-sanctum: {sentence}\n")


def test_attach_last_picks_the_run_started_last(tmp_path: Path) -> None:
    ended_run(tmp_path, "first")
    ended_run(tmp_path, "second")
    locks = [RunLock(RunDirectory(tmp_path / "telemetry" / name)) for name in ("second", "first")]
    os.utime(tmp_path / "telemetry" / "second" / LOCK_FILE, (100.0, 100.0))
    os.utime(tmp_path / "telemetry" / "first" / "events-00001.jsonl", (100.0, 100.0))  # the other was written to last
    assert find_live_run(None, tmp_path / "telemetry").name == "first"
    for lock in locks:
        lock.release()


@pytest.mark.parametrize(("option", "last"), [("--no-tui", "run {}: done"), ("--narrate", "run done")])
def test_attach_last_follows_the_newest_live_run(option: str, last: str, tmp_path: Path) -> None:
    """`--no-tui` and `--narrate` follow the run to its end without importing torch."""
    live = tmp_path / "telemetry" / "live"
    recorder, lock = Recorder(RunDirectory.make(live)), RunLock(RunDirectory(live))
    events = example_run()
    for event in events[:-1]:
        recorder.put(event)
    assert recorder.flush()
    ended_run(tmp_path)  # written to later, but not live
    script = "import sys; from esper.cli.main import main; code = main(['attach', sys.argv[1]]); "
    script += "print('imported:', *{'torch', 'textual'} & set(sys.modules)); sys.exit(code)"
    shown = tmp_path / "shown"
    with shown.open("w") as file:
        process = subprocess.Popen([sys.executable, "-c", script, option], cwd=tmp_path, stdout=file)

    def is_shown() -> bool:
        recorder.put(ev.Logged(seq=events[-1].seq, time=events[-1].time, severity="error", text="still here"))
        return "still here" in shown.read_text()

    wait_until(is_shown)
    recorder.put(events[-1])
    recorder.close()
    lock.release()
    assert process.wait(TIMEOUT_S) == 0
    output = shown.read_text()
    started = events[0]
    assert isinstance(started, ev.RunStarted)
    assert last.format(started.run) in output.splitlines()
    assert output.endswith("imported:\n")


def test_attach_reports_a_killed_run(tmp_path: Path) -> None:
    directory = tmp_path / "telemetry" / "live"
    hold = "import sys, time; from pathlib import Path; from esper.recordings.files.run_lock import RunLock; "
    hold += "from esper.recordings.files.run_directory import RunDirectory; "
    hold += "lock = RunLock(RunDirectory.make(Path(sys.argv[1]))); "
    hold += "print(flush=True); time.sleep(1000)"
    trainer = subprocess.Popen([sys.executable, "-c", hold, str(directory)], stdout=subprocess.PIPE)
    assert trainer.stdout is not None
    trainer.stdout.readline()
    (directory / "events-00001.jsonl").write_bytes(recording(example_run()[:20]))
    with started("attach", "--no-tui", cwd=tmp_path) as watching:
        pipe = watching.stdout
        assert pipe is not None
        with (directory / "events-00001.jsonl").open("ab") as file:

            def is_shown() -> bool:
                file.write(encode_json(ev.Logged(seq=21, time=1.8e9, severity="info", text="still here")) + b"\n")
                file.flush()
                return bool(select.select([pipe], [], [], 0.1)[0])

            wait_until(is_shown)
        trainer.kill()
        trainer.communicate()
        _, errors = watching.communicate(timeout=TIMEOUT_S)
        assert errors == (
            "esper-sanctum: the process training telemetry/live exited without recording the end of the run\n"
        )
        assert watching.returncode == 1


def test_run_without_a_socket_warns_and_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def refuse(_: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("esper.recordings.attach.server._listen", refuse)
    assert main(["--no-tui", "--devices", "cpu:0", "--envs", "2", "--steps", "2", "--rounds", "1"]) == 0
    output = capsys.readouterr().out
    assert "WARNING other processes cannot attach to this run: " in output
    assert f"run {only_run(tmp_path).name}: done" in output


# --detach


def test_detach_interrupted_during_startup_ends_the_run(tmp_path: Path) -> None:
    with started("--detach", "--no-tui", *LONG, cwd=tmp_path) as starting:
        assert starting.stderr is not None
        process = psutil.Process(starting.pid)
        while not list(tmp_path.glob("telemetry/starting-*.log")) or not (children := process.children()):
            assert starting.poll() is None
        (child,) = children
        child.suspend()  # at once, often before it is this program: it must not start training before the signal
        assert starting.stderr.readline().startswith("starting a background process, which loads torch first")
        time.sleep(0.5)
        starting.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        child.resume()
        assert starting.wait(TIMEOUT_S) == 128 + signal.SIGTERM
        assert not child.is_running()


def test_detach_shows_an_error_of_the_dashboard_in_the_terminal(tmp_path: Path) -> None:
    with Terminal("--detach", "--theme", "sanctum-drak", cwd=tmp_path) as terminal:
        assert terminal.leave() == 2
        assert_refused(2, "", terminal.output.decode().replace("\r\n", "\n"), "'sanctum-drak'")
    assert list(tmp_path.iterdir()) == []


def test_detach_under_torchrun_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    for name, value in {"LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    assert main(["--detach", "--no-tui"]) == 2
    assert "--detach cannot be used under torchrun" in capsys.readouterr().err


@pytest.mark.slow
def test_detached_run_serves_two_viewers_and_is_stopped(tmp_path: Path) -> None:
    """Of three viewers, one is killed, one is read-only and one stops the run; only the last affects the run."""
    with Terminal("--detach", *LONG, cwd=tmp_path) as terminal:
        terminal.wait_for("RUNNING")
        directory = only_run(tmp_path)
        terminal.type("d")
        assert terminal.leave() == 0
        terminal.assert_restored()
        assert f"{directory.name} is still running; reattach with `esper-sanctum attach".encode() in terminal.output
    try:
        assert is_live(directory)
        holder = read_holder(directory)
        assert holder is not None
        assert os.getsid(holder.pid) == holder.pid
        with Terminal("attach", cwd=tmp_path) as first, Terminal("attach", "--read-only", cwd=tmp_path) as second:
            first.wait_for("RUNNING")
            second.wait_for("read-only")
            first.type("p")
            second.wait_for("PAUSED")
            first.process.kill()
            second.type("c")
            second.wait_for("This view is read-only")
            assert list_checkpoints(directory) == []
            second.type("q")
            assert second.leave() == 0
        with Terminal("attach", directory.name, cwd=tmp_path) as third:
            third.wait_for("PAUSED")
            third.type("p")
            third.wait_for("RUNNING")
            third.type("{")  # a viewer that shows the start of the run still reports its end
            third.wait_for("PAST")
            third.type("Q")
            third.wait_for("End the run?")
            third.type("c")
            assert third.leave() == 0
            third.assert_restored()
            assert f"run {directory.name}: stopped".encode() in third.output
        wait_until(lambda: not is_live(directory))
    finally:
        end(directory)
    assert read_checkpoint(list_checkpoints(directory)[-1])
    requests = [event for event in recorded(directory) if isinstance(event, ev.ControlRequested)]
    assert [request.kind for request in requests] == ["pause", "resume", "stop"]
    origins = [request.origin.rpartition(" ") for request in requests]
    assert {name for name, _, _ in origins} == {origins[0][0]}
    assert [int(pid) for _, _, pid in origins] == [first.process.pid, third.process.pid, third.process.pid]
    assert not (directory / "control.sock").exists()
    assert f"run {directory.name}: stopped" in (directory / "output.log").read_text()


@pytest.mark.slow
def test_detached_run_starts_and_resumes_from_a_script(tmp_path: Path) -> None:
    done = run("--detach", "--no-tui", *LONG, cwd=tmp_path)
    directory = only_run(tmp_path)
    try:
        assert (done.returncode, done.stdout) == (0, f"telemetry/{directory.name}\n")
        assert is_live(directory)
        holder = read_holder(directory)
        assert holder is not None
        refused = run("--no-tui", "--resume", str(directory), cwd=tmp_path)
        assert refused.returncode == 2  # the run has no checkpoint yet
        os.kill(holder.pid, signal.SIGTERM)
        wait_until(lambda: not is_live(directory))
        with started("--detach", "--no-tui", "--resume", str(directory), cwd=tmp_path) as resuming:
            assert resuming.stderr is not None
            assert resuming.stderr.readline().startswith("starting a background process, which loads torch first")
            while resuming.poll() is None:  # the lock is handed over without a gap, before torch is loaded
                assert is_live(directory)
            output = resuming.communicate()[0]
        assert (resuming.returncode, output) == (0, f"{directory}\n")
        assert is_live(directory)
        twice = run("--no-tui", "--resume", str(directory), cwd=tmp_path)
        assert twice.returncode == 2
        assert "is being trained by process " in twice.stderr
    finally:
        end(directory)
    assert (directory / "output.log").exists()
    assert (directory / "output-2.log").exists()
    assert sorted(path.name for path in (tmp_path / "telemetry").iterdir()) == [directory.name]
