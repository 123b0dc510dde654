"""Policies on held-out episodes: the same for every policy, without learning, continued after an interruption."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import torch

from esper.common.configuration.config import ConfigError, TaskError
from esper.common.domain import HEADS
from esper.common.seeding import decision_uniforms, evaluation_seed, make_generator
from esper.networks.tasks import load_task
from esper.networks.tasks.profile import TaskProfile
from esper.recordings.checkpoints.catalog import list_checkpoints
from esper.recordings.checkpoints.manifest import CheckpointError
from esper.recordings.effects.results import Simulation
from esper.studies.evaluation import held_out as held_out_module
from esper.studies.evaluation.held_out import HeldOutEvaluation
from esper.studies.evaluation.plantings import EpisodePlantings, describe_inexact, paying_of
from esper.studies.evaluation.results import EpisodeResult
from esper.studies.growth.wide_host import choose_width
from esper.studies.simulation.simulator import Simulator
from esper.training.checkpoint.files import read_checkpoint
from esper.training.envs.env import Env
from esper.training.ppo.rewards import rent_cost
from tests.runs import LiveRun


def nothing(*_: object) -> None:
    """Ignore a step."""


@contextmanager
def opened(
    checkpoint: Path, *policies: str, journals: Path | None = None, **options: Any
) -> Generator[HeldOutEvaluation]:
    """Open an evaluation of two episodes; without `journals`, it has no journal of an earlier one."""
    with tempfile.TemporaryDirectory() as empty:
        options = {"episodes": 2, "seed": 0, "devices": ["cpu:0"], "journals": journals or Path(empty)} | options
        held_out = HeldOutEvaluation([checkpoint], policies=policies, **options)
        try:
            yield held_out
        finally:
            held_out.close()


def episodes_of(checkpoint: Path, *policies: str, **options: Any) -> dict[str, list[EpisodeResult]]:
    """Return the episodes of each policy, for the only training seed."""
    with opened(checkpoint, *policies, **options) as held_out:
        return {policy: run.episodes for policy, (run,) in held_out.run(nothing).items()}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The last checkpoint of a short PPO run."""
    live = LiveRun(tmp_path_factory.mktemp("ppo"), policy="ppo", rounds=1, steps=5)
    live.start().finish()
    return list_checkpoints(live.run.directory)[-1]


@pytest.fixture(scope="module")
def played(checkpoint: Path) -> dict[str, list[EpisodeResult]]:
    """Episodes of some policies, in this order."""
    return episodes_of(checkpoint, "ppo", "random", "full", "static")


