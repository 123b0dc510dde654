"""Envs of tasks that users bring: dropout, frozen hosts, AdamW, augmentation, metrics, tied weights, data sets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

from esper.common.configuration.config import Config
from esper.common.domain import Op, Stage
from esper.networks.seeds.blueprints import BLUEPRINTS, blueprint
from esper.networks.seeds.lifecycle import GateConfig
from esper.networks.tasks.optimizers import SGD, AdamW
from esper.networks.tasks.probe import probe_task
from esper.networks.tasks.splits import Splits, take
from esper.networks.tasks.task import Task
from esper.training.envs.env_state import env_state_tensors
from esper.training.envs.epoch_result import EpochResult
from esper.training.envs.governor import LastGoodState
from esper.training.envs.hosts import HostFactory
from esper.training.envs.optimizer import FusedAdamW
from esper.training.lanes.pool import EnvPool
from esper.training.policy.actions import Action
from tests.networks.seeds.hosts import grow
from tests.networks.tasks.models import CLASSES, FEATURES, SAMPLES, causal_task, features, task
from tests.training.engine.populations import play


@contextmanager
def pool_of(own: Task, envs: int = 1, lanes: Sequence[str] = ("cpu:0",), **options: Any) -> Iterator[EnvPool]:
    config = msgspec.structs.replace(Config(envs=envs, policy="static"), **options)
    splits = own.data(None)
    pool = EnvPool(own, probe_task(own, (splits,)), (splits,), lanes, config)
    try:
        yield pool
    finally:
        pool.close()


def states(pool: EnvPool) -> list[dict[str, Tensor]]:
    return [{name: value.clone() for name, value in env_state_tensors(env).items()} for env in pool.envs]


def equal(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(value, right[name]) for name, value in left.items())


def test_dropout_does_not_depend_on_the_neighbours() -> None:
    with pool_of(task(), envs=1) as alone, pool_of(task(), envs=3) as together:
        played = [play(pool, 0, 10) for pool in (alone, together)]
        assert played[0][0] == played[1][0]
        assert played[1][1] != played[1][0]
        assert equal(states(alone)[0], states(together)[0])


def test_hosts_of_an_episode_depend_on_host_and_round_only() -> None:
    with pool_of(task(), envs=2) as pool:
        pool.reset(0)
        first = states(pool)
        pool.reset(1)
        second = states(pool)
        torch.manual_seed(99)
        pool.reset(0)
        assert equal(states(pool)[0], first[0])
        assert not equal(first[0], second[0])
        assert not equal(first[0], first[1])


def test_language_model_grows_and_learns() -> None:
    """Tied weights, a tuple as the output of a slot, repeated forward passes, AdamW, tokens as integers."""
    own = causal_task(optimizer=AdamW(3e-3), seed_optimizer=AdamW(3e-3))
    with pool_of(own) as pool:
        (env,) = pool.envs
        assert not env.profile.shares_prefix
        assert isinstance(env.host_optimizer, FusedAdamW)
        (measured,) = play(pool, 0, 14)
        assert measured[-1].train_loss < measured[0].train_loss
        assert any(step.dependences for step in measured)
        assert env.splits.train[0].dtype is torch.int64


def epoch(pool: EnvPool, step: int, action: Action) -> EpochResult:
    (found,) = pool.step([action], step)
    assert found is not None
    for env in pool.envs:
        env.tick()
    return found.measured


def test_frozen_host_trains_its_seeds_only_and_is_stored_once() -> None:
    with pool_of(task(train=False), envs=2) as pool:
        one, other = pool.envs
        assert {id(p) for p in one.network.host.parameters()} == {id(p) for p in other.network.host.parameters()}
        assert not any(name.startswith("network.host.") for name in env_state_tensors(one))
        before = [parameter.clone() for parameter in one.network.host.parameters()]
        played = play(pool, 0, 8)
        assert all(torch.equal(a, b) for a, b in zip(before, one.network.host.parameters(), strict=True))
        assert [step.grad_norm for step in played[0]] == [None] * 8
        assert any(step.slot_grad_norms for step in played[0])
        assert not one.network.train().host.training


def test_frozen_host_without_a_seed_runs_an_epoch_and_is_rolled_back() -> None:
    with pool_of(task(train=False)) as pool:
        pool.reset(0)
        good = LastGoodState(pool.envs[0])
        good.save()
        measured = epoch(pool, 0, Action(Op.WAIT))
        assert good.rollback() == []
        assert measured.grad_norm is None
        assert measured.weights_finite
        assert measured.skipped_batches == 0


def test_frozen_host_with_a_seed_without_parameters_runs_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BLUEPRINTS, "squash", {})

    @blueprint("squash", "BC", causal="always")
    class Squash(nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()

        def forward(self, x: Tensor) -> Tensor:
            return x + 0.1 * x.tanh()

    with pool_of(task(train=False, blueprints=["squash"])) as pool:
        pool.reset(0)
        epoch(pool, 0, Action(Op.GERMINATE))
        assert pool.envs[0].network.slots[0].stage is Stage.TRAINING
        measured = epoch(pool, 1, Action(Op.WAIT))
        assert list(measured.slot_grad_norms.values()) == [0.0]


def test_only_the_named_submodules_are_trained() -> None:
    def normed() -> nn.Module:
        return nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES))

    with pool_of(task(normed, {"a": "2"}, train=["3"])) as pool:
        (env,) = pool.envs
        pool.reset(0)
        host = env.network.host
        before = {name: value.clone() for name, value in host.state_dict().items()}
        measured = epoch(pool, 0, Action(Op.WAIT))
        changed = {name for name, value in host.state_dict().items() if not torch.equal(value, before[name])}
        assert changed == {"3.weight", "3.bias"}
        assert measured.grad_norm is not None


def test_adamw_state_is_part_of_the_env() -> None:
    with pool_of(task(optimizer=AdamW(0.01))) as pool:
        pool.reset(0)
        epoch(pool, 0, Action(Op.WAIT))
        (state,) = states(pool)
        batches = SAMPLES / 16
        assert state["step.host.0"].item() == batches
        assert state["exp_avg.host.0"].any()
        pool.reset(1)
        assert states(pool)[0]["step.host.0"].item() == 0.0


def test_augmentation_is_seeded_and_applied_to_training_batches_only() -> None:
    seen: list[tuple[Tensor, float]] = []

    def augment(x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        noise = torch.rand((), generator=generator, device=x.device)
        seen.append((x, noise.item()))
        return x + noise, y

    with pool_of(task(augment=augment)) as pool:
        pool.reset(0)
        seen.clear()  # the dry run augments a batch too
        epoch(pool, 0, Action(Op.WAIT))
        assert sum(len(x) for x, _ in seen) == SAMPLES
        first = [noise for _, noise in seen]
        seen.clear()
        pool.reset(0)
        epoch(pool, 0, Action(Op.WAIT))
        assert [noise for _, noise in seen] == first
        assert len(set(first)) == len(first)


def test_training_loss_is_that_of_the_augmented_targets() -> None:
    def shuffle_targets(x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return torch.cat((x, x)), torch.cat((y, (y + 1) % CLASSES))

    def squared(output: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output, targets, reduction="none")

    found = []
    for loss in (None, squared):
        with pool_of(task(loss=loss, augment=shuffle_targets)) as pool:
            pool.reset(0)
            found.append(epoch(pool, 0, Action(Op.WAIT)).train_loss)
    assert found[0] == pytest.approx(found[1], rel=1e-6)


class Features(nn.Module):
    """Random features that are not trained, and dropout that is active in evaluation mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.fixed = nn.Parameter(torch.randn(FEATURES, 16), requires_grad=False)
        self.mix = nn.Linear(16, 16)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.mix(torch.relu(x @ self.fixed))
        return self.head(nn.functional.dropout(hidden, 0.5, training=True))


