"""Invalid requests: exit code 2, one sentence that names the mistake, and no files left behind."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
import zstandard

from esper.cli.main import main
from esper.recordings.checkpoints.catalog import list_checkpoints
from esper.recordings.checkpoints.manifest import STATE_FILE
from esper.training.engine import setup
from tests.factory import example_run
from tests.recordings.files.recordings import recording
from tests.runs import stopped_run
from tests.terminals import assert_refused, printed

WRONG = {
    ("--envs", "0"): "--envs '0' is not valid: it must be a whole number >= 1",
    ("--envs",): "--envs: expected one argument",
    (
        "--seed",
        "9223372036854775808",
    ): "--seed '9223372036854775808' is not valid: it must be a whole number <= 9223372036854775807",
    ("--policy", "heuristics"): "unknown policy 'heuristics'; did you mean heuristic?",
    ("--policy", "x"): "unknown policy 'x'; valid: ppo, pretrained,",
    ("--counterfactual", "no"): "--counterfactual 'no' is not valid; ",
    ("--theme", "nord", "demo"): "the command comes before the options: esper-sanctum demo …",
    ("trian",): "unknown command or argument 'trian'; ",
    ("replya",): "unknown command or argument 'replya'; did you mean replay?",
    ("--config", "none.toml"): "cannot read --config none.toml: No such file or directory",
    ("--envs", "99999999999999999999999"): "--envs '99999999999999999999999' is not valid: it must be a whole number",
    ("--name", " "): "--name is empty; give a text or remove the option",
    ("--name", "last"): "--name last would be ambiguous: commands use this word for other runs; give another name",
    ("--tag", "a", "--tag", ""): "--tag is empty; give a text or remove the option",
    ("--tag", "a b"): "--tag 'a b' has spaces; a tag is one word: --tag a --tag b",
    ("--note", "ü" * 33_000): "--note is too long: the notes have 66,0",
    ("--study", "s"): "--study and --trial belong together; give both or neither",
    ("--trial", "x"): "--trial: invalid int value: 'x'",
    ("--resume", "none"): "'none' is neither a file nor a run in telemetry",
    ("--resume", "."): ". has no checkpoint; give a run directory or one of its checkpoints",
    ("replay",): "FILE_OR_RUN",
    ("replay", "none"): "'none' is neither a file nor a run in telemetry",
    ("replay", "last"): "cannot resolve `last`: telemetry does not exist; give another --telemetry-dir",
    ("--narrate", "foo"): "argument --narrate: invalid choice: 'foo' (choose from ",
    ("--detach", "--envs", "0"): "--envs '0' is not valid: it must be a whole number >= 1",
    ("--detach", "--resume", "none"): "'none' is neither a file nor a run in telemetry",
    ("--plan", "2:norm@late"): "--plan is for --policy plan, not --policy ppo",
    ("--policy", "plan", "--plan", "2:nrm@late"): "did you mean norm?",
    ("--policy", "plan", "--plan", "2:norm@late,tempo=4"): "'4' is not a choice of tempo; valid: 3, 5, 8",
    ("replay", "last", "--speed", "nan"): "--speed nan is not valid",
    ("replay", "last", "--follow", "--no-tui"): "--follow needs the dashboard; remove --no-tui",
    ("replay", "last", "--follow", "--narrate"): "remove --narrate or use `esper-sanctum attach --narrate`",
    ("demo", "--narrate", "everything"): "values of --narrate: summary, all",
    ("demo", "--no-tui", "--theme", "nosuch"): "unknown theme 'nosuch'; valid: sanctum-dark, ",
    ("attach", "--no-tui", "--theme", "nosuch"): "unknown theme 'nosuch'; valid: sanctum-dark, ",
}


@pytest.mark.parametrize(("arguments", "named"), WRONG.items(), ids=[" ".join(words)[:60] for words in WRONG])
def test_invalid_option_is_refused_in_one_sentence(
    arguments: tuple[str, ...],
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    headless = () if arguments[0].startswith(("re", "demo")) else ("--no-tui",)
    try:
        code = main([*arguments, *headless])
    except SystemExit as ended:
        code = ended.code
    assert_refused(code, *printed(capsys), named)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("options", [(), ("--detach",)])
def test_dashboard_without_a_terminal_is_refused(
    options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_refused(main([*options]), *printed(capsys), "the dashboard needs a terminal; add --no-tui to run without it")
    assert list(tmp_path.iterdir()) == []


def test_invalid_file_name_is_refused_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_refused(main(["show", "x" * 300]), *printed(capsys), "File name too long")


TOML = {
    "envs = ": "run.toml is not TOML: ",
    "\xff": "run.toml is not TOML: ",
    "env = 3": "unknown key 'env' in run.toml; did you mean envs?",
    "devices = 'cpu:0'": "devices = 'cpu:0' in run.toml is not valid: it must be a list, not a text",
    "[reward]\nrent = 1": "unknown table 'reward' in run.toml; did you mean reward-weights?",
    "telemetry-dir = ''": "telemetry-dir = '' in run.toml is not valid: it must be a text of length >= 1",
    "ppo = 3": "'ppo' in run.toml must be a table, [ppo]",
    "[ppo]\nclipp = 0.2": "unknown key 'clipp' in [ppo] of run.toml; did you mean clip?",
}


@pytest.mark.parametrize(("text", "named"), TOML.items())
def test_invalid_configuration_file_is_refused(
    text: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.toml").write_bytes(text.encode("latin-1"))
    monkeypatch.chdir(tmp_path)
    assert_refused(main(["--config", "run.toml", "--no-tui"]), *printed(capsys), named)
    assert [path.name for path in tmp_path.iterdir()] == ["run.toml"]


def test_engine_import_error_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "esper.training.engine.setup", None)
    monkeypatch.chdir(tmp_path)
    assert main(["--no-tui", "--telemetry-dir", "runs"]) == 1
    _, errors = printed(capsys)
    assert errors.splitlines()[-1].startswith("esper-sanctum: the engine cannot be loaded (ModuleNotFoundError: ")
    assert list(tmp_path.iterdir()) == []


def test_too_little_memory_is_refused_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def allocate(*_: object, **__: object) -> None:
        torch.empty(2**50)

    monkeypatch.setattr(setup, "EnvPool", allocate)
    monkeypatch.chdir(tmp_path)
    assert main(["--no-tui", "--telemetry-dir", "runs"]) == 1
    _, errors = printed(capsys)
    assert errors.startswith("esper-sanctum: set-up of the run ran out of memory: ")
    assert errors.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


UNSUPPORTED = {
    ("--task", "digit"): "unknown task 'digit'; did you mean",
    ("--task", "zzz"): "unknown task 'zzz'; valid: digits_impaired, digits,",
    ("--devices", "cuda:99"): "--devices cuda:99 not found; this machine has ",
    ("--devices", "mps"): "--devices mps is not supported: hosts train on CUDA devices and CPUs only",
    ("--policy-device", "gpu"): "--policy-device 'gpu' is not a device; use cpu, cuda:0, cuda:1 …",
    ("--policy-device", "cuda:99"): "--policy-device cuda:99 not found; this machine has ",
    ("--slots", "middle"): "'middle'",
    ("--slots", "mid", "mid"): "--slots names 'mid' more than once",
    ("--telemetry-dir", "taken"): "cannot record to taken: File exists",
}


@pytest.mark.parametrize(("arguments", "named"), UNSUPPORTED.items(), ids=map(" ".join, UNSUPPORTED))
def test_unsupported_precision_or_device_is_refused(
    arguments: tuple[str, ...],
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Runs in this process, which has already imported torch."""
    (tmp_path / "taken").write_text("a file where a directory should be")
    monkeypatch.chdir(tmp_path)
    assert_refused(main([*arguments, "--no-tui"]), *printed(capsys), named)
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_cuda_without_a_gpu_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    named = "--devices cuda:0 not found; this machine has no cuda device; use --devices auto"
    assert_refused(main(["--no-tui", "--devices", "cuda:0", "cuda:1"]), *printed(capsys), named)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_unwritable_directory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tmp_path.chmod(0o500)
    monkeypatch.chdir(tmp_path)
    assert_refused(main(["--no-tui"]), *printed(capsys), "cannot record to telemetry: ")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped run with one checkpoint."""
    return stopped_run(tmp_path_factory.mktemp("stopped"))


CHANGED = {
    "host-learning-rate": ("0.06", "0.05, not 0.06"),
    "seed-learning-rate": ("0.3", "0.2, not 0.3"),
    "batch-size": ("64", "128, not 64"),
    "samples-per-epoch": ("512", "256, not 512"),
    "momentum": ("0.8", "0.9, not 0.8"),
    "weight-decay": ("0", "0.0005, not 0.0"),
}


def test_resumed_run_cannot_change_a_setting_of_its_task(stopped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(stopped.rglob("*"))
    for name, (value, named) in CHANGED.items():
        code = main(["--resume", str(stopped), f"--training.{name}", value, "--no-tui"])
        assert_refused(
            code, *printed(capsys), f"was made with --training.{name} {named}; this setting cannot change on resume"
        )
    assert sorted(stopped.rglob("*")) == before


def test_damaged_checkpoint_is_refused(stopped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_directory = tmp_path / "run"
    shutil.copytree(stopped, run_directory)
    damaged = list_checkpoints(run_directory)[-1] / STATE_FILE
    damaged.write_bytes(damaged.read_bytes()[:-30])
    before = {path: path.read_bytes() for path in run_directory.rglob("*") if path.is_file()}
    code = main(["--resume", str(run_directory), "--no-tui"])
    output, errors = printed(capsys)
    assert_refused(code, output, errors, f"{damaged} is damaged")
    assert errors.endswith(f"list intact checkpoints with `esper-sanctum checkpoints {run_directory}`\n")
    assert {path: path.read_bytes() for path in run_directory.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("notes.txt", b"dear diary\n"),
        ("events-00001.jsonl", b'{"event": "something else"}\n' * 60),
        ("picture.png", b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40),
    ],
)
def test_foreign_file_is_refused_as_recording(
    name: str, content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    assert_refused(main(["replay", str(file), "--no-tui"]), *printed(capsys), str(tmp_path / name.removesuffix(".zst")))


@pytest.mark.parametrize("at", [5, 40])
def test_undecodable_packed_recording_is_damaged(at: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "events-00001.jsonl.zst"
    content = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(recording(example_run())))
    content[at] ^= 8
    file.write_bytes(content)
    assert_refused(main(["show", str(file)]), *printed(capsys), f"{file} is damaged and could not be unpacked")


def test_pipe_is_refused_as_recording(capsys: pytest.CaptureFixture[str]) -> None:
    reader, writer = os.pipe()
    os.close(writer)
    pipe = f"/dev/fd/{reader}"
    assert_refused(main(["show", pipe]), *printed(capsys), f"cannot read {pipe}: it is not a regular file")
    os.close(reader)


def test_empty_directory_is_refused_as_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(main(["replay", str(tmp_path), "--no-tui"]), *printed(capsys), str(tmp_path))
