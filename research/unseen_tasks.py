"""Tasks that no training sees, for `research/generalist_evaluation.py`: waves, a U-Net, a small GPT, a model of timm.

Importing this file imports torch; `TIMM` needs the dependency group `models`.
"""

from __future__ import annotations

from importlib import import_module

from research.growth_tasks import TASKS, large_digits, load_example, shorten
from torch import nn

import esper

WAVES, UNET = TASKS["waves"](), TASKS["unet"]()
GPT = shorten(load_example("small_gpt"), batch=32, batches=4, validation=64)


def timm_resnet() -> nn.Module:
    """Return the smallest ResNet of timm, with random weights and ten classes."""
    return import_module("timm").create_model("test_resnet", num_classes=10)  # may not be installed


TIMM = shorten(
    esper.Task(
        name="timm_resnet",
        model=timm_resnet,
        slots={"early": "layer1", "mid": "layer2", "late": "layer3"},
        data=large_digits,
        optimizer=esper.AdamW(1e-3),
        seed_optimizer=esper.AdamW(1e-3),
    ),
    batch=32,
    batches=3,
    validation=96,
)
