"""Optimizers with the interface of `torch.optim.Optimizer`: their state between epochs, their groups, and refusals."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import esper
from esper.common.configuration.config import TaskError
from esper.common.domain import Stage
from esper.networks.tasks.task import Task
from esper.training.envs.env import Env
from esper.training.envs.env_state import env_state_tensors, export_states, load_lifecycle, load_tensor_states
from esper.training.envs.optimizer import ModuleOptimizer
from esper.training.envs.task_optimizer import check_groups, join_optimizers, make_optimizer
from tests.training.engine.populations import population
from tests.training.envs.test_env import GERMINATE, epoch, until

OWN = {
    "SGD": esper.Optimizer(torch.optim.SGD, lr=0.05, momentum=0.9),
    "RMSprop": esper.Optimizer(torch.optim.RMSprop, lr=1e-3, momentum=0.9),
    "NAdam": esper.Optimizer(torch.optim.NAdam, lr=1e-3),
    "Adagrad": esper.Optimizer(torch.optim.Adagrad, lr=1e-2),
    "Adafactor": esper.Optimizer(torch.optim.Adafactor, lr=1e-2),
    "groups": esper.Optimizer(torch.optim.AdamW, lr=1e-3, groups=[esper.no_decay]),
    "function": esper.Optimizer(lambda named, lr: torch.optim.Adam([p for _, p in named], lr=lr), lr=1e-3),
    "Muon and the rest": esper.Optimizer(lambda named: MuonAndRest(named)),  # noqa: PLW0108 (a function, not a class)
}
LIBRARIES: dict[str, tuple[str, dict[str, Any]]] = {
    "schedulefree": ("AdamWScheduleFree", {"lr": 1e-3}),
    "pytorch_optimizer": ("Lion", {"lr": 1e-3}),
}


class MuonAndRest(torch.optim.Optimizer):
    """Muon for matrices, and Adam for everything else: Muon refuses other parameters."""

    def __init__(self, named: list[tuple[str, nn.Parameter]]) -> None:
        matrices = [parameter for _, parameter in named if parameter.ndim == 2]
        rest = [parameter for _, parameter in named if parameter.ndim != 2]
        self.parts = [torch.optim.Muon(matrices, lr=1e-3)] if matrices else list[torch.optim.Optimizer]()
        self.parts += [torch.optim.Adam(rest, lr=1e-3)] if rest else []
        super().__init__([parameter for _, parameter in named], {"lr": 1e-3})
        self.param_groups = [group for part in self.parts for group in part.param_groups]
        for part in self.parts:
            part.state = self.state

    def step(self, closure: Any = None) -> Any:
        for part in self.parts:
            part.step()


def trained_by(spec: esper.Optimizer, **changes: Any) -> Callable[[Task], Task]:
    """Return a change of a task: its host and its seeds are trained by an optimizer."""
    return lambda task: replace(task, optimizer=spec, seed_optimizer=spec, **changes)


def of_library(name: str) -> esper.Optimizer:
    kind, options = LIBRARIES[name]
    pytest.importorskip(name)
    return esper.Optimizer(getattr(import_module(name), kind), **options)


def copied(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in state.items()}


@pytest.mark.parametrize("name", [*OWN, *LIBRARIES])
def test_state_goes_from_env_to_env(name: str) -> None:
    """An env that receives the state of another one, as a worker does, trains on with the same bits."""
    spec = OWN[name] if name in OWN else of_library(name)
    ends: list[dict[str, Tensor]] = []
    for moves in (False, True):
        with population(envs=2, task=trained_by(spec)) as pool:
            pool.reset(0)
            env, other = pool.envs
            epoch(env, 0, GERMINATE)
            epoch(env, 1)
            if moves:
                (state,) = export_states([env])
                state = copy.deepcopy(state)
                epoch(other, 0)  # its own state must not stay
                load_lifecycle(other, state)
                load_tensor_states([other], [state])
                other.key = env.key
                env = other
            for step in (2, 3):
                epoch(env, step)
            ends.append(copied(env_state_tensors(env)))
    assert ends[0].keys() == ends[1].keys()
    assert [key for key in ends[0] if not torch.equal(ends[0][key], ends[1][key])] == []
    assert any(key.startswith("trained.slot1") for key in ends[0])


@pytest.mark.parametrize("name", ["SGD", "groups"])
def test_static_run_equals_a_plain_loop(name: str) -> None:
    """An own optimizer, a cosine with warm-up by batch, and clipping, as a user would write them."""
    steps, spec = 3, OWN[name]
    cosine = esper.cosine(warmup=0.2)
    with population(task=trained_by(spec, schedule=cosine, clip=0.5), steps=steps, amp="off") as pool:
        pool.reset(0)
        (env,) = pool.envs
        host = copy.deepcopy(env.network.host)
        matrices = [p for p in host.parameters() if p.ndim > 1]
        rest = [p for p in host.parameters() if p.ndim < 2]
        optimizer: torch.optim.Optimizer = (
            torch.optim.AdamW([{"params": matrices}, {"params": rest, "weight_decay": 0.0}], lr=1e-3)
            if name == "groups"
            else torch.optim.SGD(host.parameters(), lr=0.05, momentum=0.9)
        )
        total = steps * env.batches_per_epoch
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: cosine(done / total))
        for step in range(steps):
            x, y = env.epoch_data(step)
            host.train()
            for xs, ys in zip(x.split(env.task.batch_size), y.split(env.task.batch_size), strict=True):
                optimizer.zero_grad()
                F.cross_entropy(host(xs), ys).backward()
                nn.utils.clip_grad_norm_(host.parameters(), 0.5)
                optimizer.step()
                scheduler.step()
            epoch(env, step)
            ours = dict(env.network.host.named_parameters())
            for key, parameter in host.named_parameters():
                torch.testing.assert_close(ours[key], parameter, rtol=0, atol=0, msg=f"{key} in step {step}")


def test_new_episode_begins_without_state() -> None:
    with population(task=trained_by(OWN["NAdam"])) as pool:
        pool.reset(0)
        (env,) = pool.envs
        first = copied(env_state_tensors(env))
        epoch(env, 0)
        once = copied(env_state_tensors(env))
        epoch(env, 1)
        env.reset(env.key)
        again = copied(env_state_tensors(env))
        assert all(torch.equal(again[key], value) for key, value in first.items())
        epoch(env, 0)
        assert all(torch.equal(env_state_tensors(env)[key], value) for key, value in once.items())


def small(name: str = "SGD") -> tuple[list[nn.Parameter], ModuleOptimizer]:
    parameters = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))]
    return parameters, make_optimizer(OWN[name], [("a", parameters[0]), ("b", parameters[1])], None)


def step(optimizer: ModuleOptimizer, gradient: float, found_inf: Tensor | None = None) -> None:
    optimizer.begin_epoch()
    for parameter in optimizer.parameters:
        parameter.grad = torch.full_like(parameter, gradient)
    optimizer.step(optimizer.gradients(), torch.tensor(1.0), found_inf)
    optimizer.end_epoch()


def test_step_after_an_overflow_is_skipped() -> None:
    parameters, optimizer = small()
    step(optimizer, torch.inf, torch.ones(()))
    assert torch.equal(parameters[0], torch.ones(3))
    assert optimizer.state["trained"][0].tolist() == [0, 0]
    step(optimizer, 1.0, torch.zeros(()))
    assert parameters[0][0].item() == pytest.approx(0.95)
    assert optimizer.state["trained"][0].tolist() == [1, 1]


def test_parameter_without_a_gradient_keeps_no_state() -> None:
    """A seed with alpha 0 has none."""
    parameters, optimizer = small()
    optimizer.begin_epoch()
    parameters[0].grad = torch.ones(3)
    optimizer.step(optimizer.gradients(), torch.tensor(1.0), None)
    optimizer.end_epoch()
    assert optimizer.state["trained"][0].tolist() == [1, 0]


def test_seed_and_gate_are_clipped_together() -> None:
    parameters = [nn.Parameter(torch.zeros(1)) for _ in range(2)]
    spec = esper.Optimizer(torch.optim.SGD, lr=1.0)
    parts = [make_optimizer(spec, [("x", parameter)], 1.0) for parameter in parameters]
    joined = join_optimizers(spec, parts, 1.0)
    joined.lr_scale = 0.5
    joined.begin_epoch()
    for parameter, gradient in zip(parameters, (3.0, 4.0), strict=True):
        parameter.grad = torch.full((1,), gradient)
    joined.step(joined.gradients(), torch.tensor(5.0), None)
    assert [parameter.item() for parameter in parameters] == pytest.approx([-0.3, -0.4])


class Forgetful(torch.optim.SGD):
    """Returns the wrong groups."""

    def __init__(self, groups: list[dict[str, Any]], lr: float) -> None:
        super().__init__(groups[0]["params"][:1], lr=lr)


class Remembering(torch.optim.SGD):
    """Keeps a list for each parameter."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["past"] = [1]


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (esper.Optimizer(torch.optim.LBFGS), "LBFGS needs a closure, because it computes the loss several times"),
        (esper.Optimizer(torch.optim.SGD, lr=0.1, momentun=0.9), "SGD cannot be built: TypeError"),
        (esper.Optimizer(Forgetful, lr=0.1), "Forgetful leaves out the parameter b; each must be in exactly one"),
        (esper.Optimizer(Remembering, lr=0.1), "Remembering keeps 'past', a list; only numbers and tensors"),
        (esper.Optimizer(lambda _: 3), "returned int, which does not have the interface of torch.optim.Optimizer"),
        (esper.Optimizer(torch.optim.Muon, lr=0.1), "Muon cannot be built: ValueError"),
    ],
)
def test_unusable_optimizer_is_refused_in_one_sentence(spec: esper.Optimizer, problem: str) -> None:
    named = [("a", nn.Parameter(torch.ones(3))), ("b", nn.Parameter(torch.ones(2)))]
    with pytest.raises(TaskError) as refused:
        make_optimizer(spec, named, 1.0)
    assert problem in str(refused.value)


