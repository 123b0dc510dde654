"""The structure of `state.json`: a checkpoint without a value that a restore needs is damaged."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from esper.recordings.checkpoints.manifest import STATE_FILE, CheckpointError
from esper.training.checkpoint.state import check_state
from tests.runs import LiveRun

OPEN_KEYS = {"agent", "deferred_parts", "gate_refusals"}
"""Dicts whose keys depend on the run or its policy."""


def dicts(value: Any) -> Iterator[dict[str, Any]]:
    """Yield all dicts in the state whose keys are fixed."""
    if isinstance(value, dict):
        yield value
        for key, item in value.items():
            if key not in OPEN_KEYS:
                yield from dicts(item)
    elif isinstance(value, list):
        for item in value:
            yield from dicts(item)


def test_state_without_any_of_its_values_is_damaged(tmp_path: Path) -> None:
    live = LiveRun(tmp_path, policy="heuristic", envs=2, rounds=1, steps=20).start_paused(8)
    checkpoint = live.stop()
    state = json.loads((checkpoint / STATE_FILE).read_text())
    assert check_state(copy.deepcopy(state), STATE_FILE) == state
    removed = set[str]()
    for found in dicts(state):
        for key in list(found):
            value = found.pop(key)
            with pytest.raises(CheckpointError, match=f"{STATE_FILE} is damaged: .*`{key}`"):
                check_state(state, STATE_FILE)
            found[key] = value
            removed.add(key)
    assert {"host_round", "grad_norm", "blueprint", "curve"} <= removed
