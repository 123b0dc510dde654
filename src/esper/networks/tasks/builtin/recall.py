"""Recall: multi-query associative recall, generated. The first task that only a combination of seeds solves.

A sequence holds pairs of a key and its value, then the keys again, in another order; the model answers each of these
with the value that stood behind the key (Arora et al., 2023, "Zoology: Measuring and Improving Recall in Efficient
Language Models"). One layer of attention can find the key, but not the token after it: that takes two layers that mix
positions.

Shapes: N samples, P pairs, T = 3 P tokens, C channels, K values.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from esper.networks.tasks.optimizers import AdamW
from esper.networks.tasks.task import Chance, Slot, Task

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from esper.networks.tasks.splits import Splits

PAIRS = 4
"""Pairs of a sequence."""
KEYS = VALUES = 16
"""Number of different keys, and of different values."""
WIDTH = 32
"""Channels of the host."""
SAMPLES = {"train": 8192, "validation": 256, "test": 512}
"""Number of samples of each split."""
IGNORED = -100
"""Target of a position that is not asked for."""


def load(data_dir: Path | None = None) -> Splits:  # noqa: ARG001 (nothing is read)
    """Generate the sequences from a fixed random seed."""
    import torch

    from esper.networks.tasks.splits import Splits

    generator = torch.Generator().manual_seed(0)
    return Splits(**{name: _draw_split(size, generator) for name, size in SAMPLES.items()})


def _draw_split(size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return tokens and targets, [N, T]: keys are the tokens 0 to 15, values 16 to 31; targets are values, 0 to 15."""
    import torch

    def draw_distinct(count: int, of: int) -> Tensor:
        return torch.rand(size, of, generator=generator).argsort(dim=1)[:, :count]

    keys_NP = draw_distinct(PAIRS, KEYS)
    values_NP = torch.randint(VALUES, (size, PAIRS), generator=generator)
    pairs_NT = torch.stack((keys_NP, KEYS + values_NP), dim=2).flatten(1)
    asked_NP = draw_distinct(PAIRS, PAIRS)
    tokens_NT = torch.cat((pairs_NT, keys_NP.gather(1, asked_NP)), dim=1)
    targets_NT = torch.cat((torch.full_like(pairs_NT, IGNORED), values_NP.gather(1, asked_NP)), dim=1)
    return tokens_NT, targets_NT


def build_host(width_factor: float = 1.0) -> nn.Module:
    """Return the host: embeddings of tokens and positions, two MLPs on each position, and a linear head.

    No part of it mixes positions, so that the host alone cannot do better than chance.
    """
    import torch
    from torch import nn

    width = round(width_factor * WIDTH)

    class PositionwiseHost(nn.Module):  # defined here, because importing the module must not import torch
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(KEYS + VALUES, width)
            self.positions = nn.Parameter(0.1 * torch.randn(3 * PAIRS, width))
            self.first, self.second = (
                nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
                for _ in range(2)
            )
            self.mixed = nn.ModuleList((nn.Identity(), nn.Identity()))
            self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, VALUES))

        def forward(self, tokens_NT: Tensor) -> Tensor:
            h_NTC = self.mixed[0](self.tokens(tokens_NT) + self.positions)
            h_NTC = self.mixed[1](h_NTC + self.first(h_NTC))
            return self.head(h_NTC + self.second(h_NTC))

    return PositionwiseHost()


RECALL_TASK = Task(
    name="recall",
    model=build_host,
    wide_model=build_host,
    slots={"first": Slot("mixed.0", layout="BTC"), "second": Slot("mixed.1", layout="BTC")},
    data=load,
    chance=Chance(loss=math.log(VALUES), score=1 / VALUES),
    optimizer=AdamW(1e-2),
    seed_optimizer=AdamW(1e-2),
    batch_size=256,
    samples_per_epoch=512,
    float32_defaults=True,
)
"""Key-value pairs with a host that cannot mix positions; two grown seeds can answer every question."""
