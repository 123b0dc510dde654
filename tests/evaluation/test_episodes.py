"""Held-out episodes: the same for every policy, unused in training, and without learning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from esper.checkpoint.catalog import list_checkpoints
from esper.checkpoint.files import read_checkpoint
from esper.checkpoint.manifest import CheckpointError
from esper.config import Config, PolicyName
from esper.domain import HEADS
from esper.engine.agent_factory import build_agent
from esper.evaluation.episodes import EpisodeResult, HeldOutEvaluation, run_episodes
from esper.lanes.pool import EnvPool
from esper.ppo.rewards import rent_cost
from esper.seeding import decision_uniforms, evaluation_seed, make_generator
from esper.tasks import load_task
from tests.engine.populations import digits, digits_profile
from tests.runs import LiveRun

TASK = load_task("digits_impaired")
SLOTS = ("early", "mid", "late")


def nothing(*_: object) -> None:
    """Ignore a step."""


def played(policy: PolicyName, envs: int, steps: int, seed: int = 5) -> tuple[list[EpisodeResult], EnvPool]:
    config = Config(envs=envs, steps=steps, seed=seed, policy=policy, reward="simplified")
    pool = EnvPool(TASK, digits_profile(), digits(), ["cpu:0"], config)
    try:
        return run_episodes(
            pool, build_agent(config, digits_profile().sites, digits_profile().blueprints), config, nothing
        ), pool
    finally:
        pool.close()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The last checkpoint of a short PPO run."""
    live = LiveRun(tmp_path_factory.mktemp("ppo"), policy="ppo", rounds=1, steps=5)
    live.start().finish()
    return list_checkpoints(live.run.directory)[-1]


@pytest.mark.parametrize("policy", ["random", "heuristic", "ppo"])
def test_episodes_do_not_depend_on_their_number(policy: PolicyName) -> None:
    few, _ = played(policy, envs=2, steps=8)
    more, _ = played(policy, envs=3, steps=8)
    assert more[:2] == few
    assert more[2] not in few


def test_policies_share_hosts_and_data() -> None:
    """The heuristic plants nothing in its first steps, so they equal those of `static`."""
    static, _ = played("static", envs=2, steps=2)
    heuristic, _ = played("heuristic", envs=2, steps=2)
    assert heuristic == static


def test_heuristic_fills_several_slots_in_an_episode() -> None:
    results, pool = played("heuristic", envs=1, steps=25)
    network = pool.envs[0].network
    kept = [slot for slot in network.slots if slot.stage.is_blended]
    assert len(kept) >= 2
    assert results[0].test_accuracy > 0.8
    assert results[0].parameter_ratio == network.parameter_ratio > 1.0


def test_net_return_is_gain_minus_rent_and_op_costs() -> None:
    (result,), pool = played("full", envs=1, steps=3)
    (env,) = pool.envs
    seeds = [slot.parameter_count for slot in env.network.slots]
    host = env.network.host_parameter_count
    weights = Config().reward_weights
    charged = 3 * weights.op + sum(rent_cost(1 + sum(seeds[:count]) / host, host, weights) for count in (1, 2, 3))
    env.reset(0)
    first = env.validate(last=False)[1].item()
    assert result.net_return == pytest.approx(result.validation_accuracy - first - charged)


def test_evaluation_tests_on_the_test_split() -> None:
    (result,), pool = played("static", envs=1, steps=2)
    (env,) = pool.envs
    with torch.no_grad():
        logits = env.network.eval()(env.splits.test[0], env.network.alphas())
    assert result.test_accuracy == pytest.approx((logits.argmax(1) == env.splits.test[1]).float().mean().item())
    assert result.test_accuracy != result.validation_accuracy


def test_final_test_uses_the_alphas_of_the_last_validation() -> None:
    """The policy advances the first seed in the fourth step, so that its alpha is at a third of the ramp."""
    _, pool = played("full", envs=1, steps=4)
    assert pool.envs[0].network.alphas() == [pytest.approx(1 / 3), 0.0, 0.0]


def test_training_never_uses_the_test_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loads = EnvPool.__init__

    def without_test(self: EnvPool, task, profile, splits, *rest) -> None:
        x, y = splits.test
        broken = {"test": (torch.full_like(x, torch.nan), y - 1000)}
        loads(self, task, profile, type(splits)(**{**vars(splits), **broken}), *rest)

    def finals(name: str) -> list[float]:
        live = LiveRun(tmp_path / name, policy="periodic", rounds=1)
        return live.start().finish().finals

    whole = finals("whole")
    monkeypatch.setattr(EnvPool, "__init__", without_test)
    assert finals("broken") == whole


