"""Reads the files of a harvest, and rebuilds the network from them."""

from __future__ import annotations

from pathlib import Path

import safetensors
import safetensors.torch

from esper.disk import read_regular
from esper.harvest.model import GrownModel, build_model
from esper.harvest.structure import WEIGHTS_FILE, HarvestError, read_structure
from esper.tasks.loading import resolve_task
from esper.tasks.task import Task


def load_grown(directory: Path | str, task: Task | str) -> GrownModel:
    """Rebuild a harvested network as a module that can be trained further, on the CPU.

    The host comes from the task's model function, the rest from `structure.json` and `weights.safetensors`, which
    contain no code. The exported program is not opened: loading one from a stranger is not safe.

    Args:
        directory: Directory of the harvest.
        task: Task whose model is the host, or its name or reference.

    Raises:
        HarvestError: A file is missing or damaged, or does not fit the task.
        TaskError: The task cannot be loaded.
    """
    path = Path(directory) / WEIGHTS_FILE
    structure = read_structure(path.parent)
    task = resolve_task(task)
    try:
        tensors = safetensors.torch.load(read_regular(path))
    except OSError as error:
        raise HarvestError(f"{path} cannot be read: {error.strerror or error}") from None
    except safetensors.SafetensorError as error:
        raise HarvestError(f"{path} is damaged: {error}") from None
    return build_model(task, structure.seeds, tensors)
