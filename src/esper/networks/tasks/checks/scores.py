"""Checks of a score: the default needs classes as targets, and every score must tell outputs apart.

Shapes: B samples of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import cast

import torch
from torch import Tensor

from esper.common.seeding import make_generator
from esper.networks.seeds.outputs import Nested, list_tensors, map_tensors
from esper.networks.tasks.losses import CrossEntropy, loss_of, score_of
from esper.networks.tasks.task import Task
from esper.networks.tasks.user_calls import UserCalls, describe_value

_SEED = 0
_LOGIT = 10.0
"""Size of the logits of an output that is certain of its class."""
_MEAN_PER_SAMPLE = ".flatten(1).mean(1)"
_TOLERANCE = 1e-6
"""Maximum difference between values of a score that count as equal."""


def check_default_score(task: Task, output: Nested, targets: Nested) -> None:
    """Refuse a task without a score whose outputs and targets have no accuracy.

    Raises:
        TaskError: The targets are not class indices, or their shape does not fit the output.
    """
    if task.score is not None or _has_accuracy(output, targets):
        return
    found = f"the model returns {describe_value(output)}, and the targets are {describe_value(targets)}"
    problem = f"is missing, and the accuracy needs one output per class and class indices as targets; {found}"
    raise UserCalls(task).error("score", f"{problem}; {_suggest_score(output, targets)}")


def check_output_type(task: Task, output: Nested, targets: Nested, mode: str) -> None:
    """Refuse an output that the cross-entropy, as the loss of a task, cannot read, because it is not a tensor.

    Args:
        mode: Mode of the model, `training` or `evaluation`.

    Raises:
        TaskError: The message has the lines that take the logits from the output.
    """
    if isinstance(output, Tensor) or not isinstance(loss_of(task), CrossEntropy):
        return
    advice = "return them from forward"
    if logits := _find_logits(output, targets):
        lines = [f"loss=lambda output, y: esper.cross_entropy({logits}, y)"]
        if task.score is None:
            lines.append(f"score=lambda output, y: esper.accuracy({logits}, y)")
        advice = f"pass {' and '.join(lines)}"
    problem = f"returned {describe_value(output)} in {mode} mode, and the cross-entropy needs a tensor of logits"
    raise UserCalls(task).error("model", f"{problem}; {advice}")


def _find_logits(output: Nested, targets: Nested) -> str | None:
    """Return code that takes the logits from an output of several parts, such as `output.logits`.

    They are the smallest tensor with enough classes for the targets, because hidden features are usually larger; or
    else the first tensor; None without a tensor.
    """
    if isinstance(output, tuple | list):
        parts = {f"output[{index}]": part for index, part in enumerate(cast("Sequence[object]", output))}
    elif isinstance(output, Mapping):
        parts = {f"output[{key!r}]": part for key, part in cast("Mapping[object, object]", output).items()}
    else:
        parts = {f"output.{name}": part for name, part in getattr(output, "__dict__", {}).items()}
    tensors = {code: part for code, part in parts.items() if isinstance(part, Tensor)}
    classes = int(targets.max()) + 1 if isinstance(targets, Tensor) else 0
    fitting = [
        code
        for code, part in tensors.items()
        if classes and any(part.shape[axis] >= classes for axis in _class_axes(part, targets))
    ]
    return min(fitting, key=lambda code: tensors[code].numel(), default=next(iter(tensors), None))


def _has_accuracy(output: Nested, targets: Nested) -> bool:
    if not isinstance(output, Tensor) or not isinstance(targets, Tensor) or targets.is_floating_point():
        return False
    return any(output.shape[axis] > 1 for axis in _class_axes(output, targets))


def _class_axes(output: Tensor, targets: Tensor) -> list[int]:
    """Return the axes of an output that its targets lack, the last one or the second one."""
    if output.dim() != targets.dim() + 1 or output.dim() < 2:
        return []
    shapes = {output.dim() - 1: output.shape[:-1], 1: output.shape[:1] + output.shape[2:]}
    return [axis for axis, shape in shapes.items() if shape == targets.shape]


def check_sensitivity(task: Task, output: Nested, targets: Nested, values_B: Tensor) -> None:
    """Refuse a score that has the same values for outputs that clearly differ.

    A strict score, such as an exact match, may be 0 for every output but the right one. It is refused only if the right
    output can be made from the targets.

    Args:
        values_B: Values of the score for the output; a scalar for a score of a whole split.

    Raises:
        TaskError: The score cannot tell outputs apart.
    """
    from_targets, is_complete = _outputs_from_targets(output, targets)
    if not is_complete and not bool(values_B.any()):
        return
    for other in (*_other_outputs(output), *from_targets):
        try:
            found = score_of(task)(other, targets)
        except Exception:  # noqa: BLE001 (the model would not return such outputs, for example negative ones)
            continue
        if found.shape != values_B.shape or not torch.allclose(found, values_B, rtol=0, atol=_TOLERANCE):
            return
    values = values_B.flatten()
    value = f"{values[0]:.3g}" if bool((values == values[0]).all()) else "the same values"
    others = "random and constant ones" + (", and for the targets themselves" if is_complete else "")
    problem = f"cannot tell outputs apart: it returned {value} for the outputs of the model, for {others}"
    raise UserCalls(task).error("score", f"{problem}; {_suggest_score(output, targets)}")


def _other_outputs(output: Nested) -> Iterator[Nested]:
    """Yield random outputs, a constant output, the outputs of other samples, and outputs of the opposite sign."""
    generator = make_generator(_SEED, "perturbation")

    def random(tensor: Tensor) -> Tensor:
        return torch.randn(tensor.shape, generator=generator).to(tensor.dtype)

    yield _map_floats(random, output)
    yield _map_floats(lambda tensor: random(tensor).sigmoid(), output)
    yield _map_floats(torch.zeros_like, output)
    yield _map_floats(lambda tensor: tensor.roll(1, 0), output)
    yield _map_floats(lambda tensor: -_LOGIT * tensor, output)


def _map_floats(function: Callable[[Tensor], Tensor], output: Nested) -> Nested:
    return map_tensors(lambda tensor: function(tensor) if tensor.is_floating_point() else tensor, output)


def _outputs_from_targets(output: Nested, targets: Nested) -> tuple[list[Nested], bool]:
    """Return outputs that are made from the targets, and True if all targets and all float outputs are used."""
    all_targets = list_tensors(targets)
    used: set[int] = set()
    is_complete = True

    def right_values(tensor: Tensor) -> list[Tensor]:
        nonlocal is_complete
        if not tensor.is_floating_point():
            return [tensor]
        for index, target in enumerate(all_targets):
            if found := _right_values(tensor, target):
                used.add(index)
                return found
        is_complete = False
        return [tensor]

    choices = [right_values(tensor) for tensor in list_tensors(output)]
    outputs: list[Nested] = []
    for turn in range(max(map(len, choices))):
        parts = iter(choices)
        outputs.append(map_tensors(lambda _, parts=parts, turn=turn: _cyclic(next(parts), turn), output))
    return outputs, is_complete and len(used) == len(all_targets)


def _cyclic(values: Sequence[Tensor], turn: int) -> Tensor:
    return values[turn % len(values)]


def _right_values(output: Tensor, target: Tensor) -> list[Tensor]:
    """Return tensors of the shape of an output that are right in a common sense; none if the shapes do not fit."""
    if output.shape in (target.shape, (*target.shape, 1)):
        values = target.reshape(output.shape).to(output.dtype)
        return [values, _LOGIT * (2 * values - 1)]
    if target.is_floating_point():
        return []
    found: list[Tensor] = []
    for axis in _class_axes(output, target):
        classes = target.long().clamp(min=0).unsqueeze(axis)  # an ignored target is negative
        if int(classes.max()) < output.shape[axis]:
            found.append(torch.zeros_like(output).scatter_(axis, classes, _LOGIT))
    return found


def _suggest_score(output: Nested, targets: Nested) -> str:
    """Return the advice to pass a score, with a line of code that fits the output and the targets."""
    logits = None if isinstance(output, Tensor) else _find_logits(output, targets)
    if logits and isinstance(targets, Tensor) and not targets.is_floating_point():
        return f"pass score=lambda output, y: esper.accuracy({logits}, y)"
    if not isinstance(output, Tensor) or not isinstance(targets, Tensor):
        return "pass score=, a function of output and targets with one value in [0, 1] per sample"
    if output.shape not in (targets.shape, (*targets.shape, 1)):
        code = "(output.argmax(1) == y).float()" if _class_axes(output, targets) == [1] else "..."
        return f"pass score=lambda output, y: {code}, one value in [0, 1] per sample"
    values = "output" if output.shape == targets.shape else "output.squeeze(-1)"
    is_binary = bool(((targets == 0) | (targets == 1)).all())
    if targets.dim() == 2 and targets.shape[1] > 1 and bool((targets.sum(1) - 1).abs().max() < _TOLERANCE):
        code = "(output.argmax(1) == y.argmax(1)).float()"
    elif is_binary:
        code = f"(({values} > 0) == (y > 0)).float(){_MEAN_PER_SAMPLE if targets.dim() > 1 else ''}"
    else:
        code = f"1 / (1 + ({values} - y).pow(2){_MEAN_PER_SAMPLE if targets.dim() > 1 else ''})"
    return f"pass a score in [0, 1], for example score=lambda output, y: {code}"
