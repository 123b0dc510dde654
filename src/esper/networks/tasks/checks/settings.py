"""Check of the settings of a family: every value must change the data into new, valid data."""

from __future__ import annotations

import itertools
from typing import cast
from zlib import crc32

import torch
from torch import Tensor

from esper.common.configuration.config import TaskError
from esper.common.seeding import make_generator
from esper.common.user_code.references import describe_exception, user_errors
from esper.networks.tasks.family import TaskFamily
from esper.networks.tasks.splits import Splits, TaskData, data_tensors, is_lazy

_SEED = 0
_CHUNK_SAMPLES = 1024
"""Number of samples that are copied at once, to keep the memory small."""


def check_settings(family: TaskFamily, data: TaskData) -> None:
    """Change the data by every value of every setting. Raises TaskError if a function fails or returns wrong data."""
    checksums = {id(splits): _checksums(splits) for splits in data}
    for name, setting in family.settings.items():
        change = setting.data
        if change is None:
            continue
        of_structures = zip(family.structures, data, strict=True)
        changed_splits = {id(splits): splits for task, splits in of_structures if setting.applies_to(task.name)}
        for splits, value in itertools.product(changed_splits.values(), setting.values):
            where = f"settings[{name!r}] of task {family.name}, value {value!r}"
            if is_lazy((splits,)):
                raise TaskError(f"{where}: it changes the data, and they are read when they are needed; use tensors")
            try:
                changed = change(splits, value, make_generator(_SEED, "setting"))
            except user_errors() as error:
                raise TaskError(f"{where}: {describe_exception(error)}") from error
            if not isinstance(cast("object", changed), Splits):
                raise TaskError(f"{where}: returned a {type(changed).__name__}; return esper.Splits")
            changed.check(f"{family.name} with {name} {value}")
            if _checksums(splits) != checksums[id(splits)]:
                raise TaskError(f"{where}: changes the data in place, which all envs share; return new tensors")


def _checksums(splits: Splits) -> list[int]:
    """Return a checksum of the bytes of each tensor. A sum of the values would not change with their order."""
    return [_checksum(tensor) for tensor in data_tensors((splits,))]


def _checksum(tensor: Tensor) -> int:
    checksum = 0
    for start in range(0, len(tensor), _CHUNK_SAMPLES):
        samples = tensor[start : start + _CHUNK_SAMPLES].detach().reshape(-1).view(torch.uint8)
        checksum = crc32(samples.numpy().data, checksum)
    return checksum
