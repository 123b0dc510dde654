"""Env-steps that are recorded and replayed equal launched ones to the bit: nothing that changes is a constant."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper.common.configuration.config import Config
from esper.common.domain import AlphaCurve, Stage
from esper.common.seeding import make_generator
from esper.networks.seeds import slot as slot_module
from esper.networks.seeds.blend import Blend, BlendGate, blend_seed, straight_through
from esper.networks.seeds.kept_modules import KeptModules
from esper.networks.seeds.slot import Slot
from esper.networks.tasks.optimizers import AdamW
from esper.networks.tasks.schedules import lr_factor
from esper.networks.tasks.splits import Splits
from esper.networks.tasks.task import Task
from esper.training.envs import cuda_graphs, graph_check
from esper.training.envs import env as env_module
from esper.training.envs.cuda_graphs import CudaGraphs
from esper.training.envs.env import Env
from esper.training.envs.env_state import env_state_tensors
from esper.training.envs.governor import LastGoodState
from esper.training.envs.graph_check import graph_problem
from esper.training.envs.stopwatch import PhaseTimer
from tests.training.engine.populations import digits_profile, live_on, play, population
from tests.training.envs.tapes import Tape, taped

BLUEPRINTS = digits_profile().sites[1].blueprints


def small_epochs(task: Task) -> Task:
    """Return a task with two full batches and a smaller one in each epoch."""
    return replace(task, batch_size=8, samples_per_epoch=20, optimizer=AdamW(0.003))


def few_samples(splits: Splits) -> Splits:
    """Return splits with a small validation split."""
    x, y = splits.validation
    return replace(splits, validation=(x[:40], y[:40]))


@contextmanager
def launched_and_recorded(
    monkeypatch: pytest.MonkeyPatch, failures: list[RuntimeError] | None = None, **options: Any
) -> Iterator[tuple[Env, Env, list[Tape]]]:
    """Two equal envs: one whose kernels are launched, and one that is recorded, except for some failures."""
    given: dict[str, Any] = {"task": small_epochs, "splits": few_samples, "steps": 40, **options}
    with (
        population(**given) as launched,
        population(**given) as recorded,
        taped(recorded, monkeypatch, failures) as tapes,
    ):
        for pool in (launched, recorded):
            pool.reset(0)
        yield launched.envs[0], recorded.envs[0], tapes


def step_both(envs: Sequence[Env], step: int) -> None:
    """Train and validate both envs, and compare results and states."""
    launched, recorded = (env.run_epoch(step, PhaseTimer(), last=False) for env in envs)
    for expected, found in zip(launched, recorded, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    expected, found = map(env_state_tensors, envs)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        assert torch.equal(value, found[name]), name


def replays(tapes: Sequence[Tape]) -> int:
    """Return how often tapes were replayed in place of a launch, and forget it."""
    total = sum(max(tape.replays - 1, 0) for tape in tapes)
    for tape in tapes:
        tape.replays = min(tape.replays, 1)
    return total


def test_episodes_are_replayed_to_the_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"envs": 2, "steps": 12, "task": small_epochs, "splits": few_samples}
    with population(**options) as pool:
        wanted = [play(pool, round_index, 12) for round_index in range(2)]
    with population(**options) as pool, taped(pool, monkeypatch) as tapes:
        found = [play(pool, round_index, 12) for round_index in range(2)]
        assert found == wanted
        assert replays(tapes) > 20


@pytest.mark.parametrize(("blueprint", "blend"), list(zip(BLUEPRINTS, itertools.cycle(Blend))))
def test_every_seed_is_replayed_in_every_stage(blueprint: str, blend: Blend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alphas, learning rates and counts of Adam change between the replays."""
    with launched_and_recorded(monkeypatch, amp="fp16") as (*envs, tapes):
        for slot in each_slot(envs):
            slot.germinate(blueprint, blend, AlphaCurve.LINEAR, 5, 1.0, make_generator(0, "seed"))
            slot.tick()
        synchronise(envs)
        stages = set[Stage]()
        for step in range(28, 40):
            step_both(envs, step)
            stages |= {slot.stage for slot in each_slot(envs)}
            for slot in each_slot(envs):
                live_on(slot, advance=step > 29)
            synchronise(envs)
        assert stages == {Stage.TRAINING, Stage.BLENDING, Stage.PROBATIONARY, Stage.FOSSILIZED}
        assert replays(tapes) >= 3 * 8  # of 12 steps, three have a new topology


