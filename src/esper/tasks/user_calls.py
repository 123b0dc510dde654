"""Calls of a task's functions in dry runs. Their exceptions and wrong results become errors that name the field."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

from esper.config import TaskError
from esper.growth.network import call_model
from esper.growth.outputs import Nested, list_tensors, map_tensors
from esper.isolation import isolated
from esper.tasks.task import Task, describe_type
from esper.user_code import describe_exception, user_errors

Result = TypeVar("Result")


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

    def call_model(self, model: nn.Module, x: Nested) -> Nested:
        """Return the output of the model.

        Raises:
            TaskError: It raises an exception, or changes its inputs in place.
        """
        before = map_tensors(torch.clone, x)
        output = self.call("model", lambda: call_model(model, x))
        pairs = zip(list_tensors(before), list_tensors(x), strict=True)
        if not all(torch.equal(old, new) for old, new in pairs):
            raise self.error("model", "it changes its inputs in place, which all envs share; compute new tensors")
        return output


def describe_value(value: object) -> str:
    """Return the type and shape of a tensor, or the type of another value of the user's code, for a message."""
    return f"{value.dtype} of shape {list(value.shape)}" if isinstance(value, Tensor) else describe_type(value)
