"""Check of the blueprints of a slot: a new seed of each must run on the features of the slot."""

from __future__ import annotations

from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from esper.common.configuration.config import TaskError
from esper.common.seeding import forked_generators, make_generator
from esper.common.user_code.references import describe_exception, user_errors
from esper.networks.seeds.blueprints import build_seed
from esper.networks.seeds.layouts import Layout
from esper.networks.seeds.masks import call_seed, hide_padding
from esper.networks.seeds.outputs import are_equal
from esper.networks.seeds.site import SlotSite
from esper.networks.seeds.tensors import copy_tensors
from esper.networks.tasks.checks.state import STATE_PROBLEM, call_from, size_problem


def check_seeds(site: SlotSite, features: Tensor, mask: Tensor | None, where: str, *, channels_last: bool) -> None:
    """Call new seeds of each blueprint that a slot offers, as training does.

    Two seeds with equal weights and buffers must return equal outputs.

    Args:
        features: Output of its submodule for a batch of samples.
        mask: Mask of the slot for this batch, [B, T].
        where: Field of the slot and name of the task, for the message.
        channels_last: True if the run stores pictures in the channels-last memory format.

    Raises:
        TaskError: A seed raises an exception, does not return a tensor like its input, changes the size of a buffer, or
            has state besides its weights and buffers.
    """
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    x = features.to(memory_format=memory_format) if site.layout is Layout.BCHW else site.layout.to_canonical(features)
    x = hide_padding(x, mask, site.layout.canonical.channel_axis)
    for name in site.blueprints:
        try:
            seed, other = (new_seed(site, name, number).to(memory_format=memory_format) for number in range(2))
            start = copy_tensors(seed)
            output = cast("object", call_from(start, seed, partial(call_seed, seed, x, mask)))
            problem = size_problem(start, seed)
            if not problem:
                others = [call_from(start, other, partial(call_seed, other, x, mask)) for _ in range(2)]
                problem = "" if all(are_equal(output, found) for found in others) else STATE_PROBLEM
        except user_errors() as error:
            raise TaskError(_describe(name, where, describe_exception(error))) from error
        if not isinstance(output, Tensor) or (output.shape, output.dtype) != (x.shape, x.dtype):
            found = f"{output.dtype} {list(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
            raise TaskError(_describe(name, where, f"returned {found} for {x.dtype} {list(x.shape)}"))
        if problem:
            raise TaskError(_describe(name, where, problem))


def new_seed(site: SlotSite, blueprint: str, number: int = 0) -> nn.Module:
    """Return a seed for a check, on the CPU, without changing the global generators.

    Args:
        number: Random seed of its initial values.
    """
    with forked_generators(number), torch.no_grad():
        generator = make_generator(number, "seed check")
        return build_seed(blueprint, site.layout, site.channels, site.is_causal, generator)


def _describe(name: str, where: str, problem: str) -> str:
    return f"{where}: the blueprint {name!r} does not run there: {problem}; correct it or leave it out of `blueprints`"
