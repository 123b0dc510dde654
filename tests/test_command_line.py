"""The command line as a person meets it: what it prints, where, its exit code, and what it leaves behind."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from base64 import b64encode
from contextlib import nullcontext
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from torch import Tensor

from esper import cli
from esper.commands.screen import Look
from esper.config import resolve
from esper.control import Kind, Request
from esper.engine.checkpoint import STATE, read_checkpoint
from esper.engine.env import Env
from esper.engine.manifest import MANIFEST, list_checkpoints
from esper.engine.saving import Saver
from esper.engine.trainer import Trainer
from esper.launch import EngineThread
from esper.telemetry import events as ev
from tests.factory import example_run
from tests.runs import LiveRun, computed, recorded, stopped_run, tiny
from tests.telemetry.recordings import recording, write_segment
from tests.terminals import ENTER_SCREEN, PATIENCE, PROGRAM, Terminal, insist, run, started

SMALL = ("--envs", "2", "--steps", "2", "--rounds", "1", "--devices", "cpu:0")
SLOW_STEPS = ("--task", "synthetic", "--envs", "16", "--devices", "cpu:0")
"""Seconds each: long enough that a signal comes in the middle of one."""


def only_run(folder: Path) -> Path:
    (directory,) = (folder / "telemetry").iterdir()
    return directory


# A run without the dashboard


def test_a_headless_run_and_its_replay(tmp_path: Path) -> None:
    done = run("--no-tui", *SMALL, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    directory = only_run(tmp_path)
    lines = done.stdout.splitlines()
    assert f"INFO    run {directory.name}: ppo on digits_impaired, 2 envs" in lines[0]
    assert any("round 1/1: accuracy" in line for line in lines)
    summary = lines[lines.index(f"run {directory.name}: done") :]

    replayed = run("replay", directory.name, "--no-tui", cwd=tmp_path)
    assert (replayed.returncode, replayed.stderr) == (0, "")
    assert replayed.stdout.splitlines() == summary
    assert (directory / "run.json").exists()
    assert (directory / "events-00001.jsonl.zst").exists()
    assert read_checkpoint(list_checkpoints(directory)[-1]).round == 1


def test_a_run_is_narrated_as_its_replay_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    assert cli.main(["--narrate", *SMALL, "--checkpoint-every", "1"]) == 0
    live = printed(capsys)
    assert cli.main(["replay", "last", "--narrate"]) == 0

    assert printed(capsys) == live
    said, complaints = live
    assert complaints == ""
    assert said.startswith(f"run {only_run(tmp_path).name}: ppo on digits_impaired, 2 envs on cpu:0 x")
    assert re.search(r"^round 1/1: accuracy .*\nrun done\n\Z", said, re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_a_killed_run_is_resumed_to_the_same_end(tmp_path: Path) -> None:
    options = ("--no-tui", "--envs", "2", "--steps", "12", "--rounds", "6", "--checkpoint-every", "1")
    (tmp_path / "whole").mkdir()
    (tmp_path / "killed").mkdir()
    assert run(*options, cwd=tmp_path / "whole").returncode == 0
    whole = only_run(tmp_path / "whole")

    with started(*options, cwd=tmp_path / "killed") as process:
        assert process.stdout is not None
        assert any("round 2/6" in line for line in process.stdout)
        killed = only_run(tmp_path / "killed")
        third_round = re.compile(r'"type":"EnvStepped","seq":\d+,"time":[\d.]+,"round":3,')
        while not third_round.search((killed / "events-00001.jsonl").read_text()):
            assert process.poll() is None
            time.sleep(0.01)
        process.kill()
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not any(isinstance(event, ev.RunEnded) for event in recorded(killed))

    resumed = run("--no-tui", "--resume", str(killed), cwd=tmp_path)
    assert (resumed.returncode, resumed.stderr) == (0, "")
    assert computed(recorded(killed)) == computed(recorded(whole))
    ends = [run("replay", str(directory), "--no-tui", cwd=tmp_path).stdout for directory in (whole, killed)]
    accuracies = [re.findall(r"accuracy.*", end) for end in ends]
    assert accuracies[0] == accuracies[1]
    assert len(accuracies[0]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_first_signal_finishes_the_step_and_checkpoints(number: signal.Signals, tmp_path: Path) -> None:
    with started("--no-tui", "--envs", "2", "--rounds", "1000", cwd=tmp_path) as process:
        assert process.stdout is not None
        assert "INFO    run " in process.stdout.readline()
        process.send_signal(number)
        output, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors) == (0, "")
    *_, saved, ended = recorded(only_run(tmp_path))
    assert isinstance(saved, ev.CheckpointSaved)
    assert isinstance(ended, ev.RunEnded)
    assert (saved.origin, ended.outcome) == ("signal", "stopped")
    assert read_checkpoint(list_checkpoints(only_run(tmp_path))[-1])
    assert f"run {only_run(tmp_path).name}: stopped" in output


def test_a_signal_that_comes_twice_at_once_is_one(tmp_path: Path) -> None:
    """`timeout` sends it to the process, then to its group."""
    with started("--no-tui", "--envs", "2", "--rounds", "1000", "--devices", "cpu:0", cwd=tmp_path) as process:
        assert process.stdout is not None
        assert "INFO    run " in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors) == (0, "")
    assert isinstance(recorded(only_run(tmp_path))[-1], ev.RunEnded)


def test_what_a_terminal_cannot_spell_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    write_segment(tmp_path / "run", 1, recording(example_run()))
    done = run("show", "run", "--telemetry-dir", ".", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "?" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_second_signal_ends_it_at_once(number: signal.Signals, code: int, tmp_path: Path) -> None:
    with started("--no-tui", *SLOW_STEPS, cwd=tmp_path) as process:
        assert process.stdout is not None
        assert "INFO    run " in process.stdout.readline()
        assert insist(process, number) == code
        _, errors = process.communicate()
    assert errors == ""
    events = recorded(only_run(tmp_path))
    assert not any(isinstance(event, ev.PhaseTimed | ev.RunEnded) for event in events)  # not even the step


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "events-00001.jsonl").write_bytes(recording(example_run()))
    with started("replay", str(tmp_path), "--no-tui", cwd=tmp_path) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(PATIENCE) == 0


@pytest.mark.slow
def test_a_run_whose_terminal_is_gone_checkpoints_and_ends(tmp_path: Path) -> None:
    master, slave = os.openpty()
    process = subprocess.Popen(
        [*PROGRAM, "--no-tui", "--envs", "2", "--steps", "2", "--rounds", "1000"],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=slave,
        stderr=subprocess.PIPE,
    )
    os.close(slave)
    output = b""
    while b"round 1/1000" not in output:
        output += os.read(master, 4096)
    os.close(master)
    _, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors) == (0, b"")
    ended = recorded(only_run(tmp_path))[-1]
    assert isinstance(ended, ev.RunEnded)
    assert ended.outcome == "stopped"
    assert read_checkpoint(list_checkpoints(only_run(tmp_path))[-1])


@pytest.mark.slow
def test_a_run_whose_reader_has_seen_enough_checkpoints_and_ends(tmp_path: Path) -> None:
    with started("--no-tui", "--envs", "2", "--steps", "2", "--rounds", "1000", cwd=tmp_path) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert "INFO    run " in process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(PATIENCE) == 0
    ended = recorded(only_run(tmp_path))[-1]
    assert isinstance(ended, ev.RunEnded)
    assert ended.outcome == "stopped"
    assert read_checkpoint(list_checkpoints(only_run(tmp_path))[-1])


def test_a_run_that_fails_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(env: Env, round_index: int, step: int) -> Tensor:
        raise RuntimeError("the device is on fire")

    monkeypatch.setattr(Env, "train", broken)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["--no-tui", *SMALL]) == 1
    output = capsys.readouterr()
    assert "run failed: env 00 on cpu:0 failed: RuntimeError: the device is on fire" in output.out
    assert output.err.startswith("esper-sanctum: env 00 on cpu:0 failed: RuntimeError: the device is on fire")
    assert output.err.count("\n") == 1
    trace = only_run(tmp_path) / "traceback.txt"
    assert str(trace.relative_to(tmp_path)) in output.err
    assert 'raise RuntimeError("the device is on fire")' in trace.read_text()


def test_a_run_out_of_memory_is_one_sentence_with_the_way_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train = Env.train

    def greedy(env: Env, round_index: int, step: int) -> Tensor:
        if round_index == 1:
            raise torch.OutOfMemoryError("Tried to allocate 2.00 TiB.\nMore words.")
        return train(env, round_index, step)

    monkeypatch.setattr(Env, "train", greedy)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["--no-tui", *SMALL, "--rounds", "2", "--checkpoint-every", "1"]) == 1
    directory = only_run(tmp_path).relative_to(tmp_path)
    assert capsys.readouterr().err == (
        "esper-sanctum: env 00 on cpu:0 ran out of memory: Tried to allocate 2.00 TiB.; "
        f"--resume {directory} goes on at round 2, step 1\n"
    )
    assert not (directory / "traceback.txt").exists()

    monkeypatch.setattr(Env, "train", train)
    assert cli.main(["--no-tui", "--resume", str(directory)]) == 0


def test_a_full_disk_at_the_end_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(saver: Saver, trainer: Trainer) -> tuple[Path, int]:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Saver, "save", full)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["--no-tui", *SMALL]) == 1
    directory = only_run(tmp_path).relative_to(tmp_path)
    assert capsys.readouterr().err == (
        f"esper-sanctum: the checkpoint cannot be written to {directory}: No space left on device; "
        "there is no checkpoint yet: start it anew\n"
    )


def test_a_finished_run_says_how_to_continue_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["--no-tui", *SMALL]) == 0
    capsys.readouterr()
    directory = str(only_run(tmp_path))
    assert_refused(cli.main(["--no-tui", "--resume", directory]), *printed(capsys), "--rounds N")
    assert cli.main(["--no-tui", "--resume", directory, "--rounds", "3"]) == 0


# What is asked wrongly: exit 2, one sentence that names it, nothing left behind


def printed(capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    output = capsys.readouterr()
    return output.out, output.err


def assert_refused(code: int, output: str, errors: str, named: str) -> None:
    assert code == 2
    assert output == ""
    assert errors.startswith("esper-sanctum: ")
    assert errors.count("\n") == 1
    assert errors.endswith("\n")
    assert named in errors


WRONG = {
    ("--envs", "0"): "--envs '0' is not valid: it must be int >= 1",
    ("--envs", "-3"): "--envs '-3' is not valid: it must be int >= 1",
    ("--envs", "many"): "--envs 'many' is not valid: it must be int",
    ("--envs",): "--envs: expected one argument",
    ("--rounds", "1.5"): "--rounds '1.5' is not valid: it must be int",
    ("--steps", "0"): "--steps '0' is not valid: it must be int >= 1",
    ("--keep", "0"): "--keep '0' is not valid: it must be int >= 1",
    ("--checkpoint-every", "-1"): "--checkpoint-every '-1' is not valid: it must be int >= 0",
    (
        "--seed",
        "9223372036854775808",
    ): "--seed '9223372036854775808' is not valid: it must be int <= 9223372036854775807",
    ("--policy", "heuristics"): "--policy 'heuristics' is not valid: did you mean heuristic?",
    ("--policy", "x"): "--policy 'x' is not valid: valid: ppo, heuristic,",
    ("--reward", "shape"): "--reward 'shape' is not valid: did you mean shaped?",
    ("--counterfactual", "no"): "--counterfactual 'no' is not valid: ",
    ("--round", "3"): "unknown option --round: did you mean --rounds?",
    ("trian",): "unknown command or argument 'trian': ",
    ("replya",): "unknown command or argument 'replya': did you mean replay?",
    ("--config", "none.toml"): "cannot read --config none.toml: No such file or directory",
    ("--resume", "none"): "none holds no checkpoint; give a run, or a directory below its checkpoints/",
    ("replay",): "FILE_OR_RUN",
    ("replay", "none"): "there is no file 'none', nor a run of that name in telemetry",
    ("replay", "last"): "there is no last run: telemetry holds none yet",
    ("replay", "last", "--speed", "0"): "--speed 0.0 is not valid: it must be a number above 0",
    ("replay", "last", "--speed", "nan"): "--speed nan is not valid",
    ("replay", "last", "--follow", "--no-tui"): "--follow needs the dashboard: leave out --no-tui",
    ("replay", "last", "--follow", "--narrate"): "leave out --narrate, or see esper-sanctum attach --narrate",
    ("replay", "last", "--speed", "fast"): "--speed: invalid float value: 'fast'",
    (): "the dashboard needs a terminal, and there is none here: add --no-tui",
}


@pytest.mark.parametrize(("arguments", "named"), WRONG.items(), ids=[" ".join(words) or "pipe" for words in WRONG])
def test_a_wrong_request_is_one_sentence(arguments: tuple[str, ...], named: str, tmp_path: Path) -> None:
    headless = ("--no-tui",) if arguments and not arguments[0].startswith("re") else ()
    done = run(*arguments, *headless, cwd=tmp_path)
    assert_refused(done.returncode, done.stdout, done.stderr, named)
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_no_file_can_have_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_refused(cli.main(["show", "x" * 300]), *printed(capsys), "cannot be used: File name too long")


TOML = {
    "envs = ": "run.toml is not TOML: ",
    "\xff": "run.toml is not TOML: ",
    "env = 3": "unknown key 'env' in run.toml: did you mean envs?",
    "envs = 0": "envs = 0 in run.toml is not valid: it must be int >= 1",
    "policy = 'x'": "policy = 'x' in run.toml is not valid: valid: ppo, heuristic,",
    "ppo = 3": "'ppo' in run.toml must be a table, [ppo]",
    "[ppo]\nclip = -0.2": "ppo.clip = -0.2 in run.toml is not valid: it must be float > 0.0",
    "[reward-weights]\nrent = inf": "reward-weights.rent = inf in run.toml is not valid: it must be float <= 1000000.0",
    "[ppo]\nclipp = 0.2": "unknown key 'clipp' in [ppo] of run.toml: did you mean clip?",
}


@pytest.mark.parametrize(("text", "named"), TOML.items())
def test_a_wrong_file_is_one_sentence(
    text: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.toml").write_bytes(text.encode("latin-1"))
    monkeypatch.chdir(tmp_path)
    assert_refused(cli.main(["--config", "run.toml", "--no-tui"]), *printed(capsys), named)
    assert [path.name for path in tmp_path.iterdir()] == ["run.toml"]


def test_the_command_line_beats_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run.toml").write_text("policy = 'random'\nenvs = 9\nrounds = 1\nsteps = 1\n[ppo]\nclip = 0.3\n")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["--config", "run.toml", "--envs", "1", "--no-tui"]) == 0
    first = recorded(only_run(tmp_path))[0]
    assert isinstance(first, ev.RunStarted)
    assert (first.policy, len(first.lanes), first.config["ppo"]["clip"]) == ("random", 1, 0.3)


CANNOT_BE = {
    ("--task", "digit"): "unknown task 'digit': did you mean",
    ("--task", "zzz"): "unknown task 'zzz': valid: digits_impaired, digits,",
    ("--devices", "gpu"): "--devices 'gpu' is not a device: use auto, cuda:0, cuda:1 … or cpu:0, cpu:1 …",
    ("--devices", "cuda:99"): "--devices cuda:99 is not there: this machine has ",
    ("--devices", "cpu:9999"): "--devices cpu:9999 is not there: this machine has cpu:0",
    ("--devices", "mps"): "--devices mps is not supported: hosts train on CUDA devices and CPUs only",
    ("--policy-device", "gpu"): "--policy-device 'gpu' is not a device: use cpu, cuda:0, cuda:1 …",
    ("--policy-device", "cuda:99"): "--policy-device cuda:99 is not there: this machine has ",
    ("--devices", "cpu:0", "cpu"): "--devices names cpu:0 more than once",
    ("--slots", "middle"): "'middle'",
    ("--slots", "mid", "mid"): "--slots names 'mid' more than once",
    ("--telemetry-dir", "taken"): "cannot record to taken/",
    ("--task", "cifar10", "--data-dir", "taken"): "CIFAR-10 in taken is missing or damaged: run ",
}


@pytest.mark.parametrize(("arguments", "named"), CANNOT_BE.items(), ids=map(" ".join, CANNOT_BE))
def test_what_this_machine_cannot_do_is_one_sentence(
    arguments: tuple[str, ...],
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In this process, which has torch already."""
    (tmp_path / "taken").write_text("a file where a directory should be")
    monkeypatch.chdir(tmp_path)
    assert_refused(cli.main([*arguments, "--no-tui"]), *printed(capsys), named)
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_cuda_on_a_machine_without_it_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    named = "--devices cuda:0 is not there: this machine has no cuda device; --devices auto takes what there is"
    assert_refused(cli.main(["--no-tui", "--devices", "cuda:0", "cuda:1"]), *printed(capsys), named)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_directory_that_cannot_be_written_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tmp_path.chmod(0o500)
    monkeypatch.chdir(tmp_path)
    assert_refused(cli.main(["--no-tui"]), *printed(capsys), "cannot record to telemetry/")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has one checkpoint."""
    return stopped_run(tmp_path_factory.mktemp("stopped"))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--slots", "early"), "was made with --slots early mid late, not early; a run cannot change that"),
        (("--envs", "5"), "was made with --envs 3, not 5; a run cannot change that"),
        (("--task", "digits"), "was made with --task digits_impaired, not digits; a run cannot change that"),
    ],
)
def test_a_resumed_run_cannot_change_its_shape(
    stopped: Path, options: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(stopped.rglob("*"))
    assert_refused(cli.main(["--resume", str(stopped), *options, "--no-tui"]), *printed(capsys), named)
    assert sorted(stopped.rglob("*")) == before


@pytest.mark.parametrize("file", [STATE, MANIFEST])
def test_a_damaged_checkpoint_is_one_sentence(
    stopped: Path, file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_directory = tmp_path / "run"
    shutil.copytree(stopped, run_directory)
    damaged = list_checkpoints(run_directory)[-1] / file
    damaged.write_bytes(damaged.read_bytes()[:-30])
    before = {path: path.read_bytes() for path in run_directory.rglob("*") if path.is_file()}
    assert_refused(cli.main(["--resume", str(run_directory), "--no-tui"]), *printed(capsys), f"{damaged} is damaged")
    assert {path: path.read_bytes() for path in run_directory.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("notes.txt", b"dear diary\n"),
        ("events-00001.jsonl", b'{"event": "something else"}\n' * 60),
        ("events-00001.jsonl.zst", b"\x28\xb5\x2f\xfd damaged"),
        ("picture.png", b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40),
    ],
)
def test_a_foreign_file_is_no_recording(
    name: str, content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    assert_refused(
        cli.main(["replay", str(file), "--no-tui"]), *printed(capsys), str(tmp_path / name.removesuffix(".zst"))
    )


def test_an_empty_directory_is_no_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(cli.main(["replay", str(tmp_path), "--no-tui"]), *printed(capsys), str(tmp_path))


# What is imported


@pytest.mark.parametrize(
    ("arguments", "absent"),
    [
        (["--help"], {"torch", "textual", "numpy"}),
        (["--version"], {"torch", "textual", "numpy"}),
        (["replay", "--help"], {"torch", "textual", "numpy"}),
        (["replay", ".", "--no-tui"], {"torch", "textual", "numpy"}),
        (["--envs", "0"], {"torch", "textual", "numpy"}),
    ],
)
def test_nothing_heavy_is_imported_before_it_is_needed(arguments: list[str], absent: set[str], tmp_path: Path) -> None:
    (tmp_path / "events-00001.jsonl").write_bytes(recording(example_run()))
    script = f"""
