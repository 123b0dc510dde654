"""Courses of `research/teach.py`: tasks with hosts that need growth, and tasks with hosts that are large enough.

They have four layouts, two to four slots, and 15, 20, 40 or 100 steps. No course has the deepest host of
`digits_family`, `synthetic`, an example, or a task that `growth_tasks.py` defines: they are for the evaluation.
Importing this file imports torch.

Shapes: N or B samples, T positions, W waves, C channels, L positions of a sequence.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from research.generalist import ARMS, SPIRALS
from research.growth_tasks import explained, squared_error
from torch import Tensor, nn

import esper
from esper.networks.tasks.builtin.digits_family import DIGITS_FAMILY, digits_host
from esper.networks.tasks.builtin.mnist1d import CLASSES, MNIST1D_TASK
from esper.networks.tasks.builtin.recall import KEYS, PAIRS, RECALL_TASK, VALUES
from esper.networks.tasks.family import LEARNING_RATE

TOKENS, SENTENCE = 12, 16
"""Number of different tokens, and of tokens in a sentence."""
STATES = 40
"""Number of pairs of tokens whose next token is nearly certain; after all other pairs it is random."""
CERTAINTY = 0.9
"""Probability of the nearly certain token, besides random hits."""
DIRECTIONS, STRIPE_NOISE = 4, 0.8
"""Number of directions of the stripes, and standard deviation of their noise."""
CLOUDS = 6
"""Number of classes of the clouds."""
WAVES = 8
"""Number of waves of the plane."""


class RoomyRecall(nn.Module):
    """A host that mixes each token with the one before it and has an attention layer, which is enough for `recall`."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.tokens = nn.Embedding(KEYS + VALUES, width)
        self.positions = nn.Parameter(0.1 * torch.randn(3 * PAIRS, width))
        self.before = nn.Conv1d(width, width, 2)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.mixed = nn.ModuleList((nn.Identity(), nn.Identity()))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.head = nn.Linear(width, VALUES)

    def forward(self, tokens_NT: Tensor) -> Tensor:
        """Map tokens [N, T] to logits [N, T, K]."""
        h_NTC = self.mixed[0](self.tokens(tokens_NT) + self.positions)
        shifted = F.pad(self.norms[0](h_NTC).transpose(1, 2), (1, 0))
        h_NTC = h_NTC + self.before(shifted).transpose(1, 2)
        normal_NTC = self.norms[1](h_NTC)
        h_NTC = self.mixed[1](h_NTC + self.attention(normal_NTC, normal_NTC, normal_NTC, need_weights=False)[0])
        return self.head(self.norms[2](h_NTC))


def roomy_mlp(width: int = 64) -> nn.Module:
    """Return an MLP that is large enough for the spirals."""
    layers = [nn.Linear(2, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, ARMS))


def roomy_conv1d(width: int = 16) -> nn.Module:
    """Return a network of convolutions over five positions, large enough for `mnist1d`."""

    def block(inputs: int, outputs: int) -> nn.Module:
        conv = nn.Conv1d(inputs, outputs, 5, padding=2, bias=False)
        return nn.Sequential(conv, nn.BatchNorm1d(outputs, momentum=0.5), nn.ReLU())

    pools = nn.MaxPool1d(2), nn.MaxPool1d(2)
    head = nn.Linear(2 * width * 10, CLASSES)
    return nn.Sequential(
        block(1, width), pools[0], block(width, 2 * width), pools[1], block(2 * width, 2 * width), nn.Flatten(), head
    )


class Speaker(nn.Module):
    """A language model in which only attention mixes the positions; without a layer of it, nothing does.

    Args:
        layers: Number of causal attention layers.
    """

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(TOKENS, width)
        self.positions = nn.Parameter(0.1 * torch.randn(SENTENCE, width))
        self.attention = nn.ModuleList(nn.MultiheadAttention(width, 2, batch_first=True) for _ in range(layers))
        self.mixed = nn.ModuleList((nn.Identity(), nn.Identity()))
        self.first, self.second = (
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(2)
        )
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, TOKENS))

    def forward(self, tokens_NT: Tensor) -> Tensor:
        """Map tokens [N, T] to logits of the next token, [N, T, K]."""
        mask_TT = nn.Transformer.generate_square_subsequent_mask(tokens_NT.shape[1])
        h_NTC = self.tokens(tokens_NT) + self.positions
        for attention in self.attention:
            h_NTC = h_NTC + attention(h_NTC, h_NTC, h_NTC, attn_mask=mask_TT, need_weights=False)[0]
        h_NTC = self.mixed[0](h_NTC)
        h_NTC = self.mixed[1](h_NTC + self.first(h_NTC))
        return self.head(h_NTC + self.second(h_NTC))


