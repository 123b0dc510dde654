"""The `evaluate` command: its text and JSON output, and its errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from esper.cli.main import main
from esper.cli.options import EXIT_FAILED, EXIT_OK, EXIT_USAGE
from esper.envs.env import Env
from tests.runs import LiveRun


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a checkpoint."""
    live = LiveRun(tmp_path_factory.mktemp("trained"), policy="ppo", rounds=1, steps=3)
    live.start().finish()
    return live.run.directory


def evaluate(trained: Path, *options: str) -> int:
    return main(["evaluate", "--checkpoint", str(trained), "--devices", "cpu:0", "--episodes", "2", *options])


def test_evaluate_json_is_the_only_output_on_stdout(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(trained, "--json") == EXIT_OK
    said = capsys.readouterr()
    assert said.err == ""
    found = json.loads(said.out)
    assert [policy["policy"] for policy in found["policies"]] == [
        "ppo", "heuristic", "periodic", "random", "static", "full",
    ]  # fmt: skip
    assert len(found["differences"]) == 9
    assert all([len(run) for run in policy["episodes"]] == [2] for policy in found["policies"])
    assert all(policy["cpu_seconds"] > 0 for policy in found["policies"])


def test_evaluate_without_terminal_prints_plain_lines(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(trained, "--policies", "static", "ppo") == EXIT_OK
    said = capsys.readouterr()
    assert said.err == ""
    caption, *lines = said.out.splitlines()
    assert "2 held-out episodes of 3 steps on digits_impaired" in caption
    assert [line.split("  ")[0] for line in lines] == ["static", "ppo", "ppo − static"]
    assert "\x1b" not in said.out


def test_evaluate_reports_a_failed_step_in_one_sentence(
    trained: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Env, "train_epoch", fails)
    assert evaluate(trained, "--policies", "static") == EXIT_FAILED
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "esper-sanctum: env 00 on cpu:0 ran out of memory\n")


def test_evaluate_same_seed_gives_the_same_episodes(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    for seed in ("3", "3", "4"):
        assert evaluate(trained, "--policies", "random", "--json", "--seed", seed) == EXIT_OK
        said.append(json.loads(capsys.readouterr().out)["policies"][0]["episodes"])
    assert said[0] == said[1] != said[2]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--policies", "heuristc"), "unknown policy 'heuristc': did you mean heuristic?"),
        (("--episodes", "1"), "--episodes 1 is not valid: it must be 2 or more"),
        (("--seed", "-1"), "--seed -1 is not valid: it must be 0 or more"),
        (("--devices", "tpu:0"), "--devices 'tpu:0' is not a device"),
        (("--checkpoint", "nowhere"), "'nowhere' is neither a file nor a run in telemetry"),
    ],
)
def test_evaluate_refuses_invalid_options(
    trained: Path, options: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(trained, *options) == EXIT_USAGE
    said = capsys.readouterr()
    assert said.out == ""
    assert sentence in said.err
    assert len(said.err.splitlines()) == 1


def test_evaluate_requires_a_checkpoint_for_ppo(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["evaluate"])
    assert ended.value.code == EXIT_USAGE
    assert "--checkpoint" in capsys.readouterr().err
