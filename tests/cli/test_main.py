"""The command line end to end: output, exit codes, signals, and the files that a run leaves."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from esper.cli.main import main
from esper.recordings import events as ev
from esper.recordings.checkpoints.catalog import list_checkpoints
from esper.training.checkpoint.files import read_checkpoint
from esper.training.envs.env import Env
from tests.factory import example_run
from tests.recordings.files.recordings import recording, write_segment
from tests.runs import only_run, recorded
from tests.terminals import (
    SLOW_STEPS,
    TIMEOUT_S,
    assert_refused,
    insist,
    printed,
    run,
    started,
)

SMALL = ("--envs", "2", "--steps", "2", "--rounds", "1", "--devices", "cpu:0")


# A run without the dashboard


def test_headless_run_its_replay_and_its_continuation_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    assert main(["--no-tui", *SMALL]) == 0
    output, errors = printed(capsys)
    assert errors == ""
    assert "\x1b" not in output
    directory = only_run(tmp_path)
    lines = output.splitlines()
    assert f"INFO    run {directory.name}: ppo on digits_impaired, 2 envs" in lines[0]
    assert any("round 1/1: median accuracy" in line for line in lines)
    summary = lines[lines.index(f"run {directory.name}: done") :]

    assert main(["replay", directory.name, "--no-tui"]) == 0
    output, errors = printed(capsys)
    assert errors == ""
    assert output.splitlines() == summary
    assert (directory / "run.json").exists()
    assert (directory / "events-00001.jsonl.zst").exists()
    assert read_checkpoint(list_checkpoints(directory)[-1]).round == 1

    assert_refused(main(["--no-tui", "--resume", directory.name]), *printed(capsys), "--rounds N")
    assert main(["--no-tui", "--resume", "last", "--rounds", "2"]) == 0
    assert only_run(tmp_path) == directory
    assert [event.round for event in recorded(directory) if isinstance(event, ev.RoundStarted)] == [1, 2]


def test_narrate_prints_the_same_live_and_in_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    assert main(["--narrate", *SMALL, "--checkpoint-every", "1"]) == 0
    live = printed(capsys)
    assert main(["replay", "last", "--narrate"]) == 0

    assert printed(capsys) == live
    output, errors = live
    assert errors == ""
    assert output.startswith(f"run {only_run(tmp_path).name}: ppo on digits_impaired, 2 envs on cpu:0 x")
    assert re.search(r"^round 1/1: median accuracy .*\nrun done\n\Z", output, re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_first_signal_finishes_the_step_and_checkpoints(tmp_path: Path) -> None:
    with started("--no-tui", "--envs", "2", "--rounds", "1000", cwd=tmp_path) as process:
        assert process.stdout is not None
        assert "INFO    run " in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    assert errors == "" or errors.startswith("stopping: the run ends after this step")  # the step takes seconds
    *_, saved, ended = recorded(only_run(tmp_path))
    assert isinstance(saved, ev.CheckpointSaved)
    assert isinstance(ended, ev.RunEnded)
    assert (saved.origin, ended.outcome) == ("signal", "stopped")
    assert read_checkpoint(list_checkpoints(only_run(tmp_path))[-1])
    assert f"run {only_run(tmp_path).name}: stopped" in output


@pytest.mark.parametrize("moment", ["import", "exit"])
def test_ctrl_c_before_and_after_a_command_prints_no_traceback(moment: str) -> None:
    script = """
import atexit, importlib.abc, os, signal, sys
from esper.__main__ import run

def interrupt(*_):
    os.kill(os.getpid(), signal.SIGINT)

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, *_):
        if name == "esper.cli.main":
            interrupt()

if sys.argv[1] == "import":
    sys.meta_path.insert(0, Finder())
else:
    atexit.register(interrupt)
