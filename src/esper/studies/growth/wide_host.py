"""Wide host: a host with about as many parameters as a grown network, without seeds."""

from __future__ import annotations

from bisect import bisect_left
from functools import cache, partial

from torch import nn

from esper.common.seeding import forked_generators
from esper.networks.tasks.hosts import widen
from esper.networks.tasks.probe import probe_task
from esper.networks.tasks.profile import TaskProfile
from esper.networks.tasks.splits import TaskData
from esper.networks.tasks.task import Task
from esper.networks.tasks.user_calls import UserCalls

_WIDTH_FACTORS = 200
"""Number of width factors among which that of the wide host is chosen."""


def choose_width(task: Task, profile: TaskProfile, data: TaskData, parameter_ratio: float) -> float:
    """Return the factor of the widths of a host that has about as many parameters as a grown network.

    Args:
        task: Task with a `wide_model`.
        parameter_ratio: Parameters of the grown network, divided by those of the host.

    Raises:
        TaskError: `wide_model` raises an exception, or its host does not fit the task.
    """
    wide_model = task.wide_model
    assert wide_model is not None
    user, host = UserCalls(task), profile.host_parameters
    factors = [1 + (parameter_ratio - 1) * index / _WIDTH_FACTORS for index in range(_WIDTH_FACTORS + 1)]

    @cache
    def size_of(factor: float) -> float:
        return user.call("wide_model", partial(_count_parameters, partial(wide_model, factor))) / host

    at = bisect_left(factors, parameter_ratio, key=size_of)  # a wider host is larger, so few of them need to be built
    factor = min(factors[max(at - 1, 0) : at + 1], key=lambda factor: abs(size_of(factor) - parameter_ratio))
    probe_task(widen(task, factor), data, [site.name for site in profile.sites])
    return factor


def _count_parameters(wide_model: partial[nn.Module]) -> int:
    with forked_generators(0):
        return sum(parameter.numel() for parameter in wide_model().parameters())
