"""Tests of a population on two fake GPUs: placement, order of kernels, and waits of the host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from esper.common.domain import Op, Stage
from esper.networks.tasks.task import Task
from esper.training.envs.cuda_graphs import CudaGraphs
from esper.training.envs.env import Env
from esper.training.envs.governor import LastGoodState
from esper.training.lanes import runner
from esper.training.lanes.errors import FaultError
from esper.training.lanes.pool import PendingEpochs
from esper.training.lanes.runner import MAX_STREAMS
from esper.training.policy.actions import Action
from tests.training.engine.populations import digits_profile, population, script
from tests.training.lanes.pretended_gpus import Graph, Stream, pretended_gpus
from tests.training.lanes.stream_order import StreamOrder

GPUS = ("cuda:0", "cuda:1")
STEPS = 12


@pytest.mark.slow
@pytest.mark.parametrize(
    ("amp", "scaler", "counterfactual"), [("fp16", "device", "ablation"), ("off", "env", "shapley")]
)
def test_episode_stays_on_device_with_one_wait_per_step(
    amp: str, scaler: str, counterfactual: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    digits_profile()  # before there are tensors without numbers
    options = {"amp": amp, "scaler": scaler, "counterfactual": counterfactual, "steps": STEPS}
    with (
        pretended_gpus(monkeypatch) as waits,
        population(3, GPUS, lambda task: replace(task, samples_per_epoch=2 * task.batch_size), **options) as pool,
    ):
        kept = [LastGoodState(env) for env in pool.envs]
        pool.reset(0)
        stages = set[Stage]()
        for step in range(STEPS):
            actions = [script(env.index, step, env.network.slots) for env in pool.envs]
            waits.clear()
            pool.step(actions, step)
            assert waits == Counter(event=len(GPUS))
            stages |= {slot.stage for env in pool.envs for slot in env.network.slots}
            for good in kept:
                good.save()
            for env in pool.envs:
                env.tick()
        assert stages >= {Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.FOSSILIZED}
        for good in kept:
            good.rollback()
        pool.test_scores()
        assert waits == Counter(event=2 * len(GPUS))
        for env in pool.envs:
            assert {parameter.device.index for parameter in env.network.parameters()} == {env.index % 2}


def test_second_group_is_launched_before_the_first_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a GPU has work while the first group is rewarded and decided."""
    digits_profile()
    with pretended_gpus(monkeypatch) as waits, population(2, GPUS[:1], batches_and_a_half(1)) as pool:
        pool.reset(0)
        waits.clear()
        first, second = ({env: Action(Op.WAIT)} for env in pool.envs)
        results = pool.start_step(first, 0)
        for step in range(2):
            others = pool.start_step(second, step)
            assert not waits.total()
            results()
            results = pool.start_step(first, step + 1)
            assert +waits == Counter(event=1)
            others()
            waits.clear()
        results()


def test_second_group_does_not_wait_for_other_streams_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stream has an env of both groups. Its work is ordered, and that of other streams runs beside it."""
    digits_profile()
    monkeypatch.setattr(runner, "MAX_STREAMS", 2)
    with pretended_gpus(monkeypatch), population(4, GPUS[:1]) as pool:
        pool.reset(0)
        streams: list[Any] = [*pool.lanes[0]._runner._streams]
        order: StreamOrder = streams[0]._gpus.order
        groups = pool.envs[:2], pool.envs[2:]
        first = pool.start_step(dict.fromkeys(groups[0], Action(Op.WAIT)), 0)
        reached = {stream.number: order.last[stream.number] for stream in streams}
        second = pool.start_step(dict.fromkeys(groups[1], Action(Op.WAIT)), 0)
        for stream in reached:
            waited = {other for other, number in reached.items() if order.has_waited(stream, number, other)}
            assert waited == {stream}
        first()
        second()


def test_results_live_until_they_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of the second group would reuse their memory, on the stream that both groups share."""
    digits_profile()
    monkeypatch.setattr(runner, "MAX_STREAMS", 1)
    with pretended_gpus(monkeypatch), population(2, GPUS[:1], lambda task: replace(task, cuda_graphs="off")) as pool:
        pool.reset(0)
        pending = [pool.start_step({env: Action(Op.WAIT)}, 0) for env in pool.envs]
        for results in pending:
            results()