def sentences(directory: Path | None) -> esper.Splits:  # noqa: ARG001 (nothing is read)
    """Return sentences of a language in which some pairs of tokens determine the next one, and the next tokens."""
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randperm(TOKENS * TOKENS, generator=generator)[:STATES]
    certain = torch.zeros(TOKENS * TOKENS, dtype=torch.bool).index_fill(0, chosen, True)
    following = torch.randint(TOKENS, (TOKENS * TOKENS,), generator=generator)

    def draw(size: int) -> tuple[Tensor, Tensor]:
        tokens = [torch.randint(TOKENS, (size,), generator=generator) for _ in range(2)]
        while len(tokens) <= SENTENCE:
            state = tokens[-2] * TOKENS + tokens[-1]
            kept = certain[state] & (torch.rand(size, generator=generator) < CERTAINTY)
            tokens.append(torch.where(kept, following[state], torch.randint(TOKENS, (size,), generator=generator)))
        whole_NT = torch.stack(tokens, dim=1)
        return whole_NT[:, :-1].contiguous(), whole_NT[:, 1:].contiguous()

    return esper.Splits(train=draw(2048), validation=draw(256), test=draw(256))


SPEECH = esper.Task(
    name="speech",
    model=lambda: Speaker(16, 0),
    slots={name: esper.Slot(f"mixed.{index}", layout="BTC") for index, name in enumerate(("first", "second"))},
    data=sentences,
    optimizer=esper.AdamW(5e-3),
    seed_optimizer=esper.AdamW(1e-2),
    batch_size=128,
    samples_per_epoch=512,
)
ROOMY_SPEECH = replace(SPEECH, name="roomy_speech", model=lambda: Speaker(32, 2))
ROOMY_RECALL = replace(RECALL_TASK, name="roomy_recall", model=RoomyRecall, wide_model=None)
ROOMY_SPIRALS = replace(
    SPIRALS, name="roomy_spirals", model=roomy_mlp, slots={"first": "1", "second": "3", "third": "5"}
)
ROOMY_MNIST1D = replace(MNIST1D_TASK, name="roomy_mnist1d", model=roomy_conv1d, wide_model=None, samples_per_epoch=512)
ROOMY_DIGITS = esper.Family(
    "roomy_digits",
    structures=[
        digits_host("short_3x3", (16, 32), kernel_size=3),
        digits_host("wide_3x3", (16, 32, 32), kernel_size=3),
        digits_host("middle_5x5", (8, 16, 16), kernel_size=5),
        digits_host("wide_1x1", (32, 64, 64), kernel_size=1),
    ],
    settings=DIGITS_FAMILY.settings,
)


