"""The `evaluate` command: its text and JSON output, and its errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from esper.cli.main import main
from esper.cli.options import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE
from esper.training.envs.env import Env
from tests.runs import LiveRun, pass_interrupts


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a checkpoint."""
    live = LiveRun(tmp_path_factory.mktemp("trained"), policy="ppo", rounds=1, steps=3)
    live.start().finish()
    return live.run.directory


def evaluate(trained: Path, *options: str) -> int:
    """Run the command. Its journals are beside the run, so that parts of earlier calls are not run again."""
    place = ["--checkpoint", str(trained), "--telemetry-dir", str(trained.parent)]
    return main(["evaluate", *place, "--devices", "cpu:0", "--episodes", "2", *options])


def test_evaluate_json_is_the_only_output_on_stdout(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(trained, "--json") == EXIT_OK
    said = capsys.readouterr()
    assert said.err.startswith("esper-sanctum: episodes of random seed 1")
    assert len(said.err.splitlines()) == 1
    found = json.loads(said.out)
    assert [policy["policy"] for policy in found["policies"]] == [
        "ppo", "pretrained", "heuristic", "periodic", "random", "static", "full",
    ]  # fmt: skip
    assert len(found["differences"]) == 11
    assert all([len(run) for run in policy["episodes"]] == [2] for policy in found["policies"])
    assert all(policy["cpu_seconds"] > 0 for policy in found["policies"])


def test_evaluate_prints_plain_lines_of_eighty_columns(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(trained, "--policies", "static", "ppo") == EXIT_OK
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert "2 held-out episodes of 3 steps on digits_impaired" in said.out
    assert [line.split("  ")[0] for line in lines[:3]] == ["policy", "static", "ppo"]
    assert any(line.startswith("ppo − static  ") for line in lines)
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in said.out


def test_evaluate_counts_the_plantings_that_pay_of_trained_policies(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--policies", "ppo", "static", "--plantings", "2", "--seed", "7")
    assert evaluate(trained, *options, "--json") == EXIT_OK
    ppo, static = json.loads(capsys.readouterr().out)["policies"]
    assert (ppo["plantings"]["episodes"], ppo["plantings"]["exact"]) == (2, 2)
    assert "plantings" not in static
    assert evaluate(trained, *options) == EXIT_OK
    lines = capsys.readouterr().out.splitlines()
    row = lines[lines.index("policy  plantings that pay") + 1]
    assert row.startswith(f"ppo     {ppo['plantings']['pays']} of {ppo['plantings']['n']}")
    assert row.endswith("(exact, 2 episodes)")
    assert "A planting pays if its episode loses more than 0.005" in "\n".join(lines)


def test_evaluate_reports_a_failed_step_in_one_sentence(
    trained: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Env, "train_epoch", fails)
    assert evaluate(trained, "--policies", "static", "--seed", "20") == EXIT_FAILED
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.endswith("esper-sanctum: env 00 on cpu:0 ran out of memory\n")


def test_evaluate_same_seed_gives_the_same_episodes(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    for seed in ("3", "3", "4"):
        assert evaluate(trained, "--policies", "random", "--json", "--seed", seed) == EXIT_OK
        said.append(json.loads(capsys.readouterr().out)["policies"][0]["episodes"])
    assert said[0] == said[1] != said[2]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--policies", "heuristc"), "unknown policy 'heuristc'; did you mean heuristic?"),
        (("--policies", "static", "retraned"), "unknown policy 'retraned'; did you mean retrained?"),
        (("--policies", "xyz"), "full, plan, retrained, wide"),
        (("--policies", "plan"), '--policies takes it as "plan:1:conv_light@early 2:depthwise@mid"'),
        (("--policies", "wide"), "--policies wide is made from the networks of PPO: add ppo"),
        (("--figure", "out.jpg"), "--figure out.jpg: '.jpg' is not a format"),
        (("--figure", "nowhere/out.svg"), "--figure nowhere/out.svg: the directory nowhere does not exist"),
        (("--episodes", "1"), "--episodes 1 is not valid: it must be 2 or more"),
        (("--seed", "-1"), "--seed -1 is not valid: it must be 0 or more"),
        (("--plantings", "3"), "--plantings 3 is more than the 2 episodes; raise --episodes, too"),
        (("--plantings", "1", "--policies", "static"), "--plantings is for trained policies; add ppo or pretrained"),
        (("--devices", "tpu:0"), "--devices 'tpu:0' is not a device"),
        (("--checkpoint", "nowhere"), "'nowhere' is neither a file nor a run in "),
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


def test_evaluate_refuses_two_checkpoints_of_one_training_seed(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(trained, "--policies", "ppo", "--checkpoint", str(trained), str(trained)) == EXIT_USAGE
    said = capsys.readouterr()
    assert "was trained with the random seed 0, as " in said.err
    assert said.err.endswith("; give one checkpoint of each training seed\n")
    assert said.out == ""


def test_evaluate_requires_a_checkpoint_for_ppo(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["evaluate"])
    assert ended.value.code == EXIT_USAGE
    assert "--checkpoint" in capsys.readouterr().err


def test_evaluate_takes_a_random_seed_that_no_evaluation_has_used(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def used(*options: str) -> int:
        assert evaluate(trained, "--policies", "static", "--json", "--episodes", "3", *options) == EXIT_OK
        return json.loads(capsys.readouterr().out)["seed"]

    first = used()
    assert used() == first + 1
    assert used("--seed", "5000") == 5000
    assert used() == 5001


def test_interrupted_evaluation_continues_without_repeating_parts(
    trained: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("--policies", "static", "full", "random", "--json")
    assert evaluate(trained, *command, "--seed", "30") == EXIT_OK
    whole = json.loads(capsys.readouterr().out)
    for path in (trained.parent / "evaluations").glob("s*30*"):
        path.unlink()
    train, left = Env.train_epoch, 0

    def interrupted(*arguments: Any, **options: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        return train(*arguments, **options)

    monkeypatch.setattr(Env, "train_epoch", interrupted)
    pass_interrupts(monkeypatch)
    for run in (6 + 5, 6 + 2, 99):  # a policy plays 3 steps of 2 envs; the second policy is lost, then the third
        left = run
        ended = evaluate(trained, *command, "--seed", "30")
        said = capsys.readouterr()
        assert ended == (EXIT_OK if run == 99 else EXIT_INTERRUPTED)
        assert run == 99 or "interrupted; the same command continues" in said.err
    assert left == 99 - 6  # the third policy
    continued = json.loads(said.out)
    for report in (whole, continued):
        for policy in report["policies"]:
            del policy["cpu_seconds"]
    assert continued == whole


def test_evaluate_draws_a_figure(trained: Path, tmp_path: Path) -> None:
    figure = tmp_path / "out.svg"
    assert evaluate(trained, "--policies", "ppo", "static", "--figure", str(figure)) == EXIT_OK
    text = figure.read_text()
    assert "static" in text
    assert "test accuracy" in text