@pytest.mark.slow
def test_groups_that_alternate_share_no_memory_unordered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two groups in every stage. Each is decided, and copied as the last good state, while the other is trained."""
    digits_profile()
    with pretended_gpus(monkeypatch), population(4, GPUS[:1], batches_and_a_half(1), steps=STEPS) as pool:
        kept = {env: LastGoodState(env) for env in pool.envs}
        pool.reset(0)
        pending = dict[int, PendingEpochs]()
        for step in range(STEPS):
            for group in range(2):
                envs = pool.envs[group::2]
                if group in pending:
                    pending.pop(group)()
                    for env in envs:
                        env.tick()
                        kept[env].save()
                pending[group] = pool.start_step(
                    {env: script(env.index, step, env.network.slots) for env in envs}, step
                )
        for results in pending.values():
            results()
        assert {slot.stage for env in pool.envs for slot in env.network.slots} > {Stage.FOSSILIZED}


def test_recorded_functions_are_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two envs on one stream, with four full batches and a smaller one in each epoch.

    The first call of each function is launched. The second one is recorded, and replayed like all later ones, also in
    the next round and after another topology.
    """
    digits_profile()
    replayed: list[Graph] = []
    replay = Graph.replay
    monkeypatch.setattr(Graph, "replay", lambda graph: (replayed.append(graph), replay(graph)))
    options = {"amp": "fp16", "scaler": "device", "steps": 4}
    with pretended_gpus(monkeypatch), population(2, GPUS[:1], batches_and_a_half(4), **options) as pool:

        def step(op: Op, index: int) -> list[int]:
            replayed.clear()
            pool.step([Action(op, 0)] * 2, index)
            for env in pool.envs:
                env.tick()
            return sorted(Counter(map(id, replayed)).values())

        lane = pool.lanes[0]
        pool.reset(0)
        assert lane.recorded_graphs == 0
        assert step(Op.WAIT, 0) == [1, 1, 3, 3]  # full batches and the validation, which was launched in the reset
        assert step(Op.WAIT, 1) == [1] * 6 + [4, 4]  # also the last batch and the summary
        assert step(Op.GERMINATE, 2) == [1] * 6 + [4, 4]  # a seed that has just been planted changes nothing yet
        assert lane.recorded_graphs == 8
        # The second env finds all kernels of the seed loaded, so it records its first calls.
        assert step(Op.WAIT, 3) == [1, 1, 1, 3, 4]
        assert lane.recorded_graphs == 13
        pool.reset(1)
        assert step(Op.WAIT, 0) == [1] * 6 + [4, 4]
        assert lane.recorded_graphs == 13
        assert lane.take_notices() == []


