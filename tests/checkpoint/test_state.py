"""The structure of `state.json`: a checkpoint without a value that a restore needs is damaged."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from esper.checkpoint.manifest import STATE_FILE, CheckpointError
from esper.checkpoint.state import check_state

CHECKPOINT = Path(__file__).parents[1] / "fixtures" / "format-9" / "checkpoints" / "round-00003-step-0004"
OPEN_KEYS = {"unpaid", "refused"}
"""Dicts whose keys depend on the run."""


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


def test_state_without_any_of_its_values_is_damaged() -> None:
    state = json.loads((CHECKPOINT / STATE_FILE).read_text())
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