def test_learned_policy_samples_only_the_op(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fix_all_but_op(*args: Any) -> torch.Tensor:
        noise_ETH = decision_uniforms(*args)
        noise_ETH[..., 1:] = 0.99
        return noise_ETH

    def outcomes() -> dict[str, list[list[EpisodeResult]]]:
        held_out = HeldOutEvaluation([checkpoint], policies=["ppo", "random"], episodes=2, seed=0, devices=["cpu:0"])
        try:
            return held_out.run(nothing)
        finally:
            held_out.close()

    once = outcomes()
    monkeypatch.setattr("esper.evaluation.episodes.decision_uniforms", fix_all_but_op)
    again = outcomes()
    assert again["ppo"] == once["ppo"]
    assert again["random"] != once["random"]
    monkeypatch.setattr("esper.evaluation.episodes.decision_uniforms", lambda *_: torch.full((2, 5, len(HEADS)), 0.99))
    assert outcomes()["ppo"] != once["ppo"]


@pytest.mark.parametrize("seed", [0, 1])
def test_evaluation_episodes_are_used_by_no_run(seed: int) -> None:
    """The episodes' seed has 63 bits, which no user would choose for a run, and differs for every `--seed`."""
    drawn = evaluation_seed(seed)
    assert drawn > 2**32
    assert drawn == evaluation_seed(seed)
    assert drawn != evaluation_seed(seed + 1)
    first = make_generator(drawn, "host", 0, 0).initial_seed()
    assert first not in {make_generator(run, "host", env, 0).initial_seed() for run in range(3) for env in range(64)}


def test_ppo_acts_from_its_checkpoint_without_learning(checkpoint: Path) -> None:
    held_out = HeldOutEvaluation([checkpoint], policies=["ppo", "static"], episodes=4, seed=0, devices=["cpu:0"])
    try:
        (agent,) = held_out._agents["ppo"]
        before = {
            name: value.clone() for name, value in agent.state_tensors().items() if not name.startswith("rollout")
        }
        saved = read_checkpoint(checkpoint).tensors
        for name in ("network.lstm.weight_hh_l0", "observations.mean", "returns.var"):
            assert torch.equal(before[name], saved[f"agent.{name}"])
        steps: list[str] = []
        once = held_out.run(steps.append)
        assert steps == ["ppo"] * 5 + ["static"] * 5
        for name, value in agent.state_tensors().items():
            if not name.startswith(("rollout", "hidden")):
                assert torch.equal(value, before[name]), name
        assert held_out.run(nothing) == once
        assert once["ppo"] != once["static"]
    finally:
        held_out.close()


def test_evaluation_resets_loss_scales_between_policies(tmp_path: Path) -> None:
    live = LiveRun(tmp_path, rounds=1, steps=2, amp="fp16")
    live.start().finish()
    path = list_checkpoints(live.run.directory)[-1]
    held_out = HeldOutEvaluation([path], policies=["static"], episodes=2, seed=0, devices=["cpu:0"])
    try:
        once = held_out.run(nothing)
        for env in held_out._pool.envs:
            assert env.scaler
            env.scaler.load_state_dict(
                env.scaler.state_dict() | {"scale": 2.0**60}
            )  # every batch overflows at this scale
        assert held_out.run(nothing) == once
    finally:
        held_out.close()


def test_evaluation_uses_the_checkpoint_task_on_new_episodes(checkpoint: Path) -> None:
    saved = read_checkpoint(checkpoint).config
    held_out = HeldOutEvaluation([checkpoint], policies=["static"], episodes=2, seed=saved.seed, devices=["cpu:0"])
    held_out.close()
    config = held_out.config
    assert (config.task, config.steps, config.reward_weights) == (saved.task, saved.steps, saved.reward_weights)
    assert config.seed != saved.seed
    one, other = held_out_results(checkpoint, seed=0)
    assert one != other  # hosts are not shared here, although they were in training
    assert held_out_results(checkpoint, seed=0) != held_out_results(checkpoint, seed=1)


def held_out_results(checkpoint: Path, seed: int) -> list[EpisodeResult]:
    held_out = HeldOutEvaluation([checkpoint], policies=["static"], episodes=2, seed=seed, devices=["cpu:0"])
    try:
        (episodes,) = held_out.run(nothing)["static"]
        return episodes
    finally:
        held_out.close()


def test_checkpoint_without_ppo_policy_is_refused_at_once(tmp_path: Path) -> None:
    live = LiveRun(tmp_path, policy="static", rounds=1, steps=1)
    live.start().finish()
    path = list_checkpoints(live.run.directory)[-1]
    with pytest.raises(CheckpointError, match="remove ppo from --policies"):
        HeldOutEvaluation([path], policies=["static", "ppo"], episodes=2, seed=0, devices=["cpu:0"])


@pytest.mark.slow
def test_results_do_not_depend_on_the_device_count(checkpoint: Path) -> None:
    found = []
    for devices in (["cpu:0"], ["cpu:0", "cpu:1"]):
        held_out = HeldOutEvaluation([checkpoint], policies=["ppo", "full"], episodes=3, seed=0, devices=devices)
        found.append(held_out.run(nothing))
        held_out.close()
    assert found[0] == found[1]


def test_evaluation_resets_envs_between_policies(checkpoint: Path) -> None:
    """The previous policy does not influence the results of the next one."""
    held_out = HeldOutEvaluation([checkpoint], policies=["full", "static"], episodes=2, seed=0, devices=["cpu:0"])
    alone = held_out_results(checkpoint, seed=0)
    try:
        assert held_out.run(nothing)["static"] == [alone]
    finally:
        held_out.close()