sys.exit(run(["schema"]))
"""
    ended = subprocess.run([sys.executable, "-c", script, moment], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, "")


def test_unencodable_characters_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    write_segment(tmp_path / "run", 1, recording(example_run()))
    done = run("show", "run", "--telemetry-dir", ".", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "?" in done.stdout


@pytest.mark.slow
def test_second_signal_ends_the_run_at_once(tmp_path: Path) -> None:
    with started("--no-tui", *SLOW_STEPS, cwd=tmp_path) as process:
        assert process.stdout is not None
        assert "INFO    run " in process.stdout.readline()
        assert insist(process, signal.SIGTERM) == 143
        _, errors = process.communicate()
    assert errors == ""
    events = recorded(only_run(tmp_path))
    assert not any(
        isinstance(event, ev.PhaseTimed | ev.RunEnded) for event in events
    )  # not even the current step was finished


@pytest.mark.slow
def test_broken_pipe_checkpoints_and_stops(tmp_path: Path) -> None:
    with started("--no-tui", "--envs", "2", "--steps", "2", "--rounds", "1000", cwd=tmp_path) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert "INFO    run " in process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(TIMEOUT_S) == 0
    ended = recorded(only_run(tmp_path))[-1]
    assert isinstance(ended, ev.RunEnded)
    assert ended.outcome == "stopped"
    assert read_checkpoint(list_checkpoints(only_run(tmp_path))[-1])


def test_failed_run_reports_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(env: Env, step: int) -> Tensor:
        raise RuntimeError("the device is on fire")

    monkeypatch.setattr(Env, "train_epoch", broken)
    monkeypatch.chdir(tmp_path)
    assert main(["--no-tui", *SMALL]) == 1
    output = capsys.readouterr()
    assert "run failed: env 00 on cpu:0 failed: RuntimeError: the device is on fire" in output.out
    assert output.err.startswith("esper-sanctum: env 00 on cpu:0 failed: RuntimeError: the device is on fire")
    assert output.err.count("\n") == 1
    trace = only_run(tmp_path) / "traceback.txt"
    assert str(trace.relative_to(tmp_path)) in output.err
    assert 'raise RuntimeError("the device is on fire")' in trace.read_text()


def test_out_of_memory_is_one_sentence_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train = Env.train_epoch

    def greedy(env: Env, step: int) -> Tensor:
        if env.key.round == 1:
            raise torch.OutOfMemoryError("Tried to allocate 2.00 TiB.\nMore words.")
        return train(env, step)

    monkeypatch.setattr(Env, "train_epoch", greedy)
    monkeypatch.chdir(tmp_path)
    assert main(["--no-tui", *SMALL, "--rounds", "2", "--checkpoint-every", "1"]) == 1
    directory = only_run(tmp_path).relative_to(tmp_path)
    assert capsys.readouterr().err == (
        "esper-sanctum: env 00 on cpu:0 ran out of memory: Tried to allocate 2.00 TiB.; "
        f"--resume {directory} continues at round 2, step 1\n"
    )
    assert not (directory / "traceback.txt").exists()


# What is imported

QUICK = (
    *(("--help",), ("--help-all",), ("config",), ("--version",), ("replay", "--help")),
    *(("replay", "run", "--no-tui"), ("runs", "."), ("show", "run"), ("compare", "--help")),
)
REFUSED = (
    ("--envs", "0"),
    ("--task", "digit"),
    ("--devices", "gpu"),
    ("--devices", "cuda:99"),
    ("--devices", "cuda:99", "--no-tui"),
    ("devices", "--devices", "cuda:99"),
    ("--policy-device", "cuda:99"),
    ("--slots", "mid", "mid"),
    ("--telemetry-dir", "run/events-00001.jsonl"),
    ("--bogus",),
    ("--detach", "--devices", "cuda:99"),
)
HEAVY = {"torch", "textual", "numpy"}


def test_heavy_libraries_are_imported_on_demand(tmp_path: Path) -> None:
    """One process runs all commands that need none of them."""
    write_segment(tmp_path / "run", 1, recording(example_run()))
    script = f"""
import sys
from esper.cli.main import main
for arguments in {QUICK + REFUSED}:
    try:
        code = main(arguments)
    except SystemExit as ended:
        code = ended.code
    print()
    print("ran:", *arguments, "code:", code, "imported:", *{HEAVY} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    ran = [line for line in done.stdout.splitlines() if line.startswith("ran: ")]
    expected = {**dict.fromkeys(QUICK, 0), **dict.fromkeys(REFUSED, 2)}
    assert ran == [f"ran: {' '.join(arguments)} code: {code} imported:" for arguments, code in expected.items()]


def test_help_lists_every_option_and_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    output, errors = printed(capsys)
    assert (ended.value.code, errors) == (0, "")
    assert "\x1b" not in output
    pointer = "esper-sanctum --help-all lists every option with its range, unit and default."
    assert " ".join(output.split()).endswith(pointer)
    for word in ("--envs", "--devices", "--resume", "--checkpoint-every", "--theme", "--no-tui", "replay"):
        assert word in output