def test_learned_policy_samples_only_the_op(
    checkpoint: Path, played: dict[str, list[EpisodeResult]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fix_all_but_op(*args: Any) -> torch.Tensor:
        noise_ETH = decision_uniforms(*args)
        noise_ETH[..., 1:] = 0.99
        return noise_ETH

    monkeypatch.setattr("esper.studies.evaluation.episodes.decision_uniforms", fix_all_but_op)
    again = episodes_of(checkpoint, "ppo", "random")
    assert again["ppo"] == played["ppo"]
    assert again["random"] != played["random"]
    uniforms = torch.full((2, 5, len(HEADS)), 0.99)
    monkeypatch.setattr("esper.studies.evaluation.episodes.decision_uniforms", lambda *_: uniforms)
    assert episodes_of(checkpoint, "ppo")["ppo"] != played["ppo"]


@pytest.mark.parametrize("seed", [0, 1])
def test_evaluation_episodes_are_used_by_no_run(seed: int) -> None:
    """The episodes' seed has 63 bits, which no user would choose for a run, and differs for every `--seed`."""
    drawn = evaluation_seed(seed)
    assert drawn > 2**32
    assert drawn == evaluation_seed(seed)
    assert drawn != evaluation_seed(seed + 1)
    first = make_generator(drawn, "host", 0, 0).initial_seed()
    assert first not in {make_generator(run, "host", env, 0).initial_seed() for run in range(3) for env in range(64)}


def test_ppo_acts_from_its_checkpoint_without_learning(
    checkpoint: Path, played: dict[str, list[EpisodeResult]]
) -> None:
    with opened(checkpoint, "ppo", "static") as held_out:
        (agent,) = held_out._agents["ppo"]
        before = {
            name: value.clone() for name, value in agent.state_tensors().items() if not name.startswith("rollout")
        }
        saved = read_checkpoint(checkpoint).tensors
        for name in ("network.lstm.weight_hh_l0", "observations.base.mean", "returns.var"):
            assert torch.equal(before[name], saved[f"agent.{name}"])
        steps: list[tuple[str, int]] = []
        (run,) = held_out.run(lambda policy, envs: steps.append((policy, envs)))["ppo"]
        assert steps == [("ppo", 2)] * 5 + [("static", 2)] * 5
        assert sum(envs for _, envs in steps) == held_out.num_env_steps
        for name, value in agent.state_tensors().items():
            if not name.startswith(("rollout", "hidden")):
                assert torch.equal(value, before[name]), name
    assert played["ppo"] == run.episodes != played["static"]


def test_evaluation_resets_loss_scales_between_policies(tmp_path: Path) -> None:
    live = LiveRun(tmp_path, rounds=1, steps=2, amp="fp16")
    live.start().finish()
    path = list_checkpoints(live.run.directory)[-1]
    alone = episodes_of(path, "static")
    with opened(path, "static") as held_out:
        for env in held_out._pool.envs:
            assert env.scaler
            state = env.scaler.state_dict() | {"scale": 2.0**60}  # every batch overflows at this scale
            env.scaler.load_state_dict(state)
        assert held_out.run(nothing)["static"][0].episodes == alone["static"]


def test_evaluation_uses_the_checkpoint_task_on_new_episodes(
    checkpoint: Path, played: dict[str, list[EpisodeResult]]
) -> None:
    saved = read_checkpoint(checkpoint).config
    with opened(checkpoint, "static", seed=saved.seed) as held_out:
        config = held_out.config
    assert (config.task, config.steps, config.reward_weights) == (saved.task, saved.steps, saved.reward_weights)
    assert config.seed != saved.seed
    one, other = played["static"]
    assert one != other  # hosts are not shared here, although they were in training
    assert episodes_of(checkpoint, "static", seed=1)["static"] != [one, other]


def test_policy_transfers_to_a_task_with_other_slots_and_layouts(checkpoint: Path) -> None:
    with opened(checkpoint, "ppo", "static", task_reference="recall") as held_out:
        assert held_out.config.task == "recall"
        assert held_out.config.training.batch_size == load_task("recall").batch_size
        found = held_out.run(nothing)
    (run,) = found["ppo"]
    assert [episode.broke_down for episode in run.episodes] == [False, False]
    assert {episode.parameter_ratio for episode in found["static"][0].episodes} == {1.0}


def test_refused_evaluation_uses_no_random_seed(tmp_path: Path) -> None:
    live = LiveRun(tmp_path, policy="static", rounds=1, steps=1)
    live.start().finish()
    path, journals = list_checkpoints(live.run.directory)[-1], tmp_path / "journals"
    with (
        pytest.raises(CheckpointError, match="remove ppo from --policies"),
        opened(path, "static", "ppo", journals=journals),
    ):
        pass
    with pytest.raises(ConfigError, match="not a slot"), opened(path, "plan:1:norm@erly", journals=journals):
        pass
    assert not journals.exists()


def test_two_evaluations_at_once_play_other_episodes(checkpoint: Path, tmp_path: Path) -> None:
    seeds: list[int] = []

    def start_another(*_: object) -> None:
        with opened(checkpoint, "full", journals=tmp_path, seed=None, episodes=3) as other:
            seeds.append(other.journal.seed)

    with opened(checkpoint, "static", journals=tmp_path, seed=None) as first:
        first.run(start_another)
        assert set(seeds) == {first.journal.seed + 1}


@pytest.mark.slow
def test_results_do_not_depend_on_the_device_count(checkpoint: Path) -> None:
    policies = ("ppo", "full", "retrained", "wide")
    one, two = (
        episodes_of(checkpoint, *policies, episodes=3, devices=devices) for devices in (["cpu:0"], ["cpu:0", "cpu:1"])
    )
    assert one == two


def test_evaluation_resets_envs_between_policies(checkpoint: Path, played: dict[str, list[EpisodeResult]]) -> None:
    """The previous policy does not influence the results of the next one."""
    assert episodes_of(checkpoint, "static")["static"] == played["static"]


def test_stored_parts_are_not_run_again(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    once = episodes_of(checkpoint, "ppo", "full", journals=tmp_path)

    def fails(*_: object, **__: object) -> None:
        raise AssertionError("an env was trained")

    monkeypatch.setattr(Env, "train_epoch", fails)
    steps: list[int] = []
    with opened(checkpoint, "ppo", "full", journals=tmp_path) as held_out:
        again = held_out.run(lambda _, envs: steps.append(envs))
        assert {policy: run.episodes for policy, (run,) in again.items()} == once
        assert sum(steps) == held_out.num_env_steps
    for path in tmp_path.iterdir():
        key = json.loads(path.read_bytes().splitlines()[0])["key"]
        assert (key["torch"], key["devices"]) == (torch.__version__, ["cpu"])


def mean_return(episodes: Sequence[EpisodeResult]) -> float:
    return sum(episode.net_return for episode in episodes) / len(episodes)


def test_retrained_networks_have_the_seeds_of_ppo(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, planted = held_out_module.run_episodes, list[object]()

    def recorded(*arguments: Any, **options: Any) -> list[EpisodeResult]:
        planted.append(arguments[4] if len(arguments) > 4 else None)
        return run(*arguments, **options)

    monkeypatch.setattr(held_out_module, "run_episodes", recorded)
    found = episodes_of(checkpoint, "retrained", "ppo")
    assert planted == [None, [episode.seeds for episode in found["ppo"]]]
    assert list(found) == ["retrained", "ppo"]


def test_wide_host_has_as_many_parameters_and_pays_rent_for_them(tmp_path: Path) -> None:
    checkpoint = grown_checkpoint(tmp_path)
    found = episodes_of(checkpoint, "ppo", "wide")
    ratio = sum(episode.parameter_ratio for episode in found["ppo"]) / 2
    (first, second) = found["wide"]
    assert first.parameter_ratio == second.parameter_ratio == pytest.approx(ratio, rel=0.1)
    assert not first.seeds
    config = read_checkpoint(checkpoint).config
    assert first.steps == config.steps
    rent = first.steps * rent_cost(first.parameter_ratio, 390, config.reward_weights)
    gain = first.net_return + rent
    assert rent > 0.01
    assert first.validation_score - gain == pytest.approx(0.1, abs=0.1)  # the accuracy at the start: chance


def grown_checkpoint(directory: Path) -> Path:
    """Return a checkpoint of an untrained policy that grows in most of its episodes of 12 steps."""
    live = LiveRun(directory, policy="ppo", rounds=1, steps=12, seed=4)
    live.start().finish()
    return list_checkpoints(live.run.directory)[-1]


def test_plantings_are_left_out_of_reproduced_episodes_and_stored(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first evaluation has no steps of the episodes, the second is interrupted, the fourth has everything."""
    options: dict[str, Any] = {"seed": 4, "journals": tmp_path}
    stored = episodes_of(checkpoint, "ppo", **options)
    simulate = Simulator.simulate

    def interrupted(self: Simulator, *arguments: Any) -> Generator[Simulation]:
        for found in simulate(self, *arguments):
            if found.env == 1 and found.reproduction is None:
                raise KeyboardInterrupt
            yield found

    def measured() -> tuple[list[EpisodePlantings], int]:
        with opened(checkpoint, "ppo", plantings=2, **options) as held_out:
            ((run,),) = held_out.run(nothing).values()
            assert run.episodes == stored["ppo"]
            assert not held_out.journal.is_finished or not held_out.num_planting_steps
            steps = held_out.num_planting_steps
            ((found,),) = held_out.measure_plantings(nothing).values()
            assert held_out.journal.is_finished
            return found, steps

    monkeypatch.setattr(Simulator, "simulate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measured()
    monkeypatch.setattr(Simulator, "simulate", simulate)
    once, left = measured()
    assert 0 < left <= 5 * (1 + len(once[1].effects))  # the first episode was complete
    monkeypatch.setattr(Env, "train_epoch", lambda *_: pytest.fail("an env was trained"))
    assert measured() == (once, 0)
    assert [episode.exact for episode in once] == [True, True]
    assert min(len(episode.effects) for episode in once) >= 1
    assert describe_inexact({"ppo": [once]}) == []
    figures = paying_of({"ppo": [once]})["ppo"]
    assert figures
    assert figures.pays == sum(effect > 0.005 for episode in once for effect in episode.effects)
    approximate = msgspec.structs.replace(once[1], exact=False, reproduction="approximate: loss differs")
    (sentence,) = describe_inexact({"ppo": [[once[0], approximate]]})
    assert sentence.startswith("1 of 2 episodes of ppo were not reproduced exactly")
    assert sentence.endswith("approximate: loss differs")


def test_wide_host_is_refused_for_a_task_without_one(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = load_task("digits_impaired")
    monkeypatch.setattr("esper.networks.tasks.prepare.load_task", lambda _: replace(task, wide_model=None))
    with pytest.raises(ConfigError, match="has no wide_model"), opened(checkpoint, "ppo", "wide"):
        pass


def test_wide_model_that_fails_is_named() -> None:
    task = replace(load_task("digits"), wide_model=lambda factor: [][round(factor)])
    profile = cast("TaskProfile", SimpleNamespace(host_parameters=10))
    with pytest.raises(TaskError, match="wide_model of task digits: IndexError"):
        choose_width(task, profile, cast("Any", None), 1.5)