def striped_pictures(directory: Path | None) -> esper.Splits:  # noqa: ARG001 (nothing is read)
    """Return noisy pictures of stripes, [N, 1, 12, 12], whose class is their direction and their distance."""
    generator = torch.Generator().manual_seed(0)
    rows, columns = torch.meshgrid(torch.linspace(0, 1, 12), torch.linspace(0, 1, 12), indexing="ij")

    def draw(size: int) -> tuple[Tensor, Tensor]:
        y = torch.randint(DIRECTIONS * 2, (size,), generator=generator)
        angle = (math.pi * (y % DIRECTIONS) / DIRECTIONS)[:, None, None]
        phase = 2 * math.pi * torch.rand(size, 1, 1, generator=generator)
        along = angle.cos() * rows + angle.sin() * columns
        wave = torch.sin(2 * math.pi * (2 + 2 * (y // DIRECTIONS))[:, None, None] * along + phase)
        return (wave + STRIPE_NOISE * torch.randn(size, 12, 12, generator=generator))[:, None], y

    return esper.Splits(train=draw(1024), validation=draw(256), test=draw(256))


def stripe_net(width: int = 12) -> nn.Module:
    """Return a plain convolutional network that is large enough for the stripes."""

    def block(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.ReLU())

    pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    head = nn.Linear(2 * width, 2 * DIRECTIONS)
    return nn.Sequential(
        block(1, width), nn.MaxPool2d(2), block(width, 2 * width), block(2 * width, 2 * width), pool, head
    )


def overlapping_clouds(directory: Path | None) -> esper.Splits:  # noqa: ARG001 (nothing is read)
    """Return points [N, 8] of normal distributions that overlap, and their class; no network separates them all."""
    generator = torch.Generator().manual_seed(0)
    centre = 1.2 * torch.randn(CLOUDS, 8, generator=generator)

    def draw(size: int) -> tuple[Tensor, Tensor]:
        y = torch.randint(CLOUDS, (size,), generator=generator)
        return centre[y] + 1.3 * torch.randn(size, 8, generator=generator), y

    return esper.Splits(train=draw(2048), validation=draw(512), test=draw(512))


def cloud_mlp(width: int = 24) -> nn.Module:
    """Return an MLP that is large enough for the clouds."""
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, CLOUDS))


def noisy_integrals(directory: Path | None) -> esper.Splits:  # noqa: ARG001 (nothing is read)
    """Return noisy signals [N, 1, L], and their moving sums over five positions without the noise, [N, 1, L]."""
    generator = torch.Generator().manual_seed(0)

    def draw(size: int) -> tuple[Tensor, Tensor]:
        clean = torch.randn(size, 1, 32, generator=generator)
        target = F.avg_pool1d(F.pad(clean, (2, 2)), 5, stride=1) * 5**0.5
        return clean + 0.3 * torch.randn(clean.shape, generator=generator), target

    return esper.Splits(train=draw(1024), validation=draw(256), test=draw(256))


def integral_net(width: int = 8) -> nn.Module:
    """Return a network of convolutions that is large enough for the integrals."""
    first = nn.Sequential(nn.Conv1d(1, width, 5, padding=2), nn.GELU())
    second = nn.Sequential(nn.Conv1d(width, width, 5, padding=2), nn.GELU())
    return nn.Sequential(first, second, nn.Conv1d(width, 1, 1))


SOLVED_DIGITS = esper.Family(
    "solved_digits",
    structures=[
        digits_host("plain_3x3", (8, 16, 16), kernel_size=3),
        digits_host("short_5x5", (16, 32), kernel_size=5),
        digits_host("large_3x3", (16, 32, 32), kernel_size=3),
    ],
    settings={"samples": DIGITS_FAMILY.settings["samples"], LEARNING_RATE: esper.Setting([0.1, 0.05])},
)
STRIPES = esper.Task(
    name="stripes",
    model=stripe_net,
    slots={"early": "0", "mid": "2", "late": "3"},
    data=striped_pictures,
    optimizer=esper.AdamW(3e-3),
    seed_optimizer=esper.AdamW(3e-3),
    batch_size=64,
    samples_per_epoch=256,
)
CLOUD_POINTS = esper.Task(
    name="clouds",
    model=cloud_mlp,
    slots={"first": "1", "second": "3"},
    data=overlapping_clouds,
    optimizer=esper.AdamW(3e-3),
    seed_optimizer=esper.AdamW(3e-3),
    samples_per_epoch=1024,
)
INTEGRALS = esper.Task(
    name="integrals",
    model=integral_net,
    slots={"first": esper.Slot("0", layout="BCL"), "second": esper.Slot("1", layout="BCL")},
    data=noisy_integrals,
    loss=squared_error,
    score=explained,
    score_name="explained variance",
    optimizer=esper.AdamW(5e-3),
    seed_optimizer=esper.AdamW(5e-3),
    batch_size=64,
    samples_per_epoch=256,
)


def plane_waves(directory: Path | None) -> esper.Splits:  # noqa: ARG001 (nothing is read)
    """Return points of the plane [N, 2], and the heights of waves there, [N, W]."""
    generator = torch.Generator().manual_seed(0)
    frequency_2W, phase_W = 2 * torch.randn(2, WAVES, generator=generator), 6 * torch.rand(WAVES, generator=generator)

    def draw(size: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(size, 2, generator=generator)
        return x, torch.sin(x @ frequency_2W + phase_W)

    return esper.Splits(train=draw(2048), validation=draw(512), test=draw(512))


def wave_mlp(width: int = 48) -> nn.Module:
    """Return an MLP that is large enough for the waves of the plane."""
    layers = [nn.Linear(2, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU()]
    return nn.Sequential(*layers, nn.Linear(width, WAVES))


FOUR_DIGITS = esper.Family(
    "four_digits",
    structures=[
        digits_host("four_3x3", (4, 8, 8, 8), kernel_size=3),
        digits_host("falling_1x1", (16, 12, 8, 4), kernel_size=1),
        digits_host("four_5x5", (8, 8, 16, 16), kernel_size=5),
    ],
    settings=DIGITS_FAMILY.settings,
)
PLANE_WAVES = esper.Task(
    name="plane_waves",
    model=wave_mlp,
    slots={"first": "1", "second": "3", "third": "5"},
    data=plane_waves,
    loss=squared_error,
    score=explained,
    score_name="explained variance",
    optimizer=esper.AdamW(1e-3),
    seed_optimizer=esper.AdamW(1e-3),
    batch_size=128,
    samples_per_epoch=1024,
)
SLOW_STRIPES = replace(STRIPES, name="slow_stripes", optimizer=esper.AdamW(5e-4), seed_optimizer=esper.AdamW(5e-4))
SLOW_INTEGRALS = replace(
    INTEGRALS, name="slow_integrals", optimizer=esper.AdamW(1.5e-3), seed_optimizer=esper.AdamW(1.5e-3)
)


class Course(NamedTuple):
    """Contexts of one task with one number of steps."""

    task: str
    """Reference of the task."""
    steps: int
    contexts: int
    """Number of contexts of the first iteration."""

    @property
    def name(self) -> str:
        """Name of the folder of its lessons."""
        return f"{self.task.rpartition(':')[2]}-{self.steps}".lower()


_HERE = "research/curriculum.py"
COURSES = (
    Course("research/transfer.py:SHALLOW", 40, 48),
    Course("digits_impaired", 40, 16),
    Course("recall", 40, 6),
    Course("mnist1d", 40, 6),
    Course("research/generalist.py:SPIRALS", 40, 8),
    Course("digits", 40, 6),
    Course(f"{_HERE}:ROOMY_DIGITS", 40, 16),
    Course(f"{_HERE}:SPEECH", 40, 5),
    Course(f"{_HERE}:ROOMY_SPEECH", 40, 3),
    Course(f"{_HERE}:ROOMY_RECALL", 40, 4),
    Course(f"{_HERE}:ROOMY_SPIRALS", 40, 5),
    Course(f"{_HERE}:ROOMY_MNIST1D", 40, 4),
    Course(f"{_HERE}:SOLVED_DIGITS", 40, 8),
    Course(f"{_HERE}:STRIPES", 40, 5),
    Course(f"{_HERE}:CLOUD_POINTS", 40, 5),
    Course(f"{_HERE}:INTEGRALS", 40, 5),
    Course(f"{_HERE}:FOUR_DIGITS", 40, 8),
    Course(f"{_HERE}:PLANE_WAVES", 20, 4),
    Course(f"{_HERE}:SLOW_STRIPES", 20, 4),
    Course(f"{_HERE}:SLOW_INTEGRALS", 20, 4),
    Course("research/transfer.py:SHALLOW", 15, 12),
    Course("digits_impaired", 15, 4),
    Course("recall", 15, 4),
    Course(f"{_HERE}:ROOMY_DIGITS", 15, 6),
    Course(f"{_HERE}:SOLVED_DIGITS", 15, 4),
    Course(f"{_HERE}:STRIPES", 15, 3),
    Course(f"{_HERE}:CLOUD_POINTS", 15, 3),
    Course(f"{_HERE}:INTEGRALS", 15, 3),
    Course("research/generalist.py:SPIRALS", 100, 3),
    Course("research/transfer.py:SHALLOW", 100, 5),
)
