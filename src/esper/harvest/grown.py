"""Grown: a network that has been grown, with its scores, and its harvest."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from esper.checkpoint.files import encode_tensors
from esper.growth.network import count_samples
from esper.growth.outputs import Nested
from esper.harvest.model import GrownModel, build_model, measure_score
from esper.harvest.model_card import format_card
from esper.harvest.program import SAMPLE_ROWS, export_program
from esper.harvest.structure import (
    CARD_FILE,
    STRUCTURE_FILE,
    WEIGHTS_FILE,
    GrownSeed,
    GrownStructure,
    HarvestError,
    Provenance,
    check_target,
)
from esper.tasks.hosts import named_tensors
from esper.tasks.splits import Splits, take
from esper.tasks.task import Task

PARTIAL_SUFFIX = ".partial"


@dataclass(frozen=True, kw_only=True)
class Grown:
    """A network that has been grown.

    Attributes:
        model: The network as an ordinary module, on the CPU.
        structure: Its seeds, its scores, and the run it comes from.
        task: Task whose model is the host.
        sample: Inputs of a few samples, for the export.
    """

    model: GrownModel
    structure: GrownStructure
    task: Task
    sample: Nested

    @classmethod
    def build(
        cls,
        task: Task,
        splits: Splits,
        seeds: Sequence[GrownSeed],
        tensors: Mapping[str, Tensor],
        provenance: Provenance,
    ) -> Grown:
        """Build a grown network from its seeds and weights, and measure its scores in float32.

        Args:
            task: Task whose model is the host.
            splits: Data of the task, on the CPU.
            seeds: Structure of each seed.
            tensors: Weights and buffers by name.
            provenance: The run of the network.

        Raises:
            HarvestError: The weights do not fit the task.
            TaskError: The model function raises an exception.
        """
        model = build_model(task, seeds, tensors)
        structure = GrownStructure(
            task=task.name,
            reference=task.source.reference if task.source else None,
            host_parameters=sum(parameter.numel() for parameter in model.host.parameters()),
            seeds=list(seeds),
            score_name=task.score_name,
            validation_score=measure_score(model, splits.validation, task),
            test_score=measure_score(model, splits.test, task),
            provenance=provenance,
        )
        inputs = splits.validation[0]
        rows = torch.arange(SAMPLE_ROWS) % count_samples(inputs)
        return cls(model=model, structure=structure, task=task, sample=take(inputs, rows))

    def save(self, directory: Path | str) -> str | None:
        """Write weights, structure, model card and, if the network can be exported, a `torch.export` program.

        Args:
            directory: Directory to write; it must not exist yet, or be empty.

        Returns:
            Why there is no program; None if there is one.

        Raises:
            HarvestError: The directory cannot be written, or is not empty.
        """
        directory = Path(directory).absolute()  # "." has no name, which the partial directory needs
        check_target(directory)
        partial = directory.with_name(directory.name + PARTIAL_SUFFIX)
        try:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            (partial / WEIGHTS_FILE).write_bytes(encode_tensors(named_tensors(self.model)))
            structure = msgspec.json.format(msgspec.json.encode(self.structure), indent=2)
            (partial / STRUCTURE_FILE).write_bytes(structure + b"\n")
            problem = export_program(partial, self.task, self.sample).problem
            (partial / CARD_FILE).write_text(format_card(self.structure, problem))
            if directory.exists():
                directory.rmdir()
            partial.rename(directory)
        except OSError as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise HarvestError(f"cannot write to {directory}: {error.strerror or error}") from error
        return problem
