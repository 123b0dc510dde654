"""The tasks of `research/growth_search.py`, each small enough that an episode of 20 steps takes less than a second.

Built-in tasks and those of `examples/` with fewer samples, and five more that no policy was trained on: an MLP-Mixer, a
small U-Net with float targets, an MLP on a table, a residual network on waves, and a GRU on a delayed copy.

Shapes: N or B samples, T positions or tokens, C channels, L positions of a wave, F features, P patches, H × W pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from research.generalist import SPIRALS
from torch import Tensor, nn

import esper
from esper.common.seeding import forked_generators
from esper.networks.tasks import load_task
from esper.networks.tasks.builtin.digits import load as load_digits
from esper.networks.tasks.splits import Split

PIXELS = 32
"""Height and width of an enlarged digit."""
PRETRAINING_STEPS = 200
DENOISED_STD = 1.5
"""Standard deviation of the noise that is to be removed; that of the pictures is 1."""
TABLE_FEATURES, TABLE_CLASSES = 12, 3
WAVE_CLASSES, WAVE_LENGTH = 6, 48
WAVE_NOISE = 1.5
"""Standard deviation of the noise of a wave, whose amplitude is 1."""
TOKENS, COPY_LENGTH, COPY_DELAY = 8, 12, 3


def map_splits(splits: esper.Splits, change: Callable[[Any, Any], Split]) -> esper.Splits:
    """Return splits that are changed by a function of inputs and targets."""
    return esper.Splits(**{name: change(*split) for name, split in vars(splits).items()})


def shorten(task: esper.Task, *, batch: int, batches: int, validation: int) -> esper.Task:
    """Return a task with few and small batches per epoch, and with few samples for validation."""

    def load(directory: Path | None) -> esper.Splits:
        splits = task.data(directory)
        x, y = splits.validation
        assert isinstance(x, Tensor)
        assert isinstance(y, Tensor)
        return replace(splits, validation=(x[:validation], y[:validation]))

    return replace(task, data=load, batch_size=batch, samples_per_epoch=batch * batches, source=None)


def large_digits(directory: Path | None) -> esper.Splits:
    """Return the digits as pictures of `PIXELS` × `PIXELS` in three channels, [N, 3, H, W]."""

    def enlarge(x: Tensor, y: Tensor) -> Split:
        return F.interpolate(x, size=(PIXELS, PIXELS), mode="bilinear").expand(-1, 3, -1, -1).contiguous(), y

    return map_splits(load_digits(directory), enlarge)


@cache
def load_example(name: str) -> esper.Task:
    """Return a task of `examples/`."""
    return load_task(str(Path(__file__).parents[1] / "examples" / f"{name}.py"))


def squeezenet() -> nn.Module:
    """Return the model of the example, with positive biases: else the ReLU behind its logits often stays at 0."""
    model = load_example("squeezenet").model()
    nn.init.constant_(model.get_parameter("classifier.1.bias"), 2.0)
    return model


@cache
def squeezenet_weights() -> dict[str, Tensor]:
    """Return weights that were trained for `PRETRAINING_STEPS` batches of digits that lie on their side."""
    with forked_generators(0):
        model = squeezenet().train()
        x, y = large_digits(None).train
        assert isinstance(x, Tensor)
        assert isinstance(y, Tensor)
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
        for _ in range(PRETRAINING_STEPS):
            batch = torch.randint(len(x), (32,))
            optimizer.zero_grad()
            F.cross_entropy(model(x[batch].rot90(1, (2, 3))), y[batch]).backward()
            optimizer.step()
    return model.state_dict()


def pretrained_squeezenet() -> nn.Module:
    """Return a SqueezeNet that was trained on other pictures, with a fresh classifier that alone is trained."""
    model = squeezenet()
    kept = {name: value for name, value in squeezenet_weights().items() if not name.startswith("classifier")}
    model.load_state_dict(kept, strict=False)
    return model


def squeezenet_task() -> esper.Task:
    """Return the example with its pretrained model, on the digits."""
    task = replace(
        load_example("squeezenet"),
        model=pretrained_squeezenet,
        data=large_digits,
        augment=None,
        train=["classifier"],
        optimizer=esper.AdamW(3e-3),
        seed_optimizer=esper.AdamW(1e-3),
    )
    return shorten(task, batch=32, batches=2, validation=96)


class Mixer(nn.Module):
    """An MLP-Mixer (Tolstikhin et al., 2021) of two blocks on the 16 patches of a digit."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Conv2d(1, width, 2, stride=2)
        self.blocks = nn.ModuleList(MixerBlock(16, width) for _ in range(2))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, 1, 8, 8] to logits [B, 10]."""
        h_BPC = self.embed(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            h_BPC = block(h_BPC)
        return self.head(h_BPC.mean(1))


class MixerBlock(nn.Module):
    """Mixes the patches, then the channels."""

    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.patch_norm, self.channel_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.patches = nn.Sequential(nn.Linear(patches, 8), nn.GELU(), nn.Linear(8, patches))
        self.channels = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, P, C] to the same shape."""
        x = x + self.patches(self.patch_norm(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.channel_norm(x))


class UNet(nn.Module):
    """A U-Net (Ronneberger et al., 2015) of two levels that removes noise."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.ReLU())
        self.bottom = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU())
        self.rise = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.up = nn.Sequential(nn.Conv2d(2 * width, width, 3, padding=1), nn.ReLU())
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, 1, H, W] to the same shape."""
        fine = self.down(x)
        coarse = self.rise(self.bottom(fine))
        return self.out(self.up(torch.cat((fine, coarse), dim=1)))


def noisy_digits(directory: Path | None) -> esper.Splits:
    """Return digits with noise, and the digits without."""
    generator = torch.Generator().manual_seed(0)

    def cover(x: Tensor, _: Tensor) -> Split:
        return x + DENOISED_STD * torch.randn(x.shape, generator=generator), x

    return map_splits(load_digits(directory), cover)


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean squared error of each sample, [B]."""
    return (output - target).square().flatten(1).mean(1)


def explained(output: Tensor, target: Tensor) -> Tensor:
    """Return the fraction of each picture's variance that the output explains, 0 to 1, [B]."""
    return (1 - squared_error(output, target) / target.flatten(1).var(1)).clamp(0, 1)


def table(directory: Path | None) -> esper.Splits:  # noqa: ARG001 (nothing is read)
    """Return features [N, F] and the class that a random network with products of features gives them."""
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(TABLE_FEATURES, 16, generator=generator) / math.sqrt(TABLE_FEATURES)
    second = torch.randn(16, TABLE_CLASSES, generator=generator)

    def draw(size: int) -> Split:
        x = torch.randn(size, TABLE_FEATURES, generator=generator)
        hidden = torch.sin(3 * (x @ first))
        return x, (hidden @ second).argmax(1)

    return esper.Splits(train=draw(2048), validation=draw(256), test=draw(512))


def table_mlp() -> nn.Module:
    """Return an MLP that is too small for the table."""
    return nn.Sequential(
        nn.Linear(TABLE_FEATURES, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, TABLE_CLASSES)
    )


def waves(directory: Path | None) -> esper.Splits:  # noqa: ARG001 (nothing is read)
    """Return noisy waves [N, 1, L] whose class is their frequency, and whether the frequency rises."""
    generator = torch.Generator().manual_seed(0)

    def draw(size: int) -> Split:
        y = torch.randint(WAVE_CLASSES, (size,), generator=generator)
        place = torch.linspace(0, 1, WAVE_LENGTH)
        phase = 2 * math.pi * torch.rand(size, 1, generator=generator)
        cycles = (3 + 1.5 * (y % 3))[:, None] * place + (3 * (y // 3))[:, None] * place**2
        wave = torch.sin(2 * math.pi * cycles + phase)
        noise = WAVE_NOISE * torch.randn(size, WAVE_LENGTH, generator=generator)
        return (wave + noise)[:, None], y

    return esper.Splits(train=draw(2048), validation=draw(256), test=draw(512))


class Residual(nn.Module):
    """A residual block of two convolutions over seven positions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv1d(width, width, 7, padding=3, bias=False) for _ in range(2))
        self.norm, self.out_norm = nn.BatchNorm1d(width, momentum=0.5), nn.BatchNorm1d(width, momentum=0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, C, L] to the same shape."""
        return F.relu(x + self.out_norm(self.second(F.relu(self.norm(self.first(x))))))


def wave_net(width: int = 12) -> nn.Module:
    """Return a residual network that is as large as the waves need."""
    stem = nn.Sequential(nn.Conv1d(1, width, 7, padding=3), nn.ReLU())
    pool = nn.Sequential(nn.AdaptiveAvgPool1d(1), nn.Flatten())
    return nn.Sequential(stem, Residual(width), nn.MaxPool1d(2), Residual(width), pool, nn.Linear(width, WAVE_CLASSES))


def delayed_tokens(directory: Path | None) -> esper.Splits:  # noqa: ARG001 (nothing is read)
    """Return random tokens [N, T], and at each position the token `COPY_DELAY` positions before."""
    generator = torch.Generator().manual_seed(0)

    def draw(size: int) -> Split:
        x = torch.randint(TOKENS, (size, COPY_LENGTH), generator=generator)
        return x, F.pad(x, (COPY_DELAY, 0))[:, :COPY_LENGTH]

    return esper.Splits(train=draw(1024), validation=draw(256), test=draw(256))


class Recurrent(nn.Module):
    """A GRU (Cho et al., 2014) with a linear head at each position."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, width)
        self.mixed = nn.Identity()
        self.gru = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens [B, T] to logits [B, T, K]."""
        return self.head(self.gru(self.mixed(self.embedding(tokens)))[0])


MIXER = esper.Task(
    name="mixer",
    model=Mixer,
    slots={name: esper.Slot(f"blocks.{index}", layout="BTC") for index, name in enumerate(("first", "second"))},
    data=load_digits,
    optimizer=esper.AdamW(5e-3),
    seed_optimizer=esper.AdamW(5e-3),
)
UNET = esper.Task(
    name="unet",
    model=UNet,
    slots={"fine": "down", "coarse": "bottom", "up": "up"},
    data=noisy_digits,
    loss=squared_error,
    score=explained,
    score_name="explained variance",
    optimizer=esper.AdamW(5e-3),
    seed_optimizer=esper.AdamW(5e-3),
)
TABLE = esper.Task(
    name="table",
    model=table_mlp,
    slots={"first": "1", "second": "3"},
    data=table,
    optimizer=esper.AdamW(5e-3),
    seed_optimizer=esper.AdamW(1e-2),
    samples_per_epoch=1024,
)
WAVES = esper.Task(
    name="waves",
    model=wave_net,
    slots={"first": esper.Slot("1", layout="BCL"), "second": esper.Slot("3", layout="BCL")},
    data=waves,
    optimizer=esper.AdamW(5e-3),
    seed_optimizer=esper.AdamW(5e-3),
)
COPY = esper.Task(
    name="copy",
    model=Recurrent,
    slots={"tokens": esper.Slot("mixed", layout="BTC"), "hidden": esper.Slot("gru", layout="BTC")},
    data=delayed_tokens,
    optimizer=esper.AdamW(1e-2),
    seed_optimizer=esper.AdamW(1e-2),
)
TASKS: dict[str, Callable[[], esper.Task]] = {
    "digits_impaired": lambda: shorten(load_task("digits_impaired"), batch=96, batches=4, validation=256),
    "digits": lambda: shorten(load_task("digits"), batch=96, batches=2, validation=256),
    "recall": lambda: shorten(load_task("recall"), batch=96, batches=3, validation=128),
    "mnist1d": lambda: shorten(load_task("mnist1d"), batch=96, batches=3, validation=256),
    "synthetic": lambda: shorten(load_task("synthetic"), batch=32, batches=2, validation=96),
    "spirals": lambda: SPIRALS,
    "small_gpt": lambda: shorten(load_example("small_gpt"), batch=32, batches=2, validation=32),
    "squeezenet": squeezenet_task,
    "mixer": lambda: shorten(MIXER, batch=64, batches=2, validation=192),
    "unet": lambda: shorten(UNET, batch=64, batches=2, validation=128),
    "table": lambda: TABLE,
    "waves": lambda: shorten(WAVES, batch=64, batches=2, validation=192),
    "copy": lambda: shorten(COPY, batch=64, batches=2, validation=128),
}
"""Functions that return the tasks, by name. Importing torchvision, which one of them needs, takes a second."""
