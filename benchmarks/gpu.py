"""Methods of training many small hosts on one device: `python benchmarks/gpu.py [--device cuda:0] [--envs 16 64]`.

    product   the product's method: every env in turn; on a GPU on four streams, with CUDA graphs that are kept
    launched  every kernel launched from Python, on four streams; on a CPU, this is the product's method
    vmap      envs of one topology as one batched network: torch.func.stack_module_state and torch.func.vmap

The benchmark prints milliseconds per epoch of one env, the ratios to `product`, and the fastest method. A method that
the device does not support is reported and left out: a CPU has no CUDA graphs. Only training is timed. The first epoch
is a warm-up. The methods are measured in turns, so that other load on the machine affects all of them.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, grad_and_value, stack_module_state, vmap

from esper.common.configuration.config import Config
from esper.common.domain import Op, Stage
from esper.networks.tasks import load_task
from esper.networks.tasks.data_loading import load_data
from esper.networks.tasks.probe import probe_task
from esper.networks.tasks.profile import TaskProfile
from esper.networks.tasks.splits import TaskData
from esper.networks.tasks.task import Task
from esper.training.envs.env import Env
from esper.training.envs.optimizer import FusedSGD, ModuleOptimizer
from esper.training.lanes.devices import torch_device
from esper.training.lanes.pool import EnvPool
from esper.training.policy.actions import Action

TOPOLOGIES = {"bare": None, "3 × conv_light": "conv_light"}
"""Blueprint of the seeds in all slots; None for bare hosts. Keyed by the label in the output."""

Epoch = Callable[[int], None]
"""Trains every env for one epoch, given the step index."""
Method = Callable[[EnvPool], Epoch]
"""Prepares the envs of a pool, and returns the function that trains them."""


def population(
    task: Task, profile: TaskProfile, data: TaskData, device: str, envs: int, blueprint: str | None
) -> EnvPool:
    """Return float32 envs of one topology: bare hosts, or hosts with a fully blended seed in every slot."""
    task = replace(task, name="benchmark")  # no worker can import a task that is made here: one process trains all envs
    pool = EnvPool(task, profile, data, [device], Config(envs=envs, amp="off"))
    pool.reset(0)
    for env in pool.envs if blueprint else []:
        for index, slot in enumerate(env.network.slots):
            env.apply_action(Action(Op.GERMINATE, index, blueprint=profile.blueprints.index(str(blueprint))), 0)
            while slot.stage is not Stage.PROBATIONARY:
                slot.grad_norm = 1.0
                if slot.can_advance:
                    slot.advance()
                slot.tick()
    return pool


def one_by_one(pool: EnvPool) -> Epoch:
    """Train every env in turn, as the product does; with CUDA graphs unless the task forbids them."""

    def epoch(step: int) -> None:
        pool.lanes[0].submit(pool.envs, lambda env: [env.train_epoch(step)])()

    return epoch


class Batched:
    """Envs of one topology, trained as one network whose tensors have a leading dimension E.

    Every parameter, momentum, gradient norm and running statistic has one row per env. The optimizer is Nesterov SGD;
    as in the product, the gradients of the host and of each slot are clipped separately, for each env. All envs use the
    alphas of the first env.

    Args:
        envs: Envs of the same topology.
    """

    def __init__(self, envs: Sequence[Env]) -> None:
        self._envs = envs
        first = envs[0]
        self._network, self._alphas = first.network, first.network.alphas()
        for env in envs:
            env.network.train()
        parameters, self.buffers = stack_module_state([env.network for env in envs])
        # The envs are in channels_last, which batch norm on a GPU does not support under vmap.
        self.parameters = {name: value.detach().contiguous() for name, value in parameters.items()}
        self.momenta = {name: torch.zeros_like(value) for name, value in self.parameters.items()}
        names = {parameter: name for name, parameter in first.network.named_parameters()}
        self._owners = [
            ([names[parameter] for parameter in owner.parameters], owner) for owner in first.active_optimizers()
        ]
        self._gradients = vmap(grad_and_value(self._loss), randomness="error")

    def _loss(self, parameters: dict[str, Tensor], buffers: dict[str, Tensor], x_BCHW: Tensor, y_B: Tensor) -> Tensor:
        logits_BK = functional_call(self._network, (parameters, buffers), (x_BCHW, self._alphas))
        return F.cross_entropy(logits_BK, y_B)

    def train(self, step: int) -> Tensor:
        """Train every env for one epoch with its own data order.

        Args:
            step: Step index, which determines the data order.

        Returns:
            Gradient norms before clipping [M, O, E], for M batches and O owners (the host and each slot).
        """
        size = self._envs[0].task.batch_size
        images, labels = zip(*(env.epoch_data(step) for env in self._envs), strict=True)
        x_ENCHW, y_EN = torch.stack(images).contiguous(), torch.stack(labels)
        batches = zip(x_ENCHW.split(size, dim=1), y_EN.split(size, dim=1), strict=True)
        return torch.stack([self._train_batch(x_EBCHW, y_EB) for x_EBCHW, y_EB in batches])

    def _train_batch(self, x_EBCHW: Tensor, y_EB: Tensor) -> Tensor:
        gradients, _ = self._gradients(self.parameters, self.buffers, x_EBCHW, y_EB)
        with torch.no_grad():
            return torch.stack([self._optimize(gradients, *owner) for owner in self._owners])

    def _optimize(self, gradients: dict[str, Tensor], names: list[str], owner: ModuleOptimizer) -> Tensor:
        """Update the parameters of one owner in every env, and return its gradient norms [E] before clipping."""
        assert isinstance(owner, FusedSGD)
        norms = [torch.linalg.vector_norm(gradients[name].flatten(1), dim=1) for name in names]
        norm_E = torch.linalg.vector_norm(torch.stack(norms), dim=0)
        divisor_E = (norm_E / owner.clip).clamp(min=1.0).float()
        for name in names:
            parameter, momentum = self.parameters[name], self.momenta[name]
            gradient = gradients[name] / divisor_E.view(-1, *[1] * (parameter.dim() - 1))
            gradient = gradient.add(parameter, alpha=owner.spec.weight_decay)
            momentum.mul_(owner.spec.momentum).add_(gradient)
            parameter.sub_(gradient.add(momentum, alpha=owner.spec.momentum), alpha=owner.learning_rate)
        return norm_E


def batched(pool: EnvPool) -> Epoch:
    """Train all envs at once."""
    network = Batched(pool.envs)
    device = pool.lanes[0].device

    def epoch(step: int) -> None:
        network.train(step)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return epoch


def warm_up(methods: dict[str, Method], pools: dict[str, EnvPool]) -> dict[str, Epoch]:
    """Train one epoch with each method, and return those that PyTorch supports here; print the others."""
    epochs: dict[str, Epoch] = {}
    for name, method in methods.items():
        try:
            epoch = method(pools[name])
            epoch(0)
        except RuntimeError as error:
            print(f"{name} is not supported here: {str(error).splitlines()[0]}")
        else:
            epochs[name] = epoch
    return epochs


def measure(epochs: dict[str, Epoch], envs: int, repeats: int) -> dict[str, float]:
    """Return the median time per epoch of one env in milliseconds, keyed by method."""
    times_ms: dict[str, list[float]] = {name: [] for name in epochs}
    for step in range(1, 1 + repeats):
        for name, epoch in epochs.items():
            start = time.perf_counter()
            epoch(step)
            times_ms[name].append((time.perf_counter() - start) * 1000 / envs)
    return {name: statistics.median(times) for name, times in times_ms.items()}


def main() -> None:
    """Measure every method for every number of envs and topology, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu:0")
    parser.add_argument("--envs", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--task", default="synthetic")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    on_gpu = torch_device(options.device).type == "cuda"
    methods: dict[str, Method] = {"product": one_by_one, "vmap": batched}
    if on_gpu:
        methods |= {"launched": one_by_one}
    task = load_task(options.task)
    data = load_data(task, None)
    profile = probe_task(task, data)
    device_name = torch.cuda.get_device_name(options.device) if on_gpu else "this CPU, one core"
    print(f"{options.task} on {device_name}: milliseconds per epoch of one env (speed relative to product)")
    print(f"{'envs':>5} {'topology':16}" + "".join(f"{method:>22}" for method in methods))
    speedups: dict[str, list[float]] = {method: [] for method in methods}
    for envs in options.envs:
        for topology, blueprint in TOPOLOGIES.items():
            pools = {
                method: population(
                    task if method == "product" else replace(task, cuda_graphs="off"),
                    profile,
                    data,
                    options.device,
                    envs,
                    blueprint,
                )
                for method in methods
            }
            times_ms = measure(warm_up(methods, pools), envs, options.repeats)
            for pool in pools.values():
                pool.close()
            for method, milliseconds in times_ms.items():
                speedups[method].append(times_ms["product"] / milliseconds)
            cells = "".join(
                f"{times_ms[method]:12.3f} ({speedups[method][-1]:5.2f} ×)" if method in times_ms else f"{'—':>22}"
                for method in methods
            )
            print(f"{envs:5} {topology:16}{cells}", flush=True)
    means = {method: statistics.geometric_mean(ratios) for method, ratios in speedups.items() if ratios}
    fastest = max(means, key=lambda method: means[method])
    print(f"Fastest on {device_name}: {fastest}, {means[fastest]:.2f} times as fast as product (geometric mean).")
    if not on_gpu:
        print("Not measured, because it needs a GPU: CUDA graphs, and streams in parallel.")


if __name__ == "__main__":
    main()