def test_each_parameter_is_in_the_first_group_that_contains_it() -> None:
    named = [(name, nn.Parameter(torch.ones(2, 2))) for name in ("body.weight", "head.weight", "head.scale")]
    groups = [esper.Group("head.w*", lr=0.2), esper.Group("head.*", lr=0.3)]
    spec = esper.Optimizer(torch.optim.SGD, lr=0.1, groups=groups)
    check_groups(spec, named)
    optimizer = make_optimizer(spec, named, None)
    step(optimizer, 1.0)
    assert [parameter[0, 0].item() for _, parameter in named] == pytest.approx([0.9, 0.8, 0.7])
    with pytest.raises(TaskError, match=r"the group 'head\.\*' of the optimizer contains no parameter of the host"):
        check_groups(spec, named[:2])


def test_learning_rate_of_a_context_scales_all_groups() -> None:
    parameters, optimizer = small()
    optimizer.learning_rate, optimizer.lr_scale = 0.1, 0.5  # instead of 0.05 and 1
    step(optimizer, 1.0)
    assert parameters[0][0].item() == pytest.approx(1 - 0.05)


def test_own_optimizer_without_parameters_does_nothing() -> None:
    optimizer = make_optimizer(OWN["SGD"], [], 1.0)
    optimizer.begin_epoch()
    optimizer.step(optimizer.gradients(), torch.tensor(0.0), None)
    optimizer.end_epoch()
    assert optimizer.state == {}


