"""Check of the blueprints of a slot: a new seed of each must run on the features of the slot."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from esper.config import TaskError
from esper.growth.blueprints import build_seed
from esper.growth.layouts import Layout
from esper.growth.site import SlotSite
from esper.seeding import forked_generators, make_generator
from esper.user_code import describe_exception, user_errors

_SEED = 0


def check_seeds(site: SlotSite, features: Tensor, where: str, *, channels_last: bool) -> None:
    """Call a new seed of each blueprint that a slot offers, as training does.

    Args:
        features: Output of its submodule for a batch of samples.
        where: Field of the slot and name of the task, for the message.
        channels_last: True if the run stores pictures in the channels-last memory format.

    Raises:
        TaskError: A seed raises an exception, or does not return a tensor like its input.
    """
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    x = features.to(memory_format=memory_format) if site.layout is Layout.BCHW else site.layout.to_canonical(features)
    for name in site.blueprints:
        try:
            with forked_generators(_SEED), torch.no_grad():
                seed = build_seed(name, site.layout, site.channels, site.is_causal, make_generator(_SEED, "seed check"))
                output = cast("object", seed.to(memory_format=memory_format)(x))
        except user_errors() as error:
            raise TaskError(_describe(name, where, describe_exception(error))) from error
        if not isinstance(output, Tensor) or (output.shape, output.dtype) != (x.shape, x.dtype):
            found = f"{output.dtype} {list(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
            raise TaskError(_describe(name, where, f"returned {found} for {x.dtype} {list(x.shape)}"))


def _describe(name: str, where: str, problem: str) -> str:
    return f"{where}: the blueprint {name!r} does not run there: {problem}; correct it or leave it out of `blueprints`"
