"""How to train many small hosts on one device: `python benchmarks/gpu.py [--device cuda:0] [--envs 16 64]`.

    streams   the product: eager training of one env after another; on a GPU, each env has its own stream
    graphs    a CUDA graph of one minibatch per env, captured again whenever the env's topology changes
    vmap      envs of one topology as one batched network: torch.func.stack_module_state and torch.func.vmap

Prints milliseconds per epoch of one env, the ratios to `streams`, and the fastest candidate. Candidates that the device
does not support are reported and skipped: a CPU has no CUDA graphs. Only training is timed. The first epoch is a warm-
up, and the candidates run in turns, so that other load on the machine affects all of them.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, grad_and_value, stack_module_state, vmap

from esper.config import Config
from esper.domain import Op, Stage
from esper.envs.env import Env
from esper.envs.optimizer import FusedSGD
from esper.lanes.devices import torch_device
from esper.lanes.pool import EnvPool
from esper.policy.actions import Action
from esper.tasks import get_task
from esper.tasks.task import Splits, Task

SLOTS = ("early", "mid", "late")
TOPOLOGIES = {"bare": None, "3 × conv_light": "conv_light"}

Epoch = Callable[[int], None]
"""Function that trains every env for the epoch with this index."""
Way = Callable[[EnvPool], Epoch]


def population(task: Task, splits: Splits, device: str, envs: int, blueprint: str | None) -> EnvPool:
    """Return float32 envs of one topology: bare, or with a fully blended seed of one blueprint in every slot."""
    pool = EnvPool(task, splits, [device], SLOTS, Config(envs=envs, amp="off"))
    pool.reset(0)
    for env in pool.envs if blueprint else []:
        for index, slot in enumerate(env.network.slots):
            env.apply_action(Action(Op.GERMINATE, index, blueprint=task.blueprints.index(str(blueprint))), 0, 0)
            while slot.stage is not Stage.PROBATIONARY:
                slot.grad_norm = 1.0
                if slot.can_advance:
                    slot.advance()
                slot.tick()
    return pool


def streams(pool: EnvPool) -> Epoch:
    """Train as the product does: one env after another, eagerly."""

    def epoch(step: int) -> None:
        pool.lanes[0].submit(pool.envs, lambda env: [env.train_epoch(0, step)])()

    return epoch


class GraphedEnv:
    """An env whose minibatch is a CUDA graph. The graph is valid for the current topology and alphas of the env.

    Args:
        env: Env without pending work.
        stream: CUDA stream for capture and replay.
    """

    def __init__(self, env: Env, stream: torch.cuda.Stream) -> None:
        self._env, self._stream = env, stream
        x_NCHW, y_N = env.epoch_data(0, 0)
        size = env.task.batch_size
        self._x_BCHW, self._y_B = x_NCHW[:size].clone(), y_N[:size].clone()
        owners = env.active_optimizers()
        changed = [*env.network.parameters(), *env.network.buffers(), *(m for owner in owners for m in owner.momenta)]
        before = [tensor.detach().clone() for tensor in changed]
        env.network.train()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):  # a warm-up outside the graph: libraries choose algorithms and allocate workspaces
                env.train_batch(owners, self._x_BCHW, self._y_B)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=stream):
            env.train_batch(owners, self._x_BCHW, self._y_B)
        torch.cuda.synchronize()
        with torch.no_grad():
            for tensor, value in zip(changed, before, strict=True):
                tensor.copy_(value)
        torch.cuda.synchronize()

    def train(self, step: int) -> None:
        """Train one epoch. An incomplete last batch is dropped, because a graph has a fixed shape."""
        size = self._env.task.batch_size
        with torch.cuda.stream(self._stream):
            x_NCHW, y_N = self._env.epoch_data(0, step)
            for x_BCHW, y_B in zip(x_NCHW.split(size), y_N.split(size), strict=True):
                if len(y_B) == size:
                    self._x_BCHW.copy_(x_BCHW)
                    self._y_B.copy_(y_B)
                    self._graph.replay()


def graphs(pool: EnvPool) -> Epoch:
    """Train every env with its own CUDA graph."""
    device = pool.lanes[0].device
    torch.cuda.set_device(device)
    graphed = [GraphedEnv(env, torch.cuda.Stream(device)) for env in pool.envs]

    def epoch(step: int) -> None:
        for env in graphed:
            env.train(step)
        torch.cuda.synchronize()

    return epoch


class Batched:
    """Envs of one topology as one network with a leading dimension E, trained by Nesterov SGD with clipping.

    Every parameter, momentum, gradient norm and running statistic has a row per env. Gradients are clipped per env and
    owner (the host or a seed). The alphas are those of the first env.

    Args:
        envs: Envs of one topology.
    """

    def __init__(self, envs: Sequence[Env]) -> None:
        self._envs = envs
        first = envs[0]
        self._network, self._alphas = first.network, first.network.alphas()
        for env in envs:
            env.network.train()
        parameters, self.buffers = stack_module_state([env.network for env in envs])
        # Under vmap, batch norm on a GPU does not support channels_last, the memory format of the envs.
        self.parameters = {name: value.detach().contiguous() for name, value in parameters.items()}
        self.momenta = {name: torch.zeros_like(value) for name, value in self.parameters.items()}
        names = {parameter: name for name, parameter in first.network.named_parameters()}
        self._owners = [
            ([names[parameter] for parameter in owner.parameters], owner) for owner in first.active_optimizers()
        ]
        gradients = grad_and_value(self._loss)
        self._gradients = vmap(gradients, randomness="error")

    def _loss(self, parameters: dict[str, Tensor], buffers: dict[str, Tensor], x_BCHW: Tensor, y_B: Tensor) -> Tensor:
        logits_BK = functional_call(self._network, (parameters, buffers), (x_BCHW, self._alphas))
        return F.cross_entropy(logits_BK, y_B)

    def train(self, step: int) -> Tensor:
        """Train an epoch of every env; return the norms before clipping, [M, O, E] (M batches, O owners)."""
        size = self._envs[0].task.batch_size
        pictures, labels = zip(*(env.epoch_data(0, step) for env in self._envs), strict=True)
        x_ENCHW, y_EN = torch.stack(pictures).contiguous(), torch.stack(labels)
        batches = zip(x_ENCHW.split(size, dim=1), y_EN.split(size, dim=1), strict=True)
        return torch.stack([self._learn(x_EBCHW, y_EB) for x_EBCHW, y_EB in batches])

    def _learn(self, x_EBCHW: Tensor, y_EB: Tensor) -> Tensor:
        gradients, _ = self._gradients(self.parameters, self.buffers, x_EBCHW, y_EB)
        with torch.no_grad():
            return torch.stack([self._optimize(gradients, *owner) for owner in self._owners])

    def _optimize(self, gradients: dict[str, Tensor], names: list[str], owner: FusedSGD) -> Tensor:
        """Update one owner in every env; return its gradient norms [E] before clipping."""
        norms = [torch.linalg.vector_norm(gradients[name].flatten(1), dim=1) for name in names]
        norm_E = torch.linalg.vector_norm(torch.stack(norms), dim=0)
        divisor_E = (norm_E / owner.clip).clamp(min=1.0).float()
        for name in names:
            parameter, momentum = self.parameters[name], self.momenta[name]
            gradient = gradients[name] / divisor_E.view(-1, *[1] * (parameter.dim() - 1))
            gradient = gradient.add(parameter, alpha=owner.weight_decay)
            momentum.mul_(owner.momentum).add_(gradient)
            parameter.sub_(gradient.add(momentum, alpha=owner.momentum), alpha=owner.learning_rate)
        return norm_E


def batched(pool: EnvPool) -> Epoch:
    """Train all envs as one batched network."""
    network = Batched(pool.envs)
    device = pool.lanes[0].device

    def epoch(step: int) -> None:
        network.train(step)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return epoch


def warm(ways: dict[str, Way], pools: dict[str, EnvPool]) -> dict[str, Epoch]:
    """Return the candidates after a warm-up epoch. Candidates that PyTorch cannot run here are reported and skipped."""
    candidates: dict[str, Epoch] = {}
    for name, way in ways.items():
        try:
            epoch = way(pools[name])
            epoch(0)
        except RuntimeError as error:
            print(f"{name} is not supported here: {str(error).splitlines()[0]}")
        else:
            candidates[name] = epoch
    return candidates


def measure(candidates: dict[str, Epoch], envs: int, repeats: int) -> dict[str, float]:
    """Return the median milliseconds per epoch of one env, keyed by candidate."""
    taken: dict[str, list[float]] = {name: [] for name in candidates}
    for step in range(1, 1 + repeats):
        for name, epoch in candidates.items():
            start = time.perf_counter()
            epoch(step)
            taken[name].append((time.perf_counter() - start) * 1000 / envs)
    return {name: statistics.median(times) for name, times in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu:0")
    parser.add_argument("--envs", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--task", default="synthetic")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    on_gpu = torch_device(options.device).type == "cuda"
    ways: dict[str, Way] = {"streams": streams, "vmap": batched}
    if on_gpu:
        ways["graphs"] = graphs
    task = get_task(options.task)
    splits = task.load(None)
    name = torch.cuda.get_device_name(options.device) if on_gpu else "this CPU, one core"
    print(f"{options.task} on {name}: milliseconds per epoch of one env (and speed relative to streams)")
    print(f"{'envs':>5} {'topology':16}" + "".join(f"{way:>22}" for way in ways))
    ratios: dict[str, list[float]] = {way: [] for way in ways}
    for envs in options.envs:
        for topology, blueprint in TOPOLOGIES.items():
            pools = {way: population(task, splits, options.device, envs, blueprint) for way in ways}
            found = measure(warm(ways, pools), envs, options.repeats)
            for pool in pools.values():
                pool.close()
            for way, milliseconds in found.items():
                ratios[way].append(found["streams"] / milliseconds)
            cells = "".join(
                f"{found[way]:12.3f} ({ratios[way][-1]:5.2f} ×)" if way in found else f"{'—':>22}" for way in ways
            )
            print(f"{envs:5} {topology:16}{cells}", flush=True)
    means = {way: statistics.geometric_mean(each) for way, each in ratios.items() if each}
    winner = max(means, key=lambda way: means[way])
    print(f"Fastest on {name}: {winner}, {means[winner]:.2f} times as fast as streams (geometric mean).")
    if not on_gpu:
        print("Not measured: CUDA graphs and concurrent streams (no CUDA device).")


if __name__ == "__main__":
    main()