def batches_and_a_half(batches: int) -> Callable[[Task], Task]:
    """Return a function that sets the length of an epoch to some full batches and one of half the size."""
    return lambda task: replace(task, samples_per_epoch=batches * task.batch_size + task.batch_size // 2)


def test_task_can_forbid_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    digits_profile()
    monkeypatch.setattr(Graph, "capture_begin", lambda *_, **__: pytest.fail("a graph was recorded"))
    with pretended_gpus(monkeypatch), population(1, GPUS[:1], lambda task: replace(task, cuda_graphs="off")) as pool:
        pool.reset(0)
        for step in range(2):
            pool.step([Action(Op.WAIT)], step)


UNRECORDABLE = "a CUDA graph cannot record the kernels, so they are launched one by one: "


@pytest.mark.parametrize(
    ("error", "notice", "records_later"),
    [
        (
            "CUDA error: operation not permitted when stream is capturing\nmore",
            f"{UNRECORDABLE}operation not permitted when stream is capturing",
            False,
        ),
        (
            "CUDA out of memory. Tried to allocate 2.00 MiB",
            "memory was exhausted while kernels were recorded: all CUDA graphs are dropped",
            True,
        ),
        ("CUDA error: device-side assert triggered", None, False),
    ],
)
def test_function_that_cannot_be_recorded_is_launched(
    error: str, notice: str | None, records_later: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a lost device, the launch that follows fails too."""

    def end_fails(graph: Graph) -> None:
        graph._gpus.recording = None
        raise RuntimeError("CUDA error: operation failed due to a previous error during capture")

    with pretended_gpus(monkeypatch):
        device = torch.device("cuda:0")
        cuda_graphs = CudaGraphs(device, [0])
        calls: list[Tensor] = []

        def fails_in_the_second_call() -> Tensor:
            calls.append(torch.zeros(3, device=device))
            if len(calls) == 2 or (notice is None and len(calls) > 2):
                raise RuntimeError(error)
            return calls[-1]

        def run(env: int) -> Tensor:
            return cuda_graphs.select(env, 0, [], [], list).run(("name",), fails_in_the_second_call)

        with monkeypatch.context() as patch:
            patch.setattr(Graph, "capture_end", end_fails)
            run(0)
            if notice is None:
                with pytest.raises(RuntimeError, match=error):
                    run(0)
                return
            run(0)
        for env in (0, 1, 1):
            assert run(env).device == device
        assert len(calls) == 6  # replays are no calls; no second env tries to record a function that failed
        assert cuda_graphs.recordings == 2 * records_later
        assert cuda_graphs.take_notices() == [notice]
        assert cuda_graphs.take_notices() == []


def test_recording_ends_if_the_task_exits(monkeypatch: pytest.MonkeyPatch) -> None:
    """`sys.exit` in the code of a task is a fault of its env; the stream must not stay in a recording."""
    with pretended_gpus(monkeypatch):
        device = torch.device("cuda:0")
        cuda_graphs = CudaGraphs(device, [0])
        exits = iter([None, SystemExit(1), None, None])

        def may_exit() -> Tensor:
            if error := next(exits):
                raise error
            return torch.zeros(3, device=device)

        def run() -> Tensor:
            return cuda_graphs.select(0, 0, [], [], list).run(("name",), may_exit)

        run()
        with pytest.raises(SystemExit):
            run()
        assert run().device == device
        assert cuda_graphs.recordings == 1


def test_a_gpu_has_at_most_four_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    digits_profile()
    with pretended_gpus(monkeypatch), population(10, GPUS, steps=2) as pool:
        pool.reset(0)
        for lane in pool.lanes:
            assert len(lane._runner._streams) == MAX_STREAMS == 4
            by_stream = Counter(id(stream) for stream in lane._runner._stream_by_env.values())
            assert sorted(by_stream.values()) == [1, 1, 1, 2]  # whatever the indices of the envs of the lane


def test_restore_after_fault_waits_for_pending_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    digits_profile()
    train = Env.train_epoch

    def fails_in_the_last(env: Env, step: int) -> Tensor:
        trained = train(env, step)
        if env.index == 2:
            raise RuntimeError("CUDA out of memory")
        return trained

    with pretended_gpus(monkeypatch), population(3, GPUS[:1], steps=2) as pool:
        kept = [LastGoodState(env) for env in pool.envs]
        pool.reset(0)
        for good in kept:
            good.save()
        monkeypatch.setattr(Env, "train_epoch", fails_in_the_last)
        with pytest.raises(FaultError, match="env 02 on cuda:0"):
            pool.step([script(env.index, 0, env.network.slots) for env in pool.envs], 0)
        for good in kept:
            good.rollback()


def test_lost_gpu_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    digits_profile()

    def lose_gpu(env: Env, step: int) -> Tensor:
        def used(*_: object) -> None:
            pytest.fail("the GPU was used")

        monkeypatch.setattr(Stream, "wait_stream", used)
        raise RuntimeError("CUDA error: device-side assert triggered")

    with pretended_gpus(monkeypatch), population(3, GPUS[:1], steps=2) as pool:
        pool.reset(0)
        monkeypatch.setattr(Env, "train_epoch", lose_gpu)
        with pytest.raises(
            FaultError, match="env 00 on cuda:0 failed: RuntimeError: CUDA error: device-side"
        ) as caught:
            pool.step([script(env.index, 0, env.network.slots) for env in pool.envs], 0)
        assert caught.value.is_device_lost


def test_stream_races_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    with pretended_gpus(monkeypatch):
        device = torch.device("cuda:0")
        default, other = torch.cuda.default_stream(device), torch.cuda.Stream(device)

        shared = torch.zeros(2, 4, device=device)
        with torch.cuda.stream(other), pytest.raises(AssertionError, match="is not ordered after"):
            shared.sum()
        other.wait_stream(default)
        with torch.cuda.stream(other):
            shared[1].add_(1.0)
        shared[0].add_(1.0)
        with pytest.raises(AssertionError, match="is not ordered after"):
            shared.sum()
        reached = torch.cuda.Event()
        reached.record(other)
        reached.synchronize()
        shared.sum()

        other.wait_stream(default)
        with torch.cuda.stream(other):
            shared.sum()
        del shared
        with pytest.raises(AssertionError, match="may reuse memory"):
            torch.zeros(2, 4, device=device)
        default.wait_stream(other)
        torch.zeros(2, 4, device=device)
