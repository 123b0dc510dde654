"""Grown: a network that has been grown, with its scores, and its harvest."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from esper.common.formatting import html_text
from esper.networks.seeds.network import count_samples
from esper.networks.seeds.outputs import Nested
from esper.networks.seeds.tensors import named_tensors
from esper.networks.tasks.family import describe_recipe
from esper.networks.tasks.loading import absolute_reference
from esper.networks.tasks.splits import Splits, take
from esper.networks.tasks.task import Task
from esper.studies.harvest.model import GrownModel, build_model, sample_scores
from esper.studies.harvest.model_card import describe_structure, format_card
from esper.studies.harvest.program import SAMPLE_ROWS, export_program, seeded_output, significant_difference
from esper.studies.harvest.structure import (
    CARD_FILE,
    STRUCTURE_FILE,
    WEIGHTS_FILE,
    GrownSeed,
    GrownStructure,
    HarvestError,
    Provenance,
    check_target,
)
from esper.training.checkpoint.files import encode_tensors


@dataclass(frozen=True, kw_only=True, repr=False)
class Grown:
    """A network that has been grown.

    Attributes:
        model: The network as an ordinary module, on the CPU, in float32. It is called as the model of the task.
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
            splits: Data of the task, on the CPU.

        Raises:
            HarvestError: The weights do not fit the task.
            TaskError: The model function raises an exception.
        """
        model = build_model(task, seeds, tensors)
        inputs = splits.validation[0]
        sample = take(inputs, torch.arange(SAMPLE_ROWS) % count_samples(inputs))
        output = seeded_output(model.eval(), sample)
        is_random = significant_difference(output, seeded_output(model, sample, random_seed=1)) is not None
        structure = GrownStructure(
            task=task.name,
            reference=task.source.reference if task.source else None,
            host_parameters=sum(parameter.numel() for parameter in model.host.parameters()),
            seeds=list(seeds),
            score_name=task.score_name,
            score_scale=task.score_scale,
            validation_score=float(sample_scores(model, splits.validation, task).mean()),
            test_score=float(sample_scores(model, splits.test, task).mean()),
            is_random=is_random,
            recipe=describe_recipe(task),
            provenance=provenance,
        )
        return cls(model=model, structure=structure, task=task, sample=sample)

    def __repr__(self) -> str:
        return describe_structure(self.structure)

    def _repr_html_(self) -> str:
        return html_text(repr(self))

    def save(self, directory: Path | str) -> str | None:
        """Write weights, structure, model card and, if the network can be exported, a `torch.export` program.

        Args:
            directory: Directory to write; it must not exist yet, or be empty.

        Returns:
            Why there is no program; None if there is one.

        Raises:
            HarvestError: The directory cannot be written, or is not empty.
        """
        directory = Path(directory).resolve()  # "." has no name, and a link cannot be replaced by a directory
        check_target(directory)
        try:
            directory.parent.mkdir(parents=True, exist_ok=True)
            # Only its owner can open a temporary directory. The one within has the usual permissions.
            with tempfile.TemporaryDirectory(prefix=f".{directory.name[:32]}-", dir=directory.parent) as temporary:
                partial = Path(temporary) / directory.name
                partial.mkdir()
                problem = self._write_files(partial)
                if directory.exists():
                    directory.rmdir()
                partial.rename(directory)
        except OSError as error:
            raise HarvestError(f"cannot write to {directory}: {error.strerror or error}") from error
        return problem

    def _write_files(self, directory: Path) -> str | None:
        """Write all files, and return why there is no program; None if there is one. Raises OSError."""
        (directory / WEIGHTS_FILE).write_bytes(encode_tensors(named_tensors(self.model)))
        structure = msgspec.json.format(msgspec.json.encode(self.structure), indent=2)
        (directory / STRUCTURE_FILE).write_bytes(structure + b"\n")
        problem = export_program(directory, self.task, self.sample)
        (directory / CARD_FILE).write_text(format_card(self.structure, absolute_reference(self.task), problem))
        return problem
