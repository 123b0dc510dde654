"""Checkpoint files: every tensor of a user's model can be written and read again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from esper.recordings.checkpoints.catalog import checkpoint_path
from esper.training.checkpoint.files import read_checkpoint, write_checkpoint
from tests.faults.programs import example_checkpoint


def test_tensors_that_share_memory_are_stored_separately(tmp_path: Path) -> None:
    weight = torch.arange(6.0)
    tensors = {"weight": weight, "tied": torch.nn.Parameter(weight), "part": weight.view(2, 3)[1]}
    path = checkpoint_path(tmp_path, 2, 1)

    write_checkpoint(path, replace(example_checkpoint(2), tensors=tensors))

    found = read_checkpoint(path).tensors
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
