"""`grow` and `harvest` through the real command line, and `esper.grow`."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import esper
from esper.cli.main import main
from esper.cli.options import EXIT_FAILED, EXIT_OK, EXIT_USAGE
from esper.control import Request, RequestKind, RequestQueue
from esper.harvest import grown as grown_module
from esper.harvest.structure import STRUCTURE_FILE, WEIGHTS_FILE, read_structure
from esper.recording.run_lock import is_live
from esper.telemetry import events as ev
from tests.runs import LiveRun, computed, only, recorded

ROWS = r"^(grown|host alone(?: \(same architecture\))?|same architecture from scratch) +(\S+%)"
"""Rows of the table of a comparison: name and score."""
SHORT = ("--no-tui", "--task", "digits", "--devices", "cpu:0", "--training.samples-per-epoch", "128")


@pytest.fixture(autouse=True)
def no_export(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the program out: exporting takes ten seconds, and tests/harvest has its tests."""
    monkeypatch.setattr(grown_module, "export_program", lambda *_: "not tried")


def grow(directory: Path, *options: str) -> int:
    return main(["grow", *SHORT, "--envs", "2", "--telemetry-dir", str(directory), *options])


def test_grow_writes_the_best_network_of_the_round(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert grow(tmp_path, "--steps", "8", "--patience", "8") == EXIT_OK
    run = only(tmp_path)
    structure = read_structure(run / "grown")
    steps = [event for event in recorded(run) if isinstance(event, ev.EnvStepped)]
    best = max(steps, key=lambda step: step.score)
    assert structure.provenance.step == best.step
    assert structure.validation_score == pytest.approx(best.score, abs=1e-5)
    assert not any(isinstance(event, ev.PolicyUpdated) for event in recorded(run))
    output = capsys.readouterr().out
    assert "a step takes about" in output
    assert f"written to {run / 'grown'}" in output
    assert f"{structure.test_score:.1%} on the test split" in output


@pytest.mark.parametrize("task", ["digits_family", "{file}:family", "digits_family+{file}:family"])
def test_grow_refuses_a_family_and_advises_a_task_that_grows(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    own = "import dataclasses\nimport esper\nfrom esper.tasks.builtin.digits import DIGITS_TASK\n"
    own += "family = esper.Family('pair', [dataclasses.replace(DIGITS_TASK, name='a')])\n"
    (tmp_path / "own_family_of_one.py").write_text(own)
    grown = ("--steps", "1", "--policy", "static")
    assert grow(tmp_path, "--task", task.format(file=tmp_path / "own_family_of_one.py"), *grown) == EXIT_USAGE
    error = capsys.readouterr().err
    assert "is a family of tasks, and a network grows for one task; for its structure " in error
    (tmp_path / "own_advised.py").write_text(error.partition("a file that contains: ")[2])
    assert grow(tmp_path, "--task", str(tmp_path / "own_advised.py"), *grown) == EXIT_OK
    for name in ("own_family_of_one", "own_advised"):
        sys.modules.pop(name, None)


def test_grow_refuses_a_mixture_and_advises_a_built_in_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert grow(tmp_path, "--task", "digits_family+recall") == EXIT_USAGE
    assert "a network grows for one task; use --task recall" in capsys.readouterr().err


def test_growth_ends_when_nothing_improves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--training.host-learning-rate", "1e-9", "--training.seed-learning-rate", "1e-9", "--policy", "static")
    assert grow(tmp_path, "--steps", "12", "--patience", "3", *options) == EXIT_OK
    stepped = [event for event in recorded(only(tmp_path)) if isinstance(event, ev.EnvStepped)]
    best = max(stepped, key=lambda step: step.score)
    assert max(event.step for event in stepped) == best.step + 3 < 12
    assert "no network has become better for 3 steps" in capsys.readouterr().out


def test_comparison_trains_as_many_epochs_from_the_same_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert grow(tmp_path, "--steps", "3", "--patience", "3", "--policy", "static", "--compare") == EXIT_OK
    score = f"{read_structure(only(tmp_path) / 'grown').test_score:.1%}"
    output = capsys.readouterr().out
    assert "no seed was grown, so the grown architecture is the host alone, which is trained once" in output
    assert re.findall(ROWS, output, re.M) == [("grown", score), ("host alone (same architecture)", score)]


def test_comparison_trains_host_and_grown_architecture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert grow(tmp_path, "--steps", "4", "--patience", "4", "--policy", "full", "--compare") == EXIT_OK
    assert read_structure(only(tmp_path) / "grown").seeds
    rows = re.findall(ROWS, capsys.readouterr().out, re.M)
    assert [name for name, _ in rows] == ["grown", "host alone", "same architecture from scratch"]


def put_requests(monkeypatch: pytest.MonkeyPatch, *requests: Request | None) -> None:
    """Give the engine these answers to its first questions for a request, and none to the later ones."""
    left = iter(requests)
    monkeypatch.setattr(RequestQueue, "get", lambda *_, **__: next(left, None))


def test_growth_that_is_stopped_is_written_but_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put_requests(monkeypatch, None, Request(RequestKind.STOP, "signal"))
    assert grow(tmp_path, "--steps", "3", "--compare") == EXIT_OK
    assert max(event.step for event in recorded(only(tmp_path)) if isinstance(event, ev.EnvStepped)) == 2
    assert read_structure(only(tmp_path) / "grown").provenance.step <= 2
    assert "host alone" not in capsys.readouterr().out


def test_requests_are_answered_while_the_comparison_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pause, stop = Request(RequestKind.PAUSE, "keyboard"), Request(RequestKind.STOP, "signal")
    put_requests(monkeypatch, None, None, pause, None, stop)
    assert grow(tmp_path, "--steps", "2", "--compare") == EXIT_OK
    found = [event for event in recorded(only(tmp_path)) if isinstance(event, ev.ControlRequested)]
    assert [(event.kind, bool(event.ignored)) for event in found] == [("pause", True), ("stop", False)]


def test_score_that_fails_on_the_test_split_ends_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> float:
        raise ValueError("no such class: 11")

    monkeypatch.setattr(grown_module, "measure_score", fail)
    assert grow(tmp_path, "--steps", "1") == EXIT_FAILED
    error = capsys.readouterr().err
    assert "the test of the network failed: ValueError: no such class: 11 (traceback in " in error
    assert f"esper-sanctum harvest {only(tmp_path)} --to DIR" in error
    assert "Traceback" not in error


def test_trained_policy_grows_and_does_not_learn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained = tmp_path / "trained"
    train = [*SHORT, "--envs", "2", "--steps", "4", "--rounds", "1", "--telemetry-dir", str(trained)]
    assert main(train) == EXIT_OK
    assert grow(tmp_path / "grown", "--steps", "4", "--policy", str(only(trained))) == EXIT_OK
    run = only(tmp_path / "grown")
    assert not any(isinstance(event, ev.PolicyUpdated) for event in recorded(run))
    other = ("--task", "recall", "--steps", "4", "--policy", str(only(trained)))  # another layout, other blueprints
    assert grow(tmp_path / "other", *other) == EXIT_OK
    assert grow(tmp_path / "other", "--policy", str(run)) == EXIT_USAGE
    assert "has no PPO policy" in capsys.readouterr().err


def test_policy_file_of_the_user_grows(tmp_path: Path) -> None:
    policy = tmp_path / "own_static.py"
    policy.write_text(
        "from esper.policy.baselines import StaticAgent\n\n\ndef policy(**_):\n    return StaticAgent()\n"
    )
    assert grow(tmp_path / "runs", "--steps", "1", "--policy", str(policy)) == EXIT_OK
    assert read_structure(only(tmp_path / "runs") / "grown").seeds == []


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--policy", "ppo"), "--policy ppo is not trained yet"),
        (("--rounds", "2"), "grow has one round"),
        (("--patience", "0"), "--patience 0 is not valid: it must be 1 or more"),
        (("--policy", "heurstic"), "did you mean heuristic?"),
        (("--to", "{full}"), "is not empty; choose another directory with --to"),
        (("--to", "/proc/net-of-a-user"), "cannot write to /proc/net-of-a-user: No such file or directory; choose"),
        (("--to", "{full}/a/net"), "/full/a/net: Not a directory; choose another directory with --to"),
        (("--patiense", "3"), "unknown option --patiense"),
    ],
)
def test_wrong_options_are_refused_before_anything_trains(
    options: tuple[str, ...], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "a").touch()
    try:
        code = grow(tmp_path / "runs", *(option.format(full=full) for option in options))
    except SystemExit as error:
        code = error.code
    assert code == EXIT_USAGE
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_harvest_takes_the_best_env_or_the_one_that_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = [*SHORT, "--envs", "3", "--steps", "6", "--rounds", "1", "--policy", "full"]
    assert main([*train, "--telemetry-dir", str(tmp_path / "runs")]) == EXIT_OK
    run = only(tmp_path / "runs")
    last = [event for event in recorded(run) if isinstance(event, ev.EnvStepped)][-3:]
    best = max(last, key=lambda event: event.score).env
    assert main(["harvest", str(run), "--to", str(tmp_path / "best")]) == EXIT_OK
    assert read_structure(tmp_path / "best").provenance.env == best
    other = (best + 1) % 3
    capsys.readouterr()
    assert main(["harvest", str(run), "--env", str(other), "--to", str(tmp_path / "other")]) == EXIT_OK
    structure = read_structure(tmp_path / "other")
    assert structure.provenance.env == other
    assert f"env {other} of {run.name}" in capsys.readouterr().out
    assert main(["harvest", str(run), "--env", "3", "--to", str(tmp_path / "none")]) == EXIT_USAGE
    assert "has the envs 0 to 2" in capsys.readouterr().err
    assert main(["harvest", str(run), "--to", str(tmp_path / "best")]) == EXIT_USAGE
    assert "is not empty" in capsys.readouterr().err