import sys
from esper.cli import main
try:
    main({arguments})
finally:
    print("imported:", *{absent} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "imported:"


def test_help_names_every_option_and_command(tmp_path: Path) -> None:
    done = run("--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    for word in ("--envs", "--devices", "--resume", "--checkpoint-every", "--theme", "--no-tui", "replay"):
        assert word in done.stdout


# In a terminal


def test_an_unknown_theme_is_one_sentence(tmp_path: Path) -> None:
    with Terminal("--theme", "sanctum-drak", cwd=tmp_path) as terminal:
        assert terminal.leave() == 2
        text = terminal.output.decode().replace("\r\n", "\n")
        assert_refused(2, "", text, "sanctum-dark")
        assert "'sanctum-drak'" in text
    assert list(tmp_path.iterdir()) == []


def test_a_replay_in_a_terminal_leaves_with_q(tmp_path: Path) -> None:
    (tmp_path / "events-00001.jsonl").write_bytes(recording(example_run()))
    with Terminal("replay", ".", cwd=tmp_path) as terminal:
        terminal.wait_for("REPLAY")
        terminal.type("q")
        assert terminal.leave() == 0
        terminal.assert_restored()


def test_an_address_opens_its_view_and_is_copied_through_the_terminal(tmp_path: Path) -> None:
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
def test_a_live_run_in_a_terminal(tmp_path: Path) -> None:
    """First a frame, then torch; `q` asks, and `w` leaves without a checkpoint."""
    with Terminal("--envs", "2", cwd=tmp_path, python=["-X", "importtime"]) as terminal:
        terminal.wait_for("RUNNING")
        frame = terminal.output.index(b"starting: loading torch")
        torch_imports = re.search(rb"\| +torch\b", terminal.output)
        assert torch_imports is not None
        assert frame < torch_imports.start()
        terminal.type("q")
        terminal.wait_for("The run is live. End it?")
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
def test_a_signal_to_the_dashboard_checkpoints_and_leaves(tmp_path: Path) -> None:
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
def test_a_signal_before_the_first_frame_is_heeded_too(tmp_path: Path) -> None:
    with Terminal("--envs", "2", cwd=tmp_path) as terminal:
        terminal.wait_for(ENTER_SCREEN.decode())
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.leave() == 0
        terminal.assert_restored()
    assert read_checkpoint(list_checkpoints(only_run(tmp_path))[-1])


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_second_signal_to_the_dashboard_leaves_at_once(number: signal.Signals, code: int, tmp_path: Path) -> None:
    with Terminal(*SLOW_STEPS, cwd=tmp_path) as terminal:
        terminal.wait_for("RUNNING")
        terminal.process.send_signal(number)
        terminal.wait_for("checkpointing, then leaving")
        terminal.process.send_signal(number)
        assert terminal.leave() == code
        terminal.assert_restored()
    assert not any(isinstance(event, ev.RunEnded) for event in recorded(only_run(tmp_path)))


# In a terminal that is closed


@pytest.mark.slow
@pytest.mark.parametrize("controlling", [True, False], ids=["with a signal", "without a word"])
def test_a_run_whose_dashboard_loses_its_terminal_is_saved(controlling: bool, tmp_path: Path) -> None:
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
def test_a_terminal_that_says_twice_that_it_is_closed_is_no_second_signal(dashboard: bool, tmp_path: Path) -> None:
    """A shell whose terminal is closed passes the HUP on, and the kernel sends one again when the shell has ended."""
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


# In a terminal that is frozen: it is open, but nobody reads


@pytest.mark.slow
@pytest.mark.parametrize("dashboard", [True, False], ids=["dashboard", "no dashboard"])
def test_a_signal_is_heeded_though_the_terminal_is_frozen(dashboard: bool, tmp_path: Path) -> None:
    options = ("--envs", "2", "--steps", "2", "--rounds", "100000", "--checkpoint-every", "0", "--devices", "cpu:0")
    with Terminal(*options, *(() if dashboard else ("--no-tui",)), cwd=tmp_path) as terminal:
        terminal.wait_for("RUNNING" if dashboard else "round 1/")
        terminal.freeze()
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.process.wait(PATIENCE) == 0
    saved, ended = recorded(only_run(tmp_path))[-2:]
    assert isinstance(saved, ev.CheckpointSaved)
    assert isinstance(ended, ev.RunEnded)
    assert (saved.origin, ended.outcome) == ("signal", "stopped")
    assert read_checkpoint(list_checkpoints(only_run(tmp_path))[-1])


@pytest.mark.parametrize("controlling", [True, False], ids=["with a signal", "without a word"])
def test_a_replay_whose_terminal_is_closed_ends(controlling: bool, tmp_path: Path) -> None:
    (tmp_path / "events-00001.jsonl").write_bytes(recording(example_run()))
    with Terminal("replay", ".", "--at", "50%", cwd=tmp_path, controlling=controlling) as terminal:
        terminal.wait_for("REPLAY")  # held: nothing more is drawn, so nothing fails to be
        assert terminal.close() == 0


@pytest.mark.slow
@pytest.mark.parametrize("controlling", [True, False], ids=["with a signal", "without a word"])
def test_a_viewer_whose_terminal_is_closed_ends_and_the_run_goes_on(controlling: bool, tmp_path: Path) -> None:
    live = LiveRun(tmp_path).start_paused()
    with Terminal("attach", str(live.run.directory), cwd=tmp_path, controlling=controlling) as terminal:
        terminal.wait_for("PAUSED")
        assert terminal.close() == 0
    live.control.ask(Kind.RESUME, "test")
    assert live.finish().status == "done"


class Engine(EngineThread):
    """One that trains nothing, until it is waited for."""

    waited_for = False

    def join(self) -> None:
        self.waited_for = True


@pytest.mark.parametrize("code", [0, 1])
def test_a_dashboard_that_ends_unasked_has_the_run_saved(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, ended = Engine(resolve(None, tiny(tmp_path)), None), list[int]()
    monkeypatch.setattr(cli, "show", lambda *_: code)
    monkeypatch.setattr(os, "_exit", ended.append)
    with pytest.raises(SystemExit) if code else nullcontext():
        cli._run_dashboard(engine, Look("", "", bell=False))
    assert engine.control.take() == Request(Kind.STOP, "dashboard")
    assert engine.waited_for
    assert ended == [code] * bool(code)


def test_a_dashboard_that_cannot_even_say_why_it_broke_down_has_the_run_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(resolve(None, tiny(tmp_path)), None)

    def fail(*_: object) -> NoReturn:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(cli, "show", fail)
    with pytest.raises(OSError, match="Input/output error"):
        cli._run_dashboard(engine, Look("", "", bell=False))
    assert engine.control.take() == Request(Kind.STOP, "dashboard")
    assert engine.waited_for
