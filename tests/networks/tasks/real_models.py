"""Tasks of well-known models, unmodified and small, with generated data: `tests.networks.tasks.real_models:NAME`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import esper
from tests.networks.tasks.models import text_task

SAMPLES, CLASSES, LENGTH, VOCABULARY = 24, 4, 8, 16


def _splits(x: Callable[[torch.Generator], Tensor], y: Callable[[Tensor, torch.Generator], Tensor]) -> Any:
    def data(_: Path | None) -> esper.Splits:
        draw = torch.Generator().manual_seed(0)

        def split() -> tuple[Tensor, Tensor]:
            inputs = x(draw)
            return inputs, y(inputs, draw)

        return esper.Splits(train=split(), validation=split(), test=split())

    return data


def _classes(_: Tensor, draw: torch.Generator) -> Tensor:
    return torch.randint(CLASSES, (SAMPLES,), generator=draw)


pictures = _splits(lambda draw: torch.randn(SAMPLES, 3, 32, 32, generator=draw), _classes)
token_classes = _splits(lambda draw: torch.randint(VOCABULARY, (SAMPLES, LENGTH), generator=draw), _classes)
next_tokens = _splits(
    lambda draw: torch.randint(VOCABULARY, (SAMPLES, LENGTH), generator=draw), lambda x, _: x.roll(-1, 1)
)


def _task(name: str, model: Callable[[], nn.Module], slots: Any, data: Any, **options: Any) -> esper.Task:
    optimizer = esper.AdamW(1e-3)
    settings = {"optimizer": optimizer, "seed_optimizer": optimizer, "batch_size": 12, **options}
    return esper.Task(name=name, model=model, slots=slots, data=data, **settings)


def _torchvision(name: str, **options: Any) -> nn.Module:
    import torchvision.models

    return getattr(torchvision.models, name)(num_classes=CLASSES, **options)


class TransformerClassifier(nn.Module):
    """`nn.TransformerEncoder` on tokens, and a linear layer on their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embedding(x)).mean(1))


class LSTMClassifier(nn.Module):
    """`nn.LSTM` on tokens, and a linear layer on the mean of its outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.lstm = nn.LSTM(16, 16, batch_first=True)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        outputs, _ = self.lstm(self.embedding(x))
        return self.head(outputs.mean(1))


def _vit() -> nn.Module:
    from torchvision.models import VisionTransformer

    return VisionTransformer(
        image_size=32, patch_size=8, num_layers=2, num_heads=2, hidden_dim=16, mlp_dim=32, num_classes=CLASSES
    )


def _timm() -> nn.Module:
    return import_module("timm").create_model("resnet10t", num_classes=CLASSES)  # may not be installed


def _gpt2() -> nn.Module:
    transformers = import_module("transformers")  # may not be installed
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=16, n_layer=2, n_head=2, use_cache=False
    )

    class Logits(nn.Module):
        """The model's logits, without the other fields of its output."""

        def __init__(self) -> None:
            super().__init__()
            self.model = transformers.GPT2LMHeadModel(config)

        def forward(self, x: Tensor) -> Tensor:
            return self.model(x).logits

    return Logits()


def _pretrained() -> nn.Module:
    """Return a small network that was trained before: the same weights at each call."""
    torch.manual_seed(7)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = pictures(None).train
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


squeezenet = _task(
    "squeezenet", lambda: _torchvision("squeezenet1_1"), {"early": "features.3", "late": "features.8"}, pictures
)
resnet18 = _task("resnet18", lambda: _torchvision("resnet18"), {"first": "layer1", "second": "layer2"}, pictures)
mobilenet = _task(
    "mobilenet", lambda: _torchvision("mobilenet_v3_small"), {"early": "features.3", "late": "features.8"}, pictures
)
vit = _task("vit", _vit, {"first": esper.Slot("encoder.layers.encoder_layer_0", layout="BTC")}, pictures)
transformer = _task(
    "transformer", TransformerClassifier, {"first": esper.Slot("encoder.layers.0", layout="BTC")}, token_classes
)
lstm = _task("lstm", LSTMClassifier, {"outputs": esper.Slot("lstm", layout="BTC")}, token_classes)
timm_resnet = _task("timm_resnet", _timm, {"first": "layer1", "second": "layer2"}, pictures)
gpt2 = _task("gpt2", _gpt2, {"block": esper.Slot("model.transformer.h.0", layout="BTC")}, next_tokens)
frozen = _task("frozen", _pretrained, {"adapter": "1"}, pictures, train=False)
text_cnn = text_task(name="text_cnn")
