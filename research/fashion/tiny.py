"""Arm of the library gromo: a convolutional network whose hidden layers grow by TINY (Verbockhaven et al., 2024).

Adapted: gromo extends the input of a layer together with the output of the layer before it, but not through a pool, so
each stage has two convolutions, and the channels between them grow. gromo's own VGG has such stages, but its
convolutions have biases, and then a second growth fails in version 0.1.0; there are none here. The statistics take as
many samples as a step. The line search takes the validation split, where the tutorials take the training data. A growth
without effect (factor 0) is left out. The other choices are the library's: kind of convolution, flags of TINY,
thresholds, batch norm, factors, proportional growth of one layer after another, a new optimizer after each growth.
Data, recipe and the choice by the validation split are those of the other arms.
"""

# gromo is not installed with the tools that check types.
# pyright: reportMissingImports=false, reportIncompatibleMethodOverride=false
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import torch
from gromo.containers.sequential_growing_container import SequentialGrowingModel
from gromo.modules.conv2d_growing_module import RestrictedConv2dGrowingModule
from gromo.modules.growing_normalisation import GrowingBatchNorm2d
from gromo.utils.training_utils import compute_statistics, evaluate_model
from research.fashion.cells import Answer, Budget
from research.fashion.scratch import answer_of
from research.fashion.training import TASK, Training, load_data
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from esper.networks.tasks.builtin.conv_host import PooledLinear
from esper.networks.tasks.builtin.conv_task import CLASSES
from esper.networks.tasks.schedules import cooldown

STAGES = ((8, 2, 8), (16, 4, 16), (32, 8, 32))
"""Of each stage: its output channels, which are those of the host, and the channels between its convolutions at the
start and at most. The network grows from 4,952 to 18,482 parameters."""
GROWTHS_PER_STAGE = 2
LAST_GROWTH = 0.5
"""Fraction of the budget after which the last growth begins; the others are spread evenly before it."""
SCALES = (0.0, 0.1, 0.5, 1.0)
"""Factors of the line search."""


class GrowingStages(SequentialGrowingModel):
    """Stages of two convolutions with batch norm and ReLU, with a pool in all but the last, and a linear head."""

    def __init__(self) -> None:
        super().__init__(in_features=1, out_features=CLASSES)
        self.stages = nn.ModuleList()
        channels = 1
        for index, (width, hidden, max_hidden) in enumerate(STAGES):
            first = RestrictedConv2dGrowingModule(
                channels,
                hidden,
                3,
                padding=1,
                use_bias=False,
                post_layer_function=nn.Sequential(GrowingBatchNorm2d(hidden), nn.ReLU()),
                name=f"stage {index}, first",
            )
            pools = [nn.MaxPool2d(2)] if index < len(STAGES) - 1 else []
            second = RestrictedConv2dGrowingModule(
                hidden,
                width,
                3,
                padding=1,
                use_bias=False,
                post_layer_function=nn.Sequential(*pools, nn.BatchNorm2d(width), nn.ReLU()),
                previous_module=first,
                allow_growing=True,
                target_in_channels=max_hidden,
                name=f"stage {index}, second",
            )
            self.stages.append(nn.ModuleList([first, second]))
            self._growable_layers.append(second)
            channels = width
        self.head = PooledLinear(channels, CLASSES)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Map pictures [B, 1, H, W] to logits [B, K]."""
        for stage in self.stages:
            for layer in stage:
                x_BCHW = layer(x_BCHW)
        return self.head(x_BCHW)

    def extended_forward(self, x_BCHW: Tensor, mask: dict[str, Tensor] | None = None) -> Tensor:  # noqa: ARG002
        """Map pictures to logits with the proposed channels."""
        extension = None
        for stage in self.stages:
            for layer in stage:
                x_BCHW, extension = layer.extended_forward(x_BCHW, extension)
        return self.head(x_BCHW)


def grow_tiny(budget: Budget, seed: int, steps: int) -> Answer:  # noqa: ARG001 (one training has the whole budget)
    """Train a network for the whole budget, and grow its stages one after another in the first part of it."""
    data = load_data()
    torch.manual_seed(seed)
    model = GrowingStages()
    training = Training(model, data, seed)
    train, validation = (
        DataLoader(TensorDataset(*split), batch_size, shuffle)
        for split, batch_size, shuffle in (
            (data.train, TASK.batch_size, True),
            (data.validation, TASK.validation_batch, False),
        )
    )
    growths = GROWTHS_PER_STAGE * len(STAGES)
    grown = applied = 0
    while (fraction := budget.fraction) < 1:
        if grown < growths and fraction >= LAST_GROWTH * (grown + 1) / growths:
            grown += 1
            applied += _grow(model, train, validation)
            training.reset_optimizer()
            training.forget_best()
        training.step(cooldown(fraction))
    widths = [layer.in_channels for layer in model._growable_layers]
    return answer_of(training, budget, trainings=1, architecture=f"hidden channels {widths}, {applied} growths")


def _grow(
    model: GrowingStages, train: DataLoader[tuple[Tensor, ...]], validation: DataLoader[tuple[Tensor, ...]]
) -> bool:
    """Grow the next layer by TINY, with the factor that is best on the validation split. Return False for factor 0."""
    model.set_growing_layers("sequential")
    batches = -(-(TASK.samples_per_epoch or len(train)) // TASK.batch_size)
    compute_statistics(model, train, nn.CrossEntropyLoss(reduction="sum"), batch_limit=batches)
    model.compute_optimal_updates(
        maximum_added_neurons=model.number_of_neurons_to_add(number_of_growth_steps=GROWTHS_PER_STAGE),
        compute_delta=False,  # with the defaults of the other flags, as the documentation says for TINY
    )
    model.reset_computation()
    model.dummy_select_update()
    losses: dict[float, float] = {}
    for scale in SCALES:
        model.set_scaling_factor(scale)
        losses[scale], _ = evaluate_model(model, validation, nn.CrossEntropyLoss(), use_extended_model=True)
    best = min(losses, key=losses.__getitem__)
    model.set_scaling_factor(best)
    if best:
        model.apply_change()
    else:
        model.currently_updated_layer.delete_update()
    return best > 0