def test_frozen_weights_do_not_depend_on_the_first_env_of_a_process() -> None:
    own = task(Features, {"mix": "mix"})
    profile = probe_task(own, (features(),))
    found = []
    for order in ((0, 3), (3, 0)):
        factory = HostFactory(own, profile, torch.device("cpu"), 0)
        built = {host: factory.build_network(host, GateConfig()) for host in order}
        assert built[0].host.fixed is built[3].host.fixed
        assert not torch.equal(built[0].host.head.weight, built[3].host.head.weight)  # pyright: ignore[reportArgumentType, reportAttributeAccessIssue]
        found.append(built[0].host.fixed)
    assert torch.equal(*found)


def test_first_validation_of_a_network_that_draws_is_repeatable() -> None:
    with pool_of(task(Features, {"mix": "mix"}), envs=2) as pool:
        first = pool.reset(1)
        torch.manual_seed(99)
        assert pool.reset(1) == first
        assert pool.validate(pool.envs) == first


class Recomputed(nn.Module):
    """Computes a block again in the backward pass, in place of keeping its activations."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, 16))
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.block, x, use_reentrant=False))


def test_seed_trains_within_a_recomputed_block() -> None:
    with pool_of(task(Recomputed, {"middle": "block.0"})) as pool:
        (played,) = play(pool, 0, 10)
        assert any(step.slot_grad_norms for step in played)
        assert any(step.dependences for step in played)


def test_metrics_are_measured_on_the_validation_split() -> None:
    def confidence(output: Tensor, _: Tensor) -> Tensor:
        return output.softmax(1).amax(1)

    with pool_of(task(metrics={"confidence": confidence})) as pool:
        (env,) = pool.envs
        pool.reset(0)
        (played,) = play(pool, 0, 10)
        network = env.network.eval()
        with torch.no_grad():
            expected = confidence(network(features().validation[0], network.alphas()), torch.empty(0)).mean().item()
        assert played[-1].metrics == {"confidence": pytest.approx(expected, rel=1e-5)}
        assert played[-1].dependences


def test_loss_of_single_values_is_weighted_by_samples() -> None:
    """A loss that returns one value per sample, and its mean, give the same epoch; the last batch is smaller."""

    def squared(output: Tensor, targets: Tensor) -> Tensor:
        return (output - nn.functional.one_hot(targets, CLASSES)).square().mean(1)

    found = []
    for loss in (squared, lambda output, targets: squared(output, targets).mean()):
        with pool_of(task(loss=loss, batch_size=24)) as pool:
            pool.reset(0)
            found.append(epoch(pool, 0, Action(Op.WAIT)))
    assert found[0].train_loss == pytest.approx(found[1].train_loss, rel=1e-6)
    assert found[0].loss == pytest.approx(found[1].loss, rel=1e-6)


def test_inputs_by_name_and_data_sets_are_read() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(FEATURES, 8)
            self.head = nn.Linear(8, CLASSES)

        def forward(self, *, values: Tensor, scale: Tensor) -> Tensor:
            return self.head(self.body(values * scale[:, None]).relu())

    def data(_: object) -> Splits:
        parts = vars(features())
        return Splits(**{name: ({"values": x, "scale": torch.ones(len(x))}, y) for name, (x, y) in parts.items()})

    with pool_of(task(Named, {"a": "body"}, data)) as pool:
        (played,) = play(pool, 0, 8)
        assert played[-1].train_loss < played[0].train_loss
    sets: dict[str, Any] = {name: TensorDataset(*split) for name, split in vars(features()).items()}
    read = take(Splits(**sets).train, torch.arange(SAMPLES))
    assert all(torch.equal(a, b) for a, b in zip(read, features().train, strict=True))


def test_bfloat16_autocast_does_not_cast_integers() -> None:
    with pool_of(causal_task(), amp="bf16") as pool:
        (played,) = play(pool, 0, 4)
        assert pool.envs[0].splits.train[0].dtype is torch.int64
        assert all(step.weights_finite for step in played)


def test_two_blended_seeds_of_different_slots_have_their_own_optimizers() -> None:
    with pool_of(task(seed_optimizer=SGD(0.1))) as pool:
        (env,) = pool.envs
        pool.reset(0)
        epoch(pool, 0, Action(Op.GERMINATE, slot=0, blueprint=2))
        epoch(pool, 1, Action(Op.GERMINATE, slot=1, blueprint=1))
        assert [slot.stage for slot in env.network.slots] == [Stage.TRAINING, Stage.TRAINING]
        measured = epoch(pool, 2, Action(Op.WAIT))
        assert set(measured.slot_grad_norms) == {0, 1}


def test_shapley_values_of_eight_seeds_sum_to_their_gain() -> None:
    """More seeds than are measured exactly: estimated from random orders."""

    def deep() -> nn.Module:
        layers: list[nn.Module] = []
        for index in range(8):
            layers += [nn.Linear(FEATURES if index == 0 else 8, 8), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(8, CLASSES))

    slots = {f"slot{index}": str(2 * index + 1) for index in range(8)}
    with pool_of(task(deep, slots), counterfactual="shapley") as pool:
        (env,) = pool.envs
        pool.reset(0)
        for slot in env.network.slots:
            grow(slot, Stage.PROBATIONARY, "mlp")
        env.sync_optimizers()
        values = env.validate(last=True).tolist()
        bare = env.network.eval()(features().validation[0], [0.0] * 8)
        gain = values[1] - (bare.argmax(1) == features().validation[1]).float().mean().item()
        assert len(values) == 2 + 3 * 8
        assert sum(values[2 + 2 * 8 :]) == pytest.approx(gain, abs=1e-6)
