"""Tests that need a GPU and let recordings of CUDA graphs fail. `benchmarks/gpu_all.sh` runs them last, in a process of
their own: what a failure leaves behind would change other tests."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from esper.training.envs.cuda_graphs import CudaGraphs
from tests.cuda.gpu import GPU, NEEDS_GPU, side_stream
from tests.training.engine.populations import play, population

pytestmark = NEEDS_GPU
DEVICE = torch.device(GPU[0])


def wait_for_device(ones_N: Tensor) -> Tensor:
    return ones_N * ones_N.sum().item()


def exhaust_memory(ones_N: Tensor) -> Tensor:
    return ones_N * torch.ones(1 << 50, device=DEVICE)[0]


def report_a_library(ones_N: Tensor) -> Tensor:
    raise RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR")


def leave_the_program(ones_N: Tensor) -> Tensor:
    raise SystemExit(1)


@pytest.mark.parametrize("fail", [wait_for_device, exhaust_memory, report_a_library, leave_the_program])
def test_stream_records_again_after_a_failure(fail: Callable[[Tensor], Tensor]) -> None:
    """All memory returns once the graphs are gone."""
    ones_N = torch.ones(1 << 20, device=DEVICE)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    reserved = torch.cuda.memory_reserved(DEVICE)
    with side_stream():
        record_beside_a_failure(ones_N, fail)
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved(DEVICE) == reserved


def record_beside_a_failure(ones_N: Tensor, fail: Callable[[Tensor], Tensor]) -> None:
    """Record a function before and after another one fails while it is recorded, all on one stream."""
    cuda_graphs = CudaGraphs(DEVICE)
    failing = iter([False, True, False])

    def fails_once() -> Tensor:
        return fail(ones_N) if next(failing) else ones_N * 2

    def triple() -> Tensor:
        return torch.cat([ones_N, ones_N * 2])

    def run(name: str, function: Callable[[], Tensor]) -> float:
        return float(cuda_graphs.select(0, 0, [], [], list).run((name,), function).sum())

    for _ in range(3):
        assert run("older", triple) == 3 * len(ones_N)
    assert cuda_graphs.recordings == 1
    run("fails", fails_once)
    if fail is leave_the_program:
        with pytest.raises(SystemExit):
            run("fails", fails_once)
    else:
        assert run("fails", fails_once) == 2 * len(ones_N)
        assert len(cuda_graphs.take_notices()) == 1
    for _ in range(3):
        assert run("newer", triple) == 3 * len(ones_N)
        assert run("older", triple) == 3 * len(ones_N)
    assert cuda_graphs.recordings >= 2
    cuda_graphs.clear()


def test_task_that_waits_is_launched_and_the_run_says_why() -> None:
    def loss(output: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(output, y) * max(output.abs().max().item(), 1.0)

    with population(task=lambda task: replace(task, loss=loss, name="waits"), lanes=GPU) as pool:
        assert [text.split(":")[0] for text in pool.notices] == ["the kernels of waits are launched one by one"]
        assert play(pool, 0, 2)
        assert pool.lanes[0].recorded_graphs == 0
