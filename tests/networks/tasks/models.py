"""Small models and tasks of several kinds, as users would bring them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from esper.networks.tasks.optimizers import SGD
from esper.networks.tasks.splits import Splits
from esper.networks.tasks.task import Slot, Task

SAMPLES, FEATURES, CLASSES, LENGTH, VOCABULARY = 64, 12, 5, 7, 20


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def features(_: Path | None = None) -> Splits:
    """Vectors, and the class of a linear map."""
    draw = generator()
    weights = torch.randn(FEATURES, CLASSES, generator=draw)

    def split() -> tuple[Tensor, Tensor]:
        x = torch.randn(SAMPLES, FEATURES, generator=draw)
        return x, (x @ weights).argmax(1)

    return Splits(train=split(), validation=split(), test=split())


def tokens(_: Path | None = None) -> Splits:
    """Token sequences, and each next token."""
    draw = generator()

    def split() -> tuple[Tensor, Tensor]:
        x = torch.randint(VOCABULARY, (SAMPLES, LENGTH), generator=draw)
        return x, x.roll(-1, 1)

    return Splits(train=split(), validation=split(), test=split())


def padded_tokens(name: str = "mask", *, is_inverted: bool = False) -> Callable[[Path | None], Splits]:
    """Return token sequences of 3 to LENGTH tokens, padded by zeros, with an input that marks the real positions."""

    def data(_: Path | None = None) -> Splits:
        draw = generator()

        def split() -> tuple[dict[str, Tensor], Tensor]:
            lengths = torch.randint(3, LENGTH + 1, (SAMPLES, 1), generator=draw)
            is_real = torch.arange(LENGTH) < lengths
            x = torch.randint(1, VOCABULARY, (SAMPLES, LENGTH), generator=draw) * is_real
            return {"tokens": x, name: ~is_real if is_inverted else is_real}, x[:, 0] % CLASSES

        return Splits(train=split(), validation=split(), test=split())

    return data


def pictures(_: Path | None = None) -> Splits:
    """Pictures of noise, and random classes."""
    draw = generator()

    def split() -> tuple[Tensor, Tensor]:
        return torch.randn(SAMPLES, 3, 8, 8, generator=draw), torch.randint(CLASSES, (SAMPLES,), generator=draw)

    return Splits(train=split(), validation=split(), test=split())


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, CLASSES)
    )


class Causal(nn.Module):
    """A causal language model of one block, with tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.mix = nn.Linear(16, 16)
        self.head = nn.Linear(16, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x_BT: Tensor) -> Tensor:
        h = self.embedding(x_BT)
        mask = torch.triu(torch.ones(x_BT.shape[1], x_BT.shape[1], dtype=torch.bool), 1)
        mixed, _ = self.attention(h, h, h, attn_mask=mask, need_weights=False)
        return self.head(self.mix(h + mixed))


class TextCNN(nn.Module):
    """Classifies padded token sequences by two convolutions, and the maximum over the real positions."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.block = nn.Sequential(nn.Conv1d(16, 16, 3, padding=1), nn.Tanh())
        self.conv = nn.Conv1d(16, 16, 3, padding=1)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        real_B1L = mask[:, None].bool()
        h_BCL = self.block(self.embedding(tokens).transpose(1, 2) * real_B1L)
        h_BCL = self.conv(h_BCL * real_B1L)
        return self.head(h_BCL.masked_fill(~real_B1L, -torch.inf).amax(2))


class MaskedTransformer(nn.Module):
    """Classifies padded token sequences by a transformer, and the mean over the real positions.

    `padding` is True at padded positions, as PyTorch takes it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, tokens: Tensor, padding: Tensor) -> Tensor:
        h_BTC = self.encoder(self.embedding(tokens), src_key_padding_mask=padding)
        real_BT1 = ~padding[:, :, None]
        return self.head((h_BTC * real_BT1).sum(1) / real_BT1.sum(1).clamp(min=1))


class InPlace(nn.Module):
    """A convolution whose output the next layer changes in place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.relu(self.conv(x)).mean((2, 3)))


class Function(nn.Module):
    """A linear layer `a`, a function of its output and of the input, and a linear head."""

    def __init__(self, function: Callable[[Tensor, Tensor, nn.Module], Tensor]) -> None:
        super().__init__()
        self.a = nn.Linear(FEATURES, FEATURES)
        self.head = nn.Linear(FEATURES, CLASSES)
        self._function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self._function(self.a(x), x, self.a))


def task(model: Callable[[], nn.Module] = mlp, slots: Any = None, data: Any = features, **options: Any) -> Task:
    """Return a small task; by default an MLP with two slots."""
    settings = {"optimizer": SGD(0.05), "seed_optimizer": SGD(0.05), "batch_size": 16, **options}
    name = settings.pop("name", "own")
    return Task(name=name, model=model, slots=slots or {"first": "1", "second": "3"}, data=data, **settings)


def causal_task(**options: Any) -> Task:
    """Return a language model with a slot after its attention and one after its linear layer."""
    slots = {"attention": Slot("attention", layout="BTC"), "mix": Slot("mix", layout="BTC")}
    return task(Causal, slots, tokens, **options)


def text_task(mask: str | None = "mask", **options: Any) -> Task:
    """Return the task of a text CNN with two slots, one within the other, and a third one."""
    paths = {"inner": "block.0", "block": "block", "conv": "conv"}
    slots = {name: Slot(path, layout="BCL", mask=mask) for name, path in paths.items()}
    return task(TextCNN, slots, padded_tokens(), **options)


def transformer_task(mask: str | None = "~padding", **options: Any) -> Task:
    """Return the task of a transformer with a slot after each of its layers, and one around both."""
    paths = {"first": "encoder.layers.0", "second": "encoder.layers.1", "both": "encoder"}
    slots = {name: Slot(path, layout="BTC", mask=mask) for name, path in paths.items()}
    return task(MaskedTransformer, slots, padded_tokens("padding", is_inverted=True), **options)
