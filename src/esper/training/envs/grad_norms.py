"""Statistics of the gradient norms of an epoch. Shapes: M batches, O owners of parameters."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def summarise_norms(norms: Sequence[list[Tensor]], device: torch.device, *, scaled: bool) -> Tensor:
    """Summarise the gradient norms of the batches of an epoch.

    Without loss scaling no batch is skipped, and a non-finite gradient makes the mean non-finite. Each owner is summed
    separately, so that the host's mean does not depend, to the bit, on the number of seeds.

    Args:
        norms: For each batch, the norm of each owner.

    Returns:
        [1 + 2 O] on the device: number of skipped batches, mean norm of each owner over the other batches, and number
        of batches in which the owner's gradient overflowed.
    """
    norm_OM = [torch.stack(norm_M) for norm_M in zip(*norms, strict=True)]
    if not norm_OM:
        return torch.zeros(1, device=device)
    if not scaled:
        mean_O = torch.stack([norm_M.mean() for norm_M in norm_OM])
        return torch.cat((mean_O.new_zeros(1), mean_O, torch.zeros_like(mean_O)))
    overflow_OM = torch.stack([~norm_M.isfinite() for norm_M in norm_OM])
    skipped_M = overflow_OM.any(dim=0)
    total_O = torch.stack([norm_M.masked_fill(skipped_M, 0.0).sum() for norm_M in norm_OM])
    return torch.cat((skipped_M.sum(dim=0, keepdim=True), total_O / (~skipped_M).sum(), overflow_OM.sum(dim=1)))
