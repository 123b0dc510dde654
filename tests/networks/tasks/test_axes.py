"""The check of layouts: a slot whose channels are probably in another axis is a warning, with the layout to pass."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import esper
from esper.networks.tasks.family import Family
from esper.networks.tasks.probe import probe_task
from esper.networks.tasks.splits import Splits
from esper.networks.tasks.task import Slot, Task
from esper.recordings import events as ev
from tests.networks.tasks.models import CLASSES, LENGTH, SAMPLES, Causal, generator, pictures, task, tokens
from tests.runs import recorded

SIGNAL_LENGTH = 20


def signals(_: Path | None = None) -> Splits:
    """Signals of two channels, [B, 2, 20], and random classes."""
    draw = generator()

    def split() -> tuple[Tensor, Tensor]:
        x = torch.randn(SAMPLES, 2, SIGNAL_LENGTH, generator=draw)
        return x, torch.randint(CLASSES, (SAMPLES,), generator=draw)

    return Splits(train=split(), validation=split(), test=split())


class Signal(nn.Module):
    """A convolution over signals, and a head that needs their whole length or only their mean."""

    def __init__(self, *, is_flexible: bool = True) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(2, 8, 3, padding=1), nn.ReLU())
        self.head = nn.Linear(8 if is_flexible else 8 * SIGNAL_LENGTH, CLASSES)
        self.is_flexible = is_flexible

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv(x)
        return self.head(h.mean(2) if self.is_flexible else h.flatten(1))


class FixedLength(Signal):
    def __init__(self) -> None:
        super().__init__()
        self.offset = nn.Parameter(torch.zeros(2, SIGNAL_LENGTH))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + self.offset)


class Mixer(nn.Module):
    """A linear layer over the positions of each channel, as in models of time series; their number is fixed."""

    def __init__(self, positions: int) -> None:
        super().__init__()
        self.mix = nn.Linear(positions, 12)
        self.head = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.mix(x if x.shape[2] == self.mix.in_features else x.transpose(1, 2)).mean(1))


class Spectrogram(nn.Module):
    """A convolution over frequencies and times, whose output has the frequencies among its channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3, padding=1)
        self.merge = nn.Flatten(1, 2)
        self.head = nn.Linear(3 * SIGNAL_LENGTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.merge(self.conv(x.transpose(1, 2)[:, None])).mean(2))


class ChannelsLast(nn.Module):
    """A picture model whose features are [B, H, W, C], as in a Swin transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(3, 6)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embed(x.permute(0, 2, 3, 1)).mean((1, 2)))


class Pictures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(x).relu().mean((2, 3)))


def signal_task(model: Callable[[], nn.Module], layout: str, slot: str = "conv") -> Task:
    return task(model, {"a": Slot(slot, layout=layout)}, signals)


def warnings_of(own: Task) -> tuple[str, ...]:
    return probe_task(own, (own.data(None),)).warnings


IN_AXIS_2 = "slots['a'] of task own: layout BTC has the channels in axis 2 of the output of 'conv', [6, 8, 20], but "
FOLLOWS = "its size follows the size of the input, and that of axis {} does not; did you mean layout={!r}?"
DOUBTFUL: dict[str, tuple[Callable[[], Task], str]] = {
    "convolution": (lambda: signal_task(Signal, "BTC"), IN_AXIS_2 + FOLLOWS.format(1, "BCL")),
    "fixed head": (lambda: signal_task(lambda: Signal(is_flexible=False), "BTC"), IN_AXIS_2 + FOLLOWS.format(1, "BCL")),
    "fixed length": (
        lambda: signal_task(FixedLength, "BTC"),
        IN_AXIS_2 + "that module has 8 channels; did you mean layout='BCL'?",
    ),
    "tokens": (
        lambda: task(Causal, {"a": Slot("mix", layout="BCL")}, tokens),
        f"slots['a'] of task own: layout BCL has the channels in axis 1 of the output of 'mix', [6, {LENGTH}, 16], but "
        + FOLLOWS.format(2, "BTC"),
    ),
    "pictures": (
        lambda: task(ChannelsLast, {"a": "embed"}, pictures),
        "slots['a'] of task own: layout BCHW has the channels in axis 1 of the output of 'embed', [6, 8, 8, 6], but "
        + FOLLOWS.format(3, "BHWC"),
    ),
}


@pytest.mark.parametrize(("own", "warning"), DOUBTFUL.values(), ids=DOUBTFUL)
def test_channels_in_another_axis_are_a_warning(own: Callable[[], Task], warning: str) -> None:
    assert warnings_of(own()) == (warning,)


RIGHT: dict[str, Callable[[], Task]] = {
    "convolution": lambda: signal_task(Signal, "BCL"),
    "fixed head": lambda: signal_task(lambda: Signal(is_flexible=False), "BCL"),
    "fixed length": lambda: signal_task(FixedLength, "BCL"),
    "frequencies": lambda: signal_task(Spectrogram, "BCL", "merge"),
    "tokens": lambda: task(Causal, {"a": Slot("mix", layout="BTC")}, tokens),
    "mixed positions": lambda: signal_task(lambda: Mixer(SIGNAL_LENGTH), "BCL", "mix"),
    "few mixed positions": lambda: signal_task(lambda: Mixer(2), "BCL", "mix"),
    "channels last": lambda: task(ChannelsLast, {"a": Slot("embed", layout="BHWC")}, pictures),
    "channels first": lambda: task(Pictures, {"a": "conv"}, pictures),
}


@pytest.mark.parametrize("own", RIGHT.values(), ids=RIGHT)
def test_right_layout_is_no_warning(own: Callable[[], Task]) -> None:
    assert warnings_of(own()) == ()


def test_warning_is_in_the_report_and_in_the_log_of_a_run(tmp_path: Path) -> None:
    doubtful, right = signal_task(Signal, "BTC"), task(Causal, {"a": Slot("mix", layout="BTC")}, tokens, name="right")
    family = Family("both", [right, doubtful], {})
    sentence = IN_AXIS_2 + FOLLOWS.format(1, "BCL")
    assert f"  warning: {sentence}\n" in str(esper.check(family))
    settings = {"policy": "static", "envs": 2, "steps": 1, "rounds": 1, "telemetry_dir": str(tmp_path / "telemetry")}
    logged = [event for event in recorded(esper.train(doubtful, **settings).directory) if isinstance(event, ev.Logged)]
    assert [event.severity for event in logged if event.text == sentence] == ["warning"]
