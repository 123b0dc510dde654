"""Trained policies act on other tasks, and a run can begin with one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from esper.cli.main import main
from esper.common.configuration.config import Config, PPOConfig
from esper.recordings import events as ev
from esper.recordings.checkpoints.catalog import find_checkpoint
from esper.recordings.checkpoints.manifest import CheckpointError
from esper.training.checkpoint.files import read_checkpoint
from esper.training.engine.agent_factory import build_agent, build_trained
from esper.training.engine.trained_policy import policy_of, read_trained_policy, write_policy_file
from esper.training.policy.loading import PRETRAINED
from esper.training.ppo.agent import PPOAgent
from tests.runs import LiveRun, recorded
from tests.terminals import printed
from tests.training.engine.populations import digits_profile
from tests.training.policy.scripted import PROFILE

OPTIONS: dict[str, Any] = {"task": "digits", "envs": 2, "steps": 3, "rounds": 1, "ppo": PPOConfig(hidden=8)}


def options(**changes: Any) -> dict[str, Any]:
    return OPTIONS | changes


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    live = LiveRun.finished(tmp_path_factory.mktemp("trained"), **OPTIONS)
    return live.run.directory


def test_written_policy_is_read_with_all_that_it_needs(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = read_trained_policy(str(run), run.parent)
    path = tmp_path / "policy.safetensors"
    write_policy_file(policy, path)
    monkeypatch.setattr("esper.training.engine.trained_policy.SHIPPED", path)
    shipped = read_trained_policy(PRETRAINED, tmp_path)
    assert shipped.ppo == policy.ppo
    assert shipped.tensors.keys() == policy.tensors.keys()
    assert all(torch.equal(value, policy.tensors[name]) for name, value in shipped.tensors.items())
    agent = build_trained(shipped, Config(), PROFILE.sites, PROFILE.blueprints)
    for name, value in agent.network.state_dict().items():
        assert torch.equal(value, policy.tensors[f"network.{name}"])


def test_run_begins_with_the_policy_and_learns(run: Path, tmp_path: Path) -> None:
    config = Config(**options(task="digits_impaired", init_policy=str(run), telemetry_dir=str(run.parent)))
    agent = build_agent(config, digits_profile().sites, digits_profile().blueprints)
    assert isinstance(agent, PPOAgent)
    trained = read_trained_policy(str(run), run.parent).tensors
    assert all(torch.equal(value, trained[f"network.{name}"]) for name, value in agent.network.state_dict().items())
    live = LiveRun.finished(tmp_path, **options(task="recall", init_policy=str(run)))
    after = read_checkpoint(find_checkpoint(live.run.directory)).tensors
    assert not torch.equal(after["agent.network.lstm.weight_hh_l0"], trained["network.lstm.weight_hh_l0"])
    assert torch.equal(after["agent.observations.base.mean"], trained["observations.base.mean"])
    assert after["agent.returns.batches"] == live.run.trainer.state.config.rounds  # those of the other task are gone


def test_run_resumes_although_the_policy_that_it_began_with_is_gone(run: Path, tmp_path: Path) -> None:
    policy = shutil.copytree(run, tmp_path / "policy")
    two_rounds = options(rounds=2, init_policy=str(policy))
    whole = LiveRun.finished(tmp_path / "whole", **two_rounds)
    first = LiveRun(tmp_path, **two_rounds).start_paused(4)
    checkpoint = first.stop()
    shutil.rmtree(policy)
    second = LiveRun.finished(tmp_path, resume=checkpoint, **two_rounds)
    found, expected = (read_checkpoint(find_checkpoint(live.run.directory)).tensors for live in (second, whole))
    assert all(torch.equal(value, found[name]) for name, value in expected.items() if "network" in name)


def test_run_of_a_policy_resumes_although_the_policy_is_gone(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    policy = shutil.copytree(run, tmp_path / "telemetry" / "policy-run")
    short = ("--no-tui", "--task", "digits_impaired", "--envs", "2", "--steps", "3", "--devices", "cpu:0")
    assert main([*short, "--rounds", "1", "--policy", "policy-run"]) == 0
    done = next(path for path in policy.parent.iterdir() if path != policy)
    started = next(event for event in recorded(done) if isinstance(event, ev.RunStarted))
    assert started.policy == f"policy-run/{find_checkpoint(policy).name}"
    assert started.config["ppo"]["hidden"] == OPTIONS["ppo"].hidden
    trained = read_trained_policy("policy-run", Path("telemetry")).tensors

    shutil.rmtree(policy)
    monkeypatch.chdir(run)
    assert main(["--no-tui", "--resume", str(done), "--rounds", "2"]) == 0
    tensors = read_checkpoint(find_checkpoint(done)).tensors
    assert all(torch.equal(tensors[f"agent.{name}"], value) for name, value in trained.items())
    assert "round 2/2" in capsys.readouterr().out


def test_every_command_accepts_a_run_as_the_policy(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(run.parent)
    for name in (run.name, str(find_checkpoint(run).relative_to(run.parent))):
        options = ("--policy", name, "--telemetry-dir", ".")
        assert main(["config", *options]) == 0
        assert f'policy = "{find_checkpoint(run)}"' in capsys.readouterr().out
        assert main(["devices", *options]) == 0
    assert main(["config", "--policy", "no/such/run"]) == 2
    assert "'no/such/run' is neither a file nor a run in telemetry" in capsys.readouterr().err
    assert main(["config", "--policy", run.name, "--telemetry-dir", ".", "--plan", "2:cull@mid"]) == 2
    assert "--plan is for --policy plan" in capsys.readouterr().err


def test_shipped_policy_plants_attention_in_a_transformer(tmp_path: Path) -> None:
    live = LiveRun.finished(tmp_path, **options(task="recall", policy=PRETRAINED, steps=15))
    for env in live.state.envs:
        assert env.latest
        assert "self_attention" in [slot.blueprint for slot in env.latest.slots]


def test_policy_without_ppo_is_refused(run: Path, tmp_path: Path) -> None:
    live = LiveRun.finished(tmp_path, **options(policy="static"))
    path = find_checkpoint(live.run.directory)
    with pytest.raises(CheckpointError, match="has no PPO policy"):
        policy_of(read_checkpoint(path), path)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (("--policy", "static", "--init-policy", "{run}"), "--init-policy is for --policy ppo, not --policy static"),
        (("--init-policy", "no-such-run"), "no-such-run"),
        (("--init-policy", "{run}", "--ppo.hidden", "9"), "has a network of width 8; add --ppo.hidden 8"),
    ],
)
def test_wrong_initial_policies_are_refused(
    run: Path, tmp_path: Path, given: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [option.format(run=run) for option in given]
    assert main(["--no-tui", "--task", "digits", "--telemetry-dir", str(tmp_path), *words]) == 2
    error = printed(capsys)[1]
    assert sentence in error
    assert "Traceback" not in error
