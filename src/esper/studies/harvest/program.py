"""Export of a grown model as a `torch.export` program, in a process of its own.

Exporting runs the model on fake tensors, which a model may cache; the process that trains must never meet them. The
program contains operators and weights only: it is loaded and run without this package.
"""

from __future__ import annotations

import copy
import inspect
import re
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec
import safetensors.torch
import torch
from torch import Tensor, nn

from esper.common.configuration.config import TaskError
from esper.common.seeding import forked_generators
from esper.common.system.process import python_command
from esper.common.user_code.code_places import find_own
from esper.common.user_code.references import describe_origin, exception_text, user_errors
from esper.networks.seeds.cpu_convolution import Convolution
from esper.networks.seeds.layers import FastBatchNorm2d, Float32GroupNorm, PointwiseConv
from esper.networks.seeds.layouts import Layout
from esper.networks.seeds.network import call_model
from esper.networks.seeds.outputs import Nested, list_tensors, map_tensors
from esper.networks.tasks.checks.axes import halve
from esper.networks.tasks.loading import absolute_reference, load_task
from esper.networks.tasks.task import Task
from esper.studies.harvest.model import load_grown
from esper.studies.harvest.structure import PROGRAM_FILE, HarvestError

SAMPLE_ROWS = 3
"""Number of rows of the batch for the export. `torch.export` would fix the size of a batch of one row."""
_PROGRAM = (
    "import sys; from esper.studies.harvest.program import export_from_arguments as export; export(*sys.argv[1:])"
)
"""Program of the other process."""
_MAX_RELATIVE_DIFFERENCE = 1e-4
"""Maximum difference between equal outputs, caused by rounding, relative to the largest output."""


def export_program(directory: Path, task: Task, sample: Nested) -> str | None:
    """Write `program.pt2` into the directory of a harvest. Return why there is no program; None if there is one.

    The export runs in another process. A task of a Python session cannot be imported there, and is exported in this
    process.

    Args:
        sample: Inputs of `SAMPLE_ROWS` samples, on the CPU. They are not stored.
    """
    reference = absolute_reference(task)
    if reference is None:
        return _export(directory, task, sample)
    with tempfile.TemporaryDirectory(prefix="esper-") as temporary:
        inputs, result = Path(temporary) / "sample.safetensors", Path(temporary) / "result.json"
        inputs.write_bytes(safetensors.torch.save(_named_inputs(sample)))
        command, environment = python_command(_PROGRAM, str(directory), reference, str(inputs), str(result))
        child = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        if child.returncode or not result.exists():
            last = child.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
            return f"the exporting process ended with exit code {child.returncode}: {last[-1]}"
        return msgspec.json.decode(result.read_bytes(), type=str | None)


def _named_inputs(sample: Nested) -> dict[str, Tensor]:
    named = cast("dict[str, Tensor]", sample) if isinstance(sample, dict) else {_INPUT: sample}
    return {name: tensor.contiguous() for name, tensor in named.items()}


_INPUT = ""
"""Name of the sample of a model that is called with one tensor; not a name of a keyword argument."""


def _export(directory: Path, task: Task, sample: Nested) -> str | None:
    """Write a program for all lengths of sequences if model and exporter allow it, else for those of the sample."""
    model, path = load_grown(directory, task).eval(), directory / PROGRAM_FILE
    batches = [sample, map_tensors(lambda tensor: tensor[:1], sample)]
    shorter = [batch for batch in _shortened(sample) if _accepts(model, batch)]
    if shorter and _export_with(model, [*batches, *shorter], path, torch.export.Dim.AUTO) is None:
        return None
    return _export_with(model, batches, path, torch.export.Dim.STATIC)


def _export_with(model: nn.Module, batches: Sequence[Nested], path: Path, sizes: Any) -> str | None:
    """Write a program, compare its outputs, and return why it is not written; None if it is.

    Args:
        batches: Inputs of the comparison, first those of the export.
        sizes: Whether the exporter fixes the sizes of all axes but the first: `STATIC`, or `AUTO` if it decides.
    """
    try:
        expected = [seeded_output(model, batch) for batch in batches]  # fills the model's caches with real tensors
        plain = use_plain_layers(copy.deepcopy(model))
        with forked_generators(1):  # a number that is drawn here becomes a constant, and differs from those above
            _write_program(plain, batches[0], path, sizes)
        exported = torch.export.load(path).module()
        found = [seeded_output(exported, batch) for batch in batches]
        difference = significant_difference(found, expected)
    except user_errors() as error:  # the exporter and the model raise errors of any type; all are reported
        path.unlink(missing_ok=True)
        return describe_export_error(error)
    if difference is not None:
        path.unlink()
        return f"the outputs of the program differ from those of the model by {difference:.2g}"
    return None


def _shortened(sample: Nested) -> list[Nested]:
    """Return halves of sequences, one for each size of their axes, which may be their length; none of pictures."""
    tensors = list_tensors(sample)
    are_pictures = any(tensor.dim() > len(Layout.BTC) for tensor in tensors)
    sizes = set[int]() if are_pictures else {size for tensor in tensors for size in tensor.shape[1:] if size > 1}
    return [map_tensors(partial(halve, size=size), sample) for size in sorted(sizes)]


