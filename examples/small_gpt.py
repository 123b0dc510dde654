"""A small GPT with tied weights that learns to continue a text, and grows causal seeds.

esper-sanctum --task small_gpt.py --envs 4 --steps 15 --rounds 2     # train a policy on it
esper-sanctum grow --task small_gpt.py                               # grow one network, and write it
python small_gpt.py                                                  # grow one, and train it further
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import esper

TEXT = "the quick brown fox jumps over the lazy dog and the lazy dog sleeps while the quick brown fox runs away . " * 40
LETTERS = sorted(set(TEXT))
LENGTH, WIDTH, HEADS = 32, 32, 4


class Block(nn.Module):
    """Causal self-attention and an MLP, each after a layer norm."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.project_in, self.project_out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH), nn.Dropout(0.1))

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, T, C] to the same shape."""
        batch, length, _ = x.shape
        projected = self.project_in(self.attention_norm(x)).view(batch, length, 3, HEADS, -1)
        query, key, value = projected.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project_out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.mlp(self.mlp_norm(x))


class SmallGPT(nn.Module):
    """Two blocks; the head and the embedding share their weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(LETTERS), WIDTH)
        self.positions = nn.Parameter(torch.zeros(LENGTH, WIDTH))
        self.blocks = nn.ModuleList([Block(), Block()])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, len(LETTERS), bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens [B, T] to logits [B, T, K]."""
        h = self.embedding(tokens) + self.positions
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


def data(directory: Path | None) -> esper.Splits:
    """Return windows of the text, and the letter after each position."""
    letters = torch.tensor([LETTERS.index(letter) for letter in TEXT])
    windows = letters.unfold(0, LENGTH + 1, 3)
    windows = windows[torch.randperm(len(windows), generator=torch.Generator().manual_seed(0))]
    train, validation, test = windows[:1024], windows[1024:1152], windows[1152:1280]
    return esper.Splits(
        train=(train[:, :-1], train[:, 1:]),
        validation=(validation[:, :-1], validation[:, 1:]),
        test=(test[:, :-1], test[:, 1:]),
    )


task = esper.Task(
    name="small_gpt",
    model=SmallGPT,
    slots={"first": esper.Slot("blocks.0", layout="BTC"), "second": esper.Slot("blocks.1", layout="BTC")},
    data=data,
    optimizer=esper.AdamW(1e-3),
    seed_optimizer=esper.AdamW(3e-3),
    batch_size=64,
)


def fine_tune(model: nn.Module, epochs: int = 2) -> None:
    """Train a grown network further, with a plain loop of PyTorch."""
    inputs, targets = data(None).train
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model.train()
    for epoch in range(epochs):
        total = 0.0
        for x, y in zip(inputs.split(64), targets.split(64), strict=True):
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(x)
        print(f"epoch {epoch + 1}: training loss {total / len(inputs):.3f}")


if __name__ == "__main__":
    result = esper.grow(task)
    result.best.save("grown_small_gpt")
    fine_tune(esper.load_grown("grown_small_gpt", task))
