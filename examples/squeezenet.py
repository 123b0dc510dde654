"""An unmodified torchvision model on 1,024 generated pictures.

esper-sanctum --task squeezenet.py --envs 4 --steps 15 --rounds 2     # train a policy on it
esper-sanctum grow --task squeezenet.py                               # grow one network, and write it
python squeezenet.py                                                  # grow one, and train it further
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models import squeezenet1_1

import esper

CLASSES, PIXELS = 10, 32


def data(directory: Path | None) -> esper.Splits:
    """Return noisy pictures of a pattern for each class. A real task reads `directory` here."""
    draw = torch.Generator().manual_seed(0)
    coarse = torch.randn(CLASSES, 3, 4, 4, generator=draw)
    patterns = F.interpolate(coarse, size=(PIXELS, PIXELS), mode="bicubic")

    def split(samples: int) -> tuple[Tensor, Tensor]:
        labels = torch.randint(CLASSES, (samples,), generator=draw)
        return patterns[labels] + torch.randn(samples, 3, PIXELS, PIXELS, generator=draw), labels

    return esper.Splits(train=split(1024), validation=split(256), test=split(256))


def flipped(x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Mirror half of the pictures of a batch."""
    mirrored = torch.rand(len(x), generator=generator, device=x.device) < 0.5
    return torch.where(mirrored[:, None, None, None], x.flip(3), x), y


task = esper.Task(
    name="squeezenet",
    model=lambda: squeezenet1_1(num_classes=CLASSES),
    slots={"early": "features.3", "mid": "features.5", "late": "features.8"},
    data=data,
    augment=flipped,
    optimizer=esper.AdamW(3e-4),
    seed_optimizer=esper.AdamW(3e-4),
    batch_size=64,
)


def fine_tune(model: nn.Module, epochs: int = 2) -> None:
    """Train a grown network further, with a plain loop of PyTorch."""
    inputs, targets = data(None).train
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    model.train()
    for epoch in range(epochs):
        total = 0.0
        for x, y in zip(inputs.split(64), targets.split(64), strict=True):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(x)
        print(f"epoch {epoch + 1}: training loss {total / len(inputs):.3f}")


if __name__ == "__main__":
    result = esper.grow(task)
    result.best.save("grown_squeezenet")
    fine_tune(esper.load_grown("grown_squeezenet", task))