def each_slot(envs: Sequence[Env]) -> list[Slot]:
    return [env.network.slots[1] for env in envs]


def synchronise(envs: Sequence[Env]) -> None:
    for env in envs:
        env.sync_optimizers()


def test_graphs_survive_rollback_and_new_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights, loss scale and data are new, and their addresses are not."""
    with launched_and_recorded(monkeypatch, amp="fp16") as (*envs, tapes):
        kept = [LastGoodState(env) for env in envs]
        for step in range(3):
            step_both(envs, step)
            for good in kept if step == 0 else ():
                good.save()
        replays(tapes)
        for good in kept:
            good.rollback()
        step_both(envs, 3)
        for env in envs:
            env.reset(env.key._replace(round=1))
        step_both(envs, 0)
        for env in envs:
            assert env.scaler
            env.scaler.set_scale(torch.tensor(float("inf")))  # the step is skipped
        step_both(envs, 1)
        assert replays(tapes) == 3 * 5


def test_moved_tensors_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with launched_and_recorded(monkeypatch) as (*envs, tapes):
        graphs = envs[1]._hosts.cuda_graphs
        assert graphs
        for step in range(3):
            step_both(envs, step)
        recorded = graphs.recordings
        weight = envs[1].host_optimizer.parameters[0]
        weight.data = weight.data.clone()
        step_both(envs, 3)
        (notice,) = graphs.take_notices()
        assert notice == "a tensor that CUDA graphs read has moved: they are dropped and recorded again"
        replays(tapes)
        for step in (4, 5):
            step_both(envs, step)
        assert (graphs.recordings, replays(tapes)) == (2 * recorded, 10)


class FakeMemory:
    """Memory of a GPU. Freed memory returns to the driver when torch empties its cache.

    Args:
        limit: Bytes that may be in use without a shortage.
        used: Returns the bytes that are in use.
    """

    def __init__(self, limit: int, used: Callable[[], int]) -> None:
        self._limit, self._used, self._reserved = limit, used, used()
        self.emptied = 0

    def missing(self, _: torch.device) -> int:
        self._reserved = max(self._reserved, self._used())
        return max(self._reserved - self._limit, 0)

    def empty_cache(self) -> None:
        self.emptied += 1
        self._reserved = self._used()

    @contextmanager
    def installed(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMemory]:
        with monkeypatch.context() as patch:
            patch.setattr(cuda_graphs, "missing_memory", self.missing)
            patch.setattr(torch.cuda, "empty_cache", self.empty_cache)
            yield self


def live_with(envs: Sequence[Env], blueprint: str, slots: Sequence[int] = (1,)) -> None:
    """Train two epochs with seeds in some slots and in no others."""
    for env in envs:
        for index, slot in enumerate(env.network.slots):
            slot.reset()
            if index in slots:
                slot.germinate(blueprint, Blend.ADD, AlphaCurve.LINEAR, 3, 1.0, make_generator(0, "seed"))
                slot.tick()
    synchronise(envs)
    for step in range(2):
        step_both(envs, step)


def graphs_of(env: Env) -> CudaGraphs:
    graphs = env._hosts.cuda_graphs
    assert graphs
    return graphs


SHORT = "memory is short: CUDA graphs that were not used for longest make room, or kernels are launched"


def test_old_graphs_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is room for three topologies, with the bare host. Two are dropped at a time, but not the current one."""
    with launched_and_recorded(monkeypatch) as (*envs, _):
        graphs = graphs_of(envs[1])
        memory = FakeMemory(3, lambda: len(graphs._kept))
        with memory.installed(monkeypatch):
            for blueprint in BLUEPRINTS[:4]:
                live_with(envs, blueprint)
        assert len(graphs._kept) == 3
        assert graphs.take_notices() == [SHORT]
        assert graphs.recordings >= 4 * 3


def test_cached_memory_makes_room_before_graphs_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    with launched_and_recorded(monkeypatch) as (*envs, _):
        used = 9
        memory = FakeMemory(3, lambda: used)
        used = 2
        with memory.installed(monkeypatch):
            for blueprint in BLUEPRINTS[:2]:
                live_with(envs, blueprint)
        assert memory.emptied == 1
        assert len(graphs_of(envs[1])._kept) == 3


