"""Tests of the recording of CUDA graphs that need no GPU."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from esper.training.envs.cuda_graphs import collection_pause


@pytest.fixture(autouse=True)
def _collector_as_before() -> Iterator[None]:
    yield
    gc.enable()


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_collector_is_off_until_the_last_recording_ends(enabled: bool) -> None:
    if not enabled:
        gc.disable()
    first, second = collection_pause.hold(), collection_pause.hold()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not gc.isenabled()
    second.__exit__(None, None, None)
    assert gc.isenabled() == enabled


def test_nothing_runs_outside_recordings_while_one_lasts() -> None:
    """torch cannot empty the cache of a GPU on which another thread records."""
    calls: list[int] = []
    with collection_pause.hold():
        collection_pause.run_outside(lambda: calls.append(1))
    assert not calls
    collection_pause.run_outside(lambda: calls.append(2))
    assert calls == [2]
