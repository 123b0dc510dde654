"""Check of the state of a model: its output must follow from weights, buffers, inputs and random seeds.

A run saves and restores nothing else. With other state, a resumed run, a simulation or an exported network would
compute other values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from esper.common.seeding import forked_generators
from esper.networks.seeds.outputs import Nested, are_equal
from esper.networks.seeds.tensors import copy_tensors, named_tensors
from esper.networks.tasks.hosts import Host
from esper.networks.tasks.task import Task
from esper.networks.tasks.user_calls import UserCalls

STATE_PROBLEM = (
    "equal weights, buffers, inputs and random seeds give different outputs, so it has state that no checkpoint "
    "contains; keep state in buffers (register_buffer), and draw random numbers from the generators of torch, NumPy "
    "and random, which a run seeds, not from your own"
)
_SEED = 0


def check_state(task: Task, host: Host, other: Host, batches: Sequence[Nested]) -> None:
    """Call two hosts with equal weights, buffers, inputs and random seeds, and compare their outputs.

    Between the compared calls, the hosts are called in the other mode, or with another batch.

    Args:
        host: Host with the weights and buffers of all calls. It is left as it was.
        other: Host with other initial values, which are overwritten.
        batches: Inputs of two batches; the outputs for the second one are compared.

    Raises:
        TaskError: Two calls return different values, a buffer changes its size, or the hosts differ in their sizes.
    """
    user = UserCalls(task)
    start = copy_tensors(host.model)
    if problem := size_problem(start, other.model):
        raise user.error("model", f"{problem} in the second call of the function; build equal layers in each call")
    before, x = batches
    expected: dict[bool, Nested] = {}
    of_host = [(host, x, True), (host, x, False)]
    for called, inputs, is_training in [*of_host, *of_host, (other, before, True), (other, x, False), (other, x, True)]:
        called.set_mode(is_training=is_training)
        output = call_from(start, called.model, partial(user.call_model, called.model, inputs))
        if problem := size_problem(start, called.model):
            raise user.error("model", f"{problem} after a forward pass; create it with its final size in __init__")
        if inputs is x and not are_equal(output, expected.setdefault(is_training, output)):
            raise user.error("model", STATE_PROBLEM)
    _restore(host.model, start)


def call_from(start: Mapping[str, Tensor], module: nn.Module, call: Callable[[], Nested]) -> Nested:
    """Give a module these weights and buffers, seed the generators, and return the result of a call.

    Args:
        start: Result of `copy_tensors` for a module of the same sizes.
    """
    _restore(module, start)
    with forked_generators(_SEED), torch.no_grad():
        return call()


@torch.no_grad()
def _restore(module: nn.Module, start: Mapping[str, Tensor]) -> None:
    for name, tensor in named_tensors(module).items():
        if not are_equal(tensor, start[name]):  # an expanded tensor cannot be written
            tensor.copy_(start[name])


def size_problem(start: Mapping[str, Tensor], module: nn.Module) -> str:
    """Return which weight or buffer of a module has another shape or type than at the start; empty if none has."""
    found, parameters = named_tensors(module), dict(module.named_parameters())
    for name in dict.fromkeys((*start, *found)):
        before, after = (_describe_size(tensors.get(name)) for tensors in (start, found))
        if before != after:
            return f"the {'parameter' if name in parameters else 'buffer'} {name!r} is {after} instead of {before}"
    return ""


def _describe_size(tensor: Tensor | None) -> str:
    return "None" if tensor is None else f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