def _accepts(model: nn.Module, inputs: Nested) -> bool:
    try:
        seeded_output(model, inputs)
    except user_errors():  # most models of features and pictures accept no other sizes
        return False
    return True


def describe_export_error(error: BaseException) -> str:
    """Return reason and advice of an error of the exporter, and the line of the user's code, as one sentence.

    The message of the exporter has many lines. Most of them are about its logs.
    """
    lines = exception_text(error).splitlines() or ["no message"]
    reason = _LOGS.sub("", lines[0]).rstrip(" .!")
    matches = [(found, line[found.end() :]) for line in lines[1:] if (found := _ADVICE.match(line))]
    reasons = [text.split(". ")[0].rstrip(" .:") for found, text in matches if not found["number"]]
    choices = [text for found, text in matches if found["number"]]
    places = [(file, int(line), "") for file, line in _PLACE.findall("\n".join(lines))]
    place = find_own(places, libraries=False)
    where = f" ({place[0]}, line {place[1]})" if place else describe_origin(error, libraries=False)
    sentence = "; ".join((f"{type(error).__name__}: {reason}{where}", *reasons))
    return f"{sentence}: {', '.join(choices)}" if choices else sentence


_LOGS = re.compile(r"\s*(\(unhinted: |For more information).*")
"""End of a first line that has no reason."""
_ADVICE = re.compile(r"\s*(- |(?P<number>\d+)\. |(?=consider |To fix the error))")
"""Beginning of a line that has a reason or an advice; with a number, one of several changes."""
_PLACE = re.compile(r'^ *File "(.+)", line (\d+), in ', re.MULTILINE)


def _write_program(model: nn.Module, sample: Nested, path: Path, sizes: Any) -> None:
    batch = torch.export.Dim("batch", min=1)
    shapes = map_tensors(lambda tensor: {0: batch, **dict.fromkeys(range(1, tensor.dim()), sizes)}, sample)
    if isinstance(sample, dict):
        named = cast("dict[str, Tensor]", sample)
        program = torch.export.export(_WithNamedInputs(model, named), (), named, dynamic_shapes=shapes, strict=False)
    else:
        program = torch.export.export(model, (sample,), dynamic_shapes=((shapes,),), strict=False)
    program.example_inputs = None  # the user's data stay with the user
    torch.export.save(program, path)


class _WithNamedInputs(nn.Module):
    """A model whose `forward` names its keyword arguments, because the exporter reads them from the signature."""

    def __init__(self, model: nn.Module, names: Iterable[str]) -> None:
        super().__init__()
        self.model = model

        def forward(**inputs: Tensor) -> Nested:
            return model(**inputs)

        parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
        setattr(forward, "__signature__", inspect.Signature(parameters))  # noqa: B010 (functions do not declare it)
        self.forward = forward


@torch.no_grad()
def seeded_output(model: nn.Module, inputs: Nested, random_seed: int = 0) -> Nested:
    """Return the output of a model, which may draw random numbers in its forward pass."""
    with forked_generators(random_seed):
        return call_model(model, inputs)


def significant_difference(output: Nested, expected: Nested) -> float | None:
    """Return the largest difference between two outputs of the same structure; None if it may come from rounding."""
    pairs = zip(list_tensors(output), list_tensors(expected), strict=True)
    difference = max(float((value.float() - wanted.float()).abs().max()) for value, wanted in pairs)
    largest = max(float(tensor.float().abs().max()) for tensor in list_tensors(expected))
    return difference if difference > _MAX_RELATIVE_DIFFERENCE * largest else None


def use_plain_layers(model: nn.Module) -> nn.Module:
    """Replace the layers of this package by those of `torch.nn` that compute the same, in place; return the model."""
    for module in list(model.modules()):
        for name, layer in list(module.named_children()):
            if plain := _plain_layer(layer):
                plain.train(layer.training).load_state_dict(layer.state_dict())
                setattr(module, name, plain)
    return model


def _plain_layer(layer: nn.Module) -> nn.Module | None:
    match layer:
        case Convolution() | PointwiseConv():
            return nn.Conv2d(
                layer.in_channels,
                layer.out_channels,
                cast("Any", layer.kernel_size),
                padding=cast("Any", layer.padding),
                groups=layer.groups,
                bias=layer.bias is not None,
            )
        case FastBatchNorm2d():
            return nn.BatchNorm2d(layer.num_features, layer.eps, layer.momentum)
        case Float32GroupNorm():
            return nn.GroupNorm(layer.num_groups, layer.num_channels, layer.eps)
        case _:
            return None


def export_from_arguments(directory: str, reference: str, sample_file: str, result_file: str) -> None:
    """Export in the other process. The result file receives why there is no program, or null, as JSON."""
    named = safetensors.torch.load(Path(sample_file).read_bytes())
    sample = named.get(_INPUT, named)
    try:
        problem = _export(Path(directory), load_task(reference), sample)
    except (HarvestError, TaskError) as error:
        problem = str(error)
    Path(result_file).write_bytes(msgspec.json.encode(problem))
