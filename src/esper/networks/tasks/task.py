"""Task: a model, its slots, its data, and how it is trained and scored. Importing this module does not import torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, cast

from esper.common.configuration.config import MAX_COUNT
from esper.common.score_scale import PERCENT, ScoreScale
from esper.common.user_code.references import describe_type
from esper.networks.tasks.optimizers import SGD, AdamW, AnyOptimizer, Optimizer, set_number
from esper.networks.tasks.per_sample import PerSample
from esper.networks.tasks.schedules import AnySchedule, cooldown
from esper.networks.tasks.split_score import SplitScore, is_metric

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from esper.networks.tasks.splits import Splits

SampleFunction: TypeAlias = "Callable[[Any, Any], Tensor]"
"""Function of the model's output and the targets of a batch that returns one value per sample, [B]. A loss may return
their mean, a scalar."""


@dataclass(frozen=True)
class Slot:
    """The place of a slot in a model. A dry run checks it before a run starts, and raises TaskError if it does not fit.

    Attributes:
        module: Path of the submodule whose output the slot receives, as in `model.named_modules()`. If the output is a
            tuple or list, the slot receives its first element.
        layout: Meaning of the output's axes: `BC`, `BCL`, `BTC`, `TBC`, `BCHW` or `BHWC` (B samples, C channels, L or
            T positions, H × W pixels). None: `BC` for two axes and `BCHW` for four; three axes require a layout.
        mask: Name of the input, [B, T], that says which positions of a sequence are real: bool, or 0 and 1. Seeds leave
            the padded ones out. `"mask"`: it is True at real positions, `"~mask"`: at padded ones. None: all are real.
    """

    module: str
    layout: str | None = None
    mask: str | None = None


@dataclass(frozen=True)
class Chance:
    """Loss and score of a model whose output does not depend on its input, which has learned nothing.

    Attributes:
        loss: Mean loss, in the unit of the task's loss.
        score: Score, in its own unit; a fraction unless it is one of a whole split.

    Raises:
        ValueError: A value is not a number.
    """

    loss: float
    score: float

    def __post_init__(self) -> None:
        for name in ("loss", "score"):
            set_number(self, name, "a number", lambda _: True)  # NaN if a measured loss is


@dataclass(frozen=True)
class TaskSource:
    """The file that defines a task; of a mixture, the files of all its tasks.

    Attributes:
        reference: The task as the user named it.
        absolute: Reference that names it from every directory: `FILE.py:NAME` with an absolute path, or `MODULE:NAME`.
        digests: BLAKE2b digests of the file and of the modules beside it that it imports, keyed by relative path.
    """

    reference: str
    absolute: str
    digests: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Task:
    """A model, its slots, its data, and how it is trained and scored.

    Attributes:
        name: Name on the screen and of run directories: letters, digits, `_` and `-`.
        model: Function that builds the host. It is called for every env and round, with torch, numpy and random seeded
            for the host, and must return new parameters each time. Pretrained weights stay as they are.
        slots: Submodules of the host after which seeds can grow, keyed by the name of the slot: 1 to 16.
        data: Function from a directory (`--data-dir`, or None) to the splits. It is called once per run and machine,
            and never in worker processes.
        loss: Function of output and targets that returns one value per sample, [B], or their mean, a scalar. None: the
            cross-entropy.
        score: Function of output and targets that returns a score in [0, 1] for each sample, [B]; higher is better.
            None: the accuracy. The reward is the gain of its mean on the validation split. Or `esper.over_split`, for a
            score of a whole split with any range.
        score_name: Name of the score on every screen.
        chance: Loss and score of a constant output; None: measured at the start.
        metrics: Further functions as `score`, with any finite value, recorded after each step and not rewarded.
        augment: Function of input, targets and generator that returns both again, applied to each training batch, with
            a generator on the device of the data; or `esper.PerSample(transform)`.
        optimizer: Optimizer of the host.
        seed_optimizer: Optimizer of each seed.
        schedule: Factor of the learning rates over an episode: `esper.cooldown`, `esper.constant`, `esper.cosine()`,
            `esper.one_cycle()`, or a function of the finished fraction of the episode, 0 to 1, to a factor, called for
            each batch. For a seed, an episode begins when it is planted; `esper.cooldown` has one clock for all.
        clip: Maximum L2 norm of the gradient of the host; None: it is not clipped.
        seed_clip: Maximum L2 norm of the gradient of each seed; None: it is not clipped.
        train: True: the whole host is trained. False: the host is frozen. Paths of submodules: only these are trained.
            Frozen parts stay in evaluation mode, and their weights are stored once per process and device.
        batch_size: Samples per optimizer step.
        validation_batch: Samples per forward pass of the validation.
        samples_per_epoch: Training samples per step of a run; None: the whole split.
        blueprints: Blueprints that the policy can select; None: all that fit one of the slots.
        wide_model: Function that builds the host with its widths multiplied by a factor, for the comparisons of
            `grow` and of `evaluate --policies wide`; None if it has no such form.
        float32_defaults: True if the learning rates were tuned in float32: `--amp auto` is float32 on every device.
        cuda_graphs: `auto`: on a GPU, kernels are recorded in CUDA graphs if a dry run shows that this changes no
            result. `off`: they are always launched one by one.
        source: The file that defines the task; None for built-in tasks and for tasks made in a Python session. It is
            set when the file is loaded.

    Raises:
        ValueError: A field has a wrong type or value.
    """

    NAME_SIGNS: ClassVar[str] = "_-"
    """Characters of a name, besides letters and digits."""

    name: str
    model: Callable[[], nn.Module]
    slots: Mapping[str, str | Slot]
    data: Callable[[Path | None], Splits]
    optimizer: AnyOptimizer
    seed_optimizer: AnyOptimizer
    schedule: AnySchedule = cooldown
    clip: float | None = 1.0
    seed_clip: float | None = 1.0
    loss: SampleFunction | None = None
    score: SampleFunction | SplitScore | None = None
    score_name: str = "accuracy"
    chance: Chance | None = None
    metrics: Mapping[str, SampleFunction | SplitScore] = field(default_factory=dict[str, "SampleFunction | SplitScore"])
    augment: Callable[[Any, Any, torch.Generator], tuple[Any, Any]] | PerSample | None = None
    train: bool | Sequence[str] = True
    batch_size: int = 128
    validation_batch: int = 1024
    samples_per_epoch: int | None = None
    blueprints: Sequence[str] | None = None
    wide_model: Callable[[float], nn.Module] | None = None
    float32_defaults: bool = False
    cuda_graphs: str = "auto"
    source: TaskSource | None = None

    def __post_init__(self) -> None:
        for problem in self._problems():
            raise ValueError(f"task {self.name!r}: {problem}")

    def _problems(self) -> list[str]:
        found = _type_problems(self)
        if found:  # the checks below rely on the types
            return found
        if not self.name or not all(letter.isalnum() or letter in self.NAME_SIGNS for letter in self.name):
            found.append(f"name must consist of letters, digits and the characters {' '.join(self.NAME_SIGNS)}")
        if not 1 <= len(self.slots) <= MAX_SLOTS:
            found.append(f"slots must name 1 to {MAX_SLOTS} submodules, got {len(self.slots)}")
        found += [
            f"slots: {slot!r} is not a valid name of a slot; {NAME_RULE}"
            for slot in self.slots
            if not (_is_text(slot) and slot.isidentifier())
        ]
        found += [
            f"slots[{slot!r}] must be the path of a submodule or esper.Slot(path), not {describe_type(path)}"
            for slot, path in self.slots.items()
            if not _is_text(path) and not isinstance(path, Slot)
        ]
        if self.cuda_graphs not in CUDA_GRAPHS:
            found.append(f"cuda_graphs must be {' or '.join(map(repr, CUDA_GRAPHS))}, got {self.cuda_graphs!r}")
        for name in ("batch_size", "validation_batch", "samples_per_epoch"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not 1 <= value <= MAX_COUNT):
                found.append(f"{name} must be a whole number from 1 to {MAX_COUNT:,}, got {value}")
        for name, function in {"score": self.score, **self.metrics}.items():
            if is_metric(function):
                found.append(
                    f"{name} is a metric of a whole split; pass esper.over_split({type(function).__name__}(…))"
                )
        for name in ("clip", "seed_clip"):
            if getattr(self, name) is not None:
                set_number(self, name, "a finite number above 0, or None", lambda norm: 0 < norm < math.inf)
        return found

    @property
    def score_scale(self) -> ScoreScale:
        """Range and better end of the score."""
        return self.score.scale if isinstance(self.score, SplitScore) else PERCENT

    def count_epoch_samples(self, available: int) -> int:
        """Return the number of training samples in an epoch, given that of the training split."""
        return min(available, self.samples_per_epoch or available)

    def count_epoch_batches(self, available: int) -> int:
        """Return the number of batches in an epoch, given the number of samples of the training split."""
        return -(-self.count_epoch_samples(available) // self.batch_size)


CUDA_GRAPHS = ("auto", "off")
"""Values of `cuda_graphs`."""
MAX_SLOTS = 16
"""Maximum number of slots of a task."""
NAME_RULE = "use letters, digits and _, and no digit at the start"
"""Rule for the names of slots and settings, as an advice."""


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _has_texts(value: object) -> bool:
    """Return False for a list with other items than texts, and for a text, which would be read letter by letter."""
    items = cast("list[object]", value) if isinstance(value, Collection) else []
    return not isinstance(value, str) and all(map(_is_text, items))


_OPTIMIZERS = "esper.SGD(learning_rate), esper.AdamW(learning_rate) or esper.Optimizer(class, lr=…)"
_FIELD_TYPES: dict[str, tuple[Any, str]] = {
    "name": (str, "a text"),
    "model": (Callable, "a function that returns a module"),
    "slots": (Mapping, "a dict from names to paths of submodules"),
    "data": (Callable, "a function that returns esper.Splits"),
    "optimizer": (SGD | AdamW | Optimizer, _OPTIMIZERS),
    "seed_optimizer": (SGD | AdamW | Optimizer, _OPTIMIZERS),
    "schedule": (Callable, "a function, or a schedule such as esper.cosine()"),
    "loss": ((Callable, NoneType), "a function"),
    "score": ((Callable, SplitScore, NoneType), "a function, or esper.over_split(function)"),
    "score_name": (str, "a text"),
    "chance": (Chance | None, "esper.Chance(loss, score)"),
    "metrics": (Mapping, "a dict from names to functions"),
    "augment": ((Callable, PerSample, NoneType), "a function, or esper.PerSample(transform)"),
    "train": ((bool, Collection), 'True, False or a list of paths, as in train=["head"]'),
    "batch_size": (int, "a whole number"),
    "validation_batch": (int, "a whole number"),
    "samples_per_epoch": (int | None, "a whole number"),
    "blueprints": ((Collection, NoneType), 'a list of names, as in blueprints=["norm"]'),
    "wide_model": ((Callable, NoneType), "a function"),
}
"""Type and expected value of each field whose wrong type would end in an error far from the user's code."""


def _type_problems(task: Task) -> list[str]:
    values = {name: getattr(task, name) for name in _FIELD_TYPES}
    return [
        f"{name} must be {expected}, not {describe_type(values[name])}"
        for name, (kind, expected) in _FIELD_TYPES.items()
        if not isinstance(values[name], kind) or (name in ("train", "blueprints") and not _has_texts(values[name]))
    ]
