"""Errors that are reported as exhausted memory, and errors after which a GPU cannot be used."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch

from esper.networks.seeds.outputs import split_variants
from esper.training.lanes.errors import FaultError


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    ],
)
def test_exhausted_memory_is_told_as_such(error: Exception) -> None:
    fault = FaultError.from_exception(error, "env 03 on cuda:0")
    assert str(fault).startswith("env 03 on cuda:0 ran out of memory")
    assert (fault.traceback_text, fault.is_device_lost) == (None, False)


@pytest.mark.parametrize(
    ("text", "is_device_lost"),
    [
        ("CUDA error: an illegal memory access was encountered", True),
        ("CUDA error: uncorrectable ECC error encountered", True),
        ("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`", True),
        ("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", True),
        ("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)", False),
    ],
)
def test_errors_that_lose_the_device(text: str, is_device_lost: bool) -> None:
    fault = FaultError.from_exception(RuntimeError(text), "env 03 on cuda:0")
    assert str(fault) == f"env 03 on cuda:0 failed: RuntimeError: {text}"
    assert fault.is_device_lost == is_device_lost


@contextlib.contextmanager
def library() -> Iterator[None]:
    yield


def test_error_of_the_package_names_no_line_of_a_library() -> None:
    with pytest.raises(ValueError, match="expected 2 rows") as caught:
        library()(split_variants)(torch.zeros(3), 1, 2)  # contextlib calls the function
    error = caught.value.with_traceback(caught.tb.tb_next)
    assert str(FaultError.from_exception(error, "env 01")) == (
        "env 01 failed: ValueError: expected 2 rows, got a tensor of shape [3]"
    )
