"""Calls of a task's functions in dry runs. Their exceptions and wrong results become errors that name the field."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

from esper.common.configuration.config import TaskError
from esper.common.seeding import forked_generators
from esper.common.user_code.isolation import isolated
from esper.common.user_code.references import describe_exception, describe_type, user_errors
from esper.networks.seeds.network import call_model
from esper.networks.seeds.outputs import Nested, are_equal, list_tensors, map_tensors
from esper.networks.tasks.splits import float32_line
from esper.networks.tasks.task import Task

Result = TypeVar("Result")
_SEED = 0


class UserCalls:
    """Calls the functions of one task."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def where(self, field: str) -> str:
        """Return the field, the task and its file, for a message."""
        file = f" ({self._task.source.absolute})" if self._task.source else ""
        return f"{field} of task {self._task.name}{file}"

    def error(self, field: str, problem: str) -> TaskError:
        """Return the error of a field."""
        return TaskError(f"{self.where(field)}: {problem}")

    def call(self, field: str, function: Callable[[], Result]) -> Result:
        """Call a function of the user.

        Args:
            field: Field of the task to which it belongs.

        Raises:
            TaskError: It raises an exception.
        """
        try:
            with isolated(self.where(field)):
                return function()
        except TaskError:
            raise
        except user_errors() as error:
            raise self.error(field, describe_exception(error)) from error

    def call_twice(self, field: str, function: Callable[..., Result], *arguments: Nested) -> Result:
        """Call a function of the user as `call` does, twice with copies of the arguments and the same random seeds.

        Raises:
            TaskError: It raises an exception, or its results differ.
        """
        results: list[Result] = []
        for _ in range(2):
            copies = map_tensors(torch.clone, arguments)
            with forked_generators(_SEED):
                results.append(self.call(field, lambda copies=copies: function(*copies)))
        if not are_equal(*results):
            problem = "equal arguments and random seeds give different results, so it has state that no checkpoint"
            raise self.error(field, f"{problem} contains; pass a function without state")
        return results[0]

    def call_model(self, model: nn.Module, x: Nested) -> Nested:
        """Return the output of the model.

        Raises:
            TaskError: It raises an exception, or changes its inputs in place.
        """
        before = map_tensors(torch.clone, x)
        try:
            output = self.call("model", lambda: call_model(model, x))
        except TaskError as error:
            raise self._type_error(model, before) or error from error.__cause__
        pairs = zip(list_tensors(before), list_tensors(x), strict=True)
        if not all(torch.equal(old, new) for old, new in pairs):
            raise self.error("model", "it changes its inputs in place, which all envs share; compute new tensors")
        return output

    def _type_error(self, model: nn.Module, x: Nested) -> TaskError | None:
        """Return the error of a model that fails only because inputs and weights differ in type; else None."""
        weights = next((parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()), None)
        others = [tensor.dtype for tensor in list_tensors(x) if tensor.dtype not in (weights, torch.bool)]
        if weights is None or not others:
            return None
        try:
            converted = map_tensors(lambda tensor: tensor.to(weights) if tensor.dtype in others else tensor, x)
            self.call("model", lambda: call_model(model, converted))
        except TaskError:
            return None
        found = f"the inputs of the split 'train' are {others[0]}, and the weights of the model {weights}"
        if weights is not torch.float32:
            return self.error("model", f"{found}; return model.float(), and choose the precision of a run with --amp")
        return self.error("data", f"{found}; convert them: {float32_line('x')}")


def describe_value(value: object) -> str:
    """Return the type and shape of a tensor, or the type of another value of the user's code, for a message."""
    return f"{value.dtype} of shape {list(value.shape)}" if isinstance(value, Tensor) else describe_type(value)