def test_harvest_with_another_task_names_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = [*SHORT, "--envs", "1", "--steps", "1", "--rounds", "1", "--policy", "static"]
    assert main([*train, "--telemetry-dir", str(tmp_path / "runs")]) == EXIT_OK
    harvest = ["harvest", str(only(tmp_path / "runs")), "--to", str(tmp_path / "net")]
    for other in ("mnist1d", "digits_family"):
        assert main([*harvest, "--task", other]) == EXIT_USAGE
        assert f"the checkpoint was made with the task digits, not {other}" in capsys.readouterr().err


def test_harvest_of_a_live_run_changes_nothing_in_it(tmp_path: Path) -> None:
    options: dict[str, Any] = {"task": "digits", "envs": 2, "steps": 3, "rounds": 2, "policy": "full"}
    alone = LiveRun(tmp_path / "alone", **options)
    alone.start().finish()
    live = LiveRun(tmp_path / "live", interactive=True, **options).start_paused(5)
    assert is_live(live.run.directory)

    assert main(["harvest", str(live.run.directory), "--to", str(tmp_path / "network")]) == EXIT_OK

    live.control.put(RequestKind.RESUME, "test")
    assert live.finish().status == "done"
    assert computed(recorded(live.run.directory)) == computed(recorded(alone.run.directory))


def test_grow_from_python_returns_a_network_that_trains(tmp_path: Path) -> None:
    grown = esper.grow(
        "digits", envs=2, steps=3, telemetry_dir=str(tmp_path), training={"samples_per_epoch": 128}, devices=("cpu:0",)
    )
    grown.save(tmp_path / "network")
    assert {path.name for path in (tmp_path / "network").iterdir()} >= {WEIGHTS_FILE, STRUCTURE_FILE}
    model = esper.load_grown(tmp_path / "network", "digits")
    assert torch.equal(model.eval()(grown.sample), grown.model.eval()(grown.sample))
    with pytest.raises(esper.ConfigError, match=r"esper\.grow"):
        esper.grow("digits", stepps=3)