def test_schedule_free_weights_are_validated(monkeypatch: pytest.MonkeyPatch) -> None:
    """`eval()` of such an optimizer gives the averaged weights, which are those that a run keeps."""
    with population(task=trained_by(of_library("schedulefree"))) as pool:
        pool.reset(0)
        (env,) = pool.envs
        modes: list[bool] = []
        validate = Env.validate

        def watch(env: Env, *, last: bool) -> Tensor:
            inner: Any = vars(env.host_optimizer)["_inner"]
            modes.append(inner.param_groups[0]["train_mode"])
            return validate(env, last=last)

        monkeypatch.setattr(Env, "validate", watch)
        epoch(env, 0)
        assert modes == [False]


def test_schedule_of_a_seed_begins_when_it_is_planted() -> None:
    with population(task=trained_by(OWN["SGD"], schedule=lambda fraction: 1 - fraction), steps=6) as pool:
        pool.reset(0)
        (env,) = pool.envs
        epoch(env, 0)
        step = until(env, Stage.TRAINING, 1)
        epoch(env, step)
        host, seed = env.host_optimizer.lr_scale, env.slot_optimizers[1].lr_scale
        batches = env.batches_per_epoch
        last = step * batches + batches - 1
        assert host == pytest.approx(1 - last / (6 * batches))
        assert seed == pytest.approx(1 - (last - batches) / (5 * batches))