def test_graphs_are_kept_where_a_drop_gains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs of a stream share memory. Recording continues once memory is free for another reason."""
    with launched_and_recorded(monkeypatch) as (*envs, tapes):
        graphs = graphs_of(envs[1])
        for blueprint in BLUEPRINTS[:4]:
            live_with(envs, blueprint)
        recordings, used = graphs.recordings, 9
        memory = FakeMemory(3, lambda: used)
        with memory.installed(monkeypatch):
            live_with(envs, BLUEPRINTS[4])
            assert memory.emptied == 2
            assert len(graphs._kept) == 1 + 4 - 2 + 1
            replays(tapes)
            live_with(envs, BLUEPRINTS[3])
            assert replays(tapes) == 2 * 5  # two full batches, a smaller one, the summary and the validation
            assert graphs.recordings == recordings
            used = 2
            memory.empty_cache()
            live_with(envs, BLUEPRINTS[4])
            assert graphs.recordings > recordings
        assert graphs.take_notices() == [SHORT]


def test_number_of_kept_topologies_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "KEPT_PER_ENV", 2)
    with launched_and_recorded(monkeypatch) as (*envs, _):
        graphs = graphs_of(envs[1])
        for blueprint in BLUEPRINTS[:4]:
            live_with(envs, blueprint)
        assert len(graphs._kept) == 2
        recordings = graphs.recordings
        for blueprint in BLUEPRINTS[2:4]:
            live_with(envs, blueprint)
        assert graphs.recordings == recordings


UNRECORDABLE = "a CUDA graph cannot record the kernels, so they are launched one by one: "


@pytest.mark.parametrize(
    "error",
    [
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR",
        "GET was unable to find an engine to execute this computation",
        "Current cudaStreamCaptureStatus: cudaStreamCaptureStatusInvalidated",
    ],
)
def test_error_of_a_library_in_a_recording_is_no_fault(error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each seed is known, but not both together: their first calls are recorded. The second failure is reported."""
    failures: list[RuntimeError] = []
    with launched_and_recorded(monkeypatch, failures) as (*envs, _):
        graphs = graphs_of(envs[1])
        for slot in (0, 1):
            live_with(envs, BLUEPRINTS[0], slots=[slot])
        recordings = graphs.recordings
        failures += [RuntimeError(error)] * 2
        live_with(envs, BLUEPRINTS[0], slots=[0, 1])
        assert not failures
        assert graphs.take_notices() == [UNRECORDABLE + error]
        assert graphs.recordings == recordings + 3  # all but the full batch


