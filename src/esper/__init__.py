"""Esper Sanctum: train populations of growing neural networks, and watch them do it.

`import esper` offers the names of `__all__`. Each is imported on use, because importing torch takes seconds.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from esper import domain

if TYPE_CHECKING:
    from esper.api import TrainedRun, grow, train
    from esper.checkpoint.manifest import CheckpointError
    from esper.config import ConfigError, TaskError
    from esper.engine.task_report import TaskReport, check
    from esper.growth.blueprints import blueprint
    from esper.growth.layers import starts_at_zero
    from esper.harvest.files import load_grown
    from esper.harvest.grown import Grown
    from esper.harvest.structure import HarvestError
    from esper.lanes.errors import RunFailedError
    from esper.recording.recorder import RecordingError
    from esper.recording.segments import ReadError
    from esper.tasks.family import Family, Setting
    from esper.tasks.losses import Loss, accuracy, cross_entropy
    from esper.tasks.optimizers import SGD, AdamW
    from esper.tasks.splits import Splits
    from esper.tasks.task import Chance, Slot, Task

__version__ = domain.VERSION

__all__ = [
    "SGD",
    "AdamW",
    "Chance",
    "CheckpointError",
    "ConfigError",
    "Family",
    "Grown",
    "HarvestError",
    "Loss",
    "ReadError",
    "RecordingError",
    "RunFailedError",
    "Setting",
    "Slot",
    "Splits",
    "Task",
    "TaskError",
    "TaskReport",
    "TrainedRun",
    "accuracy",
    "blueprint",
    "check",
    "cross_entropy",
    "grow",
    "load_grown",
    "starts_at_zero",
    "train",
]

_SOURCES = {
    "SGD": "esper.tasks.optimizers:SGD",
    "AdamW": "esper.tasks.optimizers:AdamW",
    "Chance": "esper.tasks.task:Chance",
    "CheckpointError": "esper.checkpoint.manifest:CheckpointError",
    "ConfigError": "esper.config:ConfigError",
    "Family": "esper.tasks.family:Family",
    "Grown": "esper.harvest.grown:Grown",
    "HarvestError": "esper.harvest.structure:HarvestError",
    "Loss": "esper.tasks.losses:Loss",
    "ReadError": "esper.recording.segments:ReadError",
    "RecordingError": "esper.recording.recorder:RecordingError",
    "RunFailedError": "esper.lanes.errors:RunFailedError",
    "Setting": "esper.tasks.family:Setting",
    "Slot": "esper.tasks.task:Slot",
    "Splits": "esper.tasks.splits:Splits",
    "Task": "esper.tasks.task:Task",
    "TaskError": "esper.config:TaskError",
    "TaskReport": "esper.engine.task_report:TaskReport",
    "TrainedRun": "esper.api:TrainedRun",
    "accuracy": "esper.tasks.losses:accuracy",
    "blueprint": "esper.growth.blueprints:blueprint",
    "check": "esper.engine.task_report:check",
    "cross_entropy": "esper.tasks.losses:cross_entropy",
    "grow": "esper.api:grow",
    "load_grown": "esper.harvest.files:load_grown",
    "starts_at_zero": "esper.growth.layers:starts_at_zero",
    "train": "esper.api:train",
}
"""Module and attribute of each public name."""


def __getattr__(name: str) -> object:
    if name not in _SOURCES:
        raise AttributeError(f"module 'esper' has no attribute {name!r}")
    module, attribute = _SOURCES[name].split(":")
    return getattr(import_module(module), attribute)