def test_function_that_failed_in_one_topology_is_recorded_in_others(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [RuntimeError("out of luck")]
    with launched_and_recorded(monkeypatch, failures) as (*envs, _):
        graphs = graphs_of(envs[1])
        live_with(envs, BLUEPRINTS[0])
        assert not failures
        live_with(envs, BLUEPRINTS[1])
        recordings = graphs.recordings
        live_with(envs, BLUEPRINTS[0])  # the full batch stays launched
        assert graphs.take_notices() == [f"{UNRECORDABLE}out of luck"]
        assert graphs.recordings == recordings == 3 + 4


def dropped_loss(output: Tensor, y: Tensor) -> Tensor:
    """A loss that draws from torch's generator, in training and in evaluation mode."""
    return torch.nn.functional.cross_entropy(torch.nn.functional.dropout(output, 0.3), y)


def seeded_loss(output: Tensor, y: Tensor) -> Tensor:
    """A loss that draws from Python's generator, which is seeded for each epoch."""
    return torch.nn.functional.cross_entropy(output * (1 + random.random()), y)


calls = itertools.count()


def counted_loss(output: Tensor, y: Tensor) -> Tensor:
    """A loss that depends on the number of its calls."""
    return torch.nn.functional.cross_entropy(output * (1 + next(calls) % 40), y)


@pytest.mark.parametrize(
    ("loss", "problem"),
    [
        (dropped_loss, None),
        (seeded_loss, "epoch 1, training differs between recorded and launched kernels"),
        (counted_loss, "epoch 1, training differs when it is repeated from the same state"),
    ],
)
def test_dry_run_finds_numbers_that_python_draws(
    loss: Callable[[Tensor, Tensor], Tensor], problem: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tape, like a graph, contains the number of the recording."""
    # Half of the epoch's batches are launched or recorded, and the others replayed.
    longer = {"batch_size": 8, "samples_per_epoch": 28}
    found = dry_run(monkeypatch, amp="fp16", task=lambda task: replace(task, loss=loss, **longer))
    assert found == problem


def test_dry_run_finds_what_waits_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def loss(output: Tensor, y: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(output, y) * max(output.abs().max().item(), 1.0)

    def score(output: Tensor, y: Tensor) -> Tensor:
        return (output.argmax(1) == y).float() * float(output.numel() > loss(output, y).item())

    problem = dry_run(monkeypatch, task=lambda task: replace(small_epochs(task), loss=loss, score=score))
    assert problem == (
        "a CUDA graph cannot record the kernels, so they are launched one by one: "
        "a value is read while the stream is capturing"
    )


def drawing(output: Tensor) -> Tensor:
    """Return a tensor, times a number that Python draws."""
    return output * (1 + random.random())


def draw_in_gates(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = BlendGate.forward
    monkeypatch.setattr(BlendGate, "forward", lambda *inputs: drawing(forward(*inputs)))


def draw_in_training_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_module, "straight_through", lambda host, seed: straight_through(host, drawing(seed)))


def draw_in_products(monkeypatch: pytest.MonkeyPatch) -> None:
    def blend(kind: Blend, *args: Any) -> Tensor:
        blended = blend_seed(kind, *args)
        return drawing(blended) if kind is Blend.MULTIPLY else blended

    monkeypatch.setattr(slot_module, "blend_seed", blend)


def draw_in_the_last_blueprint(monkeypatch: pytest.MonkeyPatch) -> None:
    def get_seed(kept: KeptModules, blueprint: str, *args: Any, **options: Any) -> nn.Module:
        seed = get(kept, blueprint, *args, **options)
        if blueprint == BLUEPRINTS[-1]:
            seed.register_forward_hook(lambda *call: drawing(call[-1]))
        return seed

    get = KeptModules.get_seed
    monkeypatch.setattr(KeptModules, "get_seed", get_seed)


@pytest.mark.parametrize("draw", [draw_in_gates, draw_in_training_seeds, draw_in_products, draw_in_the_last_blueprint])
def test_dry_run_enters_every_stage_blend_and_blueprint(
    draw: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    draw(monkeypatch)
    problem = dry_run(monkeypatch)
    assert problem is not None
    assert "differs between recorded and launched kernels" in problem


def test_dry_run_plants_every_blueprint_and_state_somewhere() -> None:
    """One slot has more blueprints than there are stages and blends, the other one a single one of its own."""
    seeds = [seed for planted in graph_check._plantings(["abcdefghijkl", "m"]) for seed in planted]
    assert {seed.blueprint for seed in seeds} == set("abcdefghijklm")
    assert len({(seed.blend, seed.stage) for seed in seeds}) == len(Blend) * 3


def test_dry_run_stays_in_the_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    scales: list[float] = []

    def watch(*arguments: Any) -> float:
        scales.append(lr_factor(*arguments))
        return scales[-1]

    monkeypatch.setattr(env_module, "lr_factor", watch)
    assert dry_run(monkeypatch, steps=1) is None
    assert min(scales) > 0


def lazily_masked(task: Task) -> Task:
    """Return a task whose hosts create a mask in their first call and keep it, as many models do."""

    def model() -> nn.Module:
        host, masks = task.model(), list[Tensor]()

        def mask(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
            if not masks:
                masks.append(torch.ones_like(output[:1]))
            return output * masks[0]

        host.register_forward_hook(mask)
        return host

    return replace(small_epochs(task), model=model)


def test_first_call_after_the_dry_run_is_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mask that the first call creates would not be written by a recording that fails."""
    failures: list[RuntimeError] = []
    with launched_and_recorded(monkeypatch, failures, task=lazily_masked) as (*others, _):
        hosts, data = [env._hosts for env in others], others[0]._data
        graphs = hosts[1].cuda_graphs = CudaGraphs(torch.device("cpu"))
        measured, *envs = (Env(0, each, data, Config(), None) for each in (hosts[1], *hosts))
        assert graph_problem(measured, graphs) is None
        graphs.structures.add(0)
        failures.append(RuntimeError("out of luck"))
        for env in envs:
            env.reset(env.key)
        for step in range(3):
            step_both(envs, step)
        assert not failures


def dry_run(monkeypatch: pytest.MonkeyPatch, **options: Any) -> str | None:
    with population(**{"task": small_epochs, "splits": few_samples, **options}) as pool, taped(pool, monkeypatch):
        env = pool.envs[0]
        graphs = env._hosts.cuda_graphs
        assert graphs
        problem = graph_problem(env, graphs)
        assert not graphs.structures
        assert graphs.recordings == 0
        return problem
