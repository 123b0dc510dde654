"""One env: a host with its slots, its optimizers and its data order. Everything here runs on the thread of its lane.

Shapes: B samples of a batch, N samples of a split, V configurations of an ablation, K classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.config import TrainingConfig
from esper.engine.seeding import generator
from esper.growth.alpha import SPEEDS, TARGETS, TEMPOS
from esper.growth.blend import STYLES
from esper.growth.gates import GateConfig
from esper.growth.host import GrowingNetwork
from esper.growth.slot import Move
from esper.growth.stages import Stage
from esper.policy.actions import CURVES, Action, Op
from esper.tasks.task import Splits, Task

VALIDATION_BATCH = 1024


@dataclass(kw_only=True)
class Measurement:
    """What one epoch of one env came to. Gradient norms are means over its batches, before clipping."""

    train_loss: float
    train_accuracy: float
    loss: float
    accuracy: float
    grad_norm: float
    slot_grad_norms: dict[int, float]
    """By slot: only those that trained."""
    contributions: dict[int, tuple[float, float]]
    """By slot, for those that are blended: contribution to the accuracy and its standard error."""


class Env:
    """A network that trains, and is grown.

    Args:
        index: number of the env in the population.
        task: what it learns.
        splits: the task's data, on the env's device.
        slots: names of the slots to use.
        training: how it is trained.
        seed: of the run.
    """

    def __init__(
        self, index: int, task: Task, splits: Splits, slots: Sequence[str], training: TrainingConfig, seed: int
    ) -> None:
        self.index = index
        self.task = task
        self.splits = splits
        self.training = training
        self.seed = seed
        network = GrowingNetwork(task.build_host(), slots, GateConfig())
        self.network = network.to(device=splits.train_x.device, memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        self.host_optimizer = self._optimizer(self.network.host_parameters(), task.host_learning_rate)
        self.slot_optimizers: dict[int, torch.optim.SGD] = {}

    def reset(self, round_index: int) -> None:
        """A fresh host with empty slots, in place."""
        self.network.reset(generator(self.seed, "host", self.index, round_index))
        self.host_optimizer.state.clear()
        self.slot_optimizers.clear()

    def apply(self, action: Action, round_index: int, step: int) -> list[Move]:
        """Carry out a decision. The masks keep illegal ones from getting here.

        Raises:
            IllegalTransition: the op is not legal in the slot's stage.
        """
        op, slot = Op(action.op), self.network.slots[action.slot]
        curve, speed = CURVES[action.alpha_curve], SPEEDS[action.alpha_speed]
        if op is Op.GERMINATE:
            style = STYLES[action.style]
            move = slot.germinate(
                self.task.blueprints[action.blueprint],
                style.blend,
                style.curve,
                TEMPOS[action.tempo],
                TARGETS[action.alpha_target],
                generator(self.seed, "seed", self.index, round_index, step, action.slot),
            )
        elif op is Op.ADVANCE:
            move = slot.advance()
        elif op is Op.SET_ALPHA:
            move = slot.set_alpha(TARGETS[action.alpha_target], speed, curve, STYLES[action.style].blend)
        elif op is Op.CULL:
            move = slot.cull(speed, curve, "cull")
        elif op is Op.FOSSILIZE:
            move = slot.fossilize()
        else:
            move = None
        self.match_optimizers()
        return [move] if move else []

    def tick(self) -> list[Move]:
        """End the epoch for every slot."""
        moves = [move for slot in self.network.slots for move in slot.tick()]
        self.match_optimizers()
        return moves

    def match_optimizers(self) -> None:
        """One optimizer for each seed that there is: built when it is planted, dropped when it is removed."""
        for index, slot in enumerate(self.network.slots):
            if slot.seed is None:
                self.slot_optimizers.pop(index, None)
            elif index not in self.slot_optimizers:
                parameters = self.network.slot_parameters(index)
                self.slot_optimizers[index] = self._optimizer(parameters, self.task.seed_learning_rate)

    def _optimizer(self, parameters: list[nn.Parameter], learning_rate: float) -> torch.optim.SGD:
        task = self.task
        return torch.optim.SGD(
            parameters,
            lr=learning_rate,
            momentum=task.momentum,
            nesterov=True,
            weight_decay=task.weight_decay,
            fused=True,
        )

    def train(self, round_index: int, step: int) -> Tensor:
        """Train one epoch of `samples_per_epoch` samples in this env's own order.

        Returns:
            [2 + 1 + trained slots] on the device: mean loss, accuracy, mean gradient norm of the host, then of each
            slot that trains, in order.
        """
        task, splits, network = self.task, self.splits, self.network
        network.train()
        alphas = network.alphas()
        owners = [(self.host_optimizer, network.host_parameters(), self.training.host_clip)]
        for index in self.trained_slots():
            owners.append((self.slot_optimizers[index], network.slot_parameters(index), self.training.seed_clip))
        order = torch.randperm(
            len(splits.train_y), generator=generator(self.seed, "order", self.index, round_index, step)
        )
        order = order[: task.samples_per_epoch].to(splits.train_x.device)
        batches_x = splits.train_x[order].split(task.batch_size)
        batches_y = splits.train_y[order].split(task.batch_size)
        sums = torch.zeros(2 + len(owners), device=splits.train_x.device)
        for x_BCHW, y_B in zip(batches_x, batches_y, strict=True):
            logits_BK = network(x_BCHW, alphas)
            loss = F.cross_entropy(logits_BK, y_B)
            for optimizer, _, _ in owners:
                optimizer.zero_grad(set_to_none=True)
            loss.backward()
            norms = [nn.utils.clip_grad_norm_(parameters, clip) for _, parameters, clip in owners]
            for optimizer, _, _ in owners:
                optimizer.step()
            with torch.no_grad():
                hits = (logits_BK.argmax(dim=-1) == y_B).sum()
                share = len(y_B) / len(order)
                sums += torch.stack([loss * share, hits / len(order), *(norm / len(batches_x) for norm in norms)])
        return sums

    @torch.inference_mode()
    def validate(self) -> Tensor:
        """Measure loss and accuracy, and what each blended seed contributes to the latter.

        Returns:
            [2 + 2 V'] on the device, V' blended slots: mean loss, accuracy, then for each blended slot in order its
            contribution and the standard error of that, paired over the samples.
        """
        network, splits = self.network, self.splits
        network.eval()
        alphas, blended = network.alphas(), self.blended_slots()
        loss = torch.zeros((), device=splits.validation_x.device)
        hits_VN: list[Tensor] = []
        batches = zip(
            splits.validation_x.split(VALIDATION_BATCH), splits.validation_y.split(VALIDATION_BATCH), strict=True
        )
        for x_BCHW, y_B in batches:
            logits_VBK = network.forward_ablations(x_BCHW, alphas, blended)
            loss += F.cross_entropy(logits_VBK[0], y_B, reduction="sum")
            hits_VN.append((logits_VBK.argmax(dim=-1) == y_B).float())
        hits = torch.cat(hits_VN, dim=1)
        gains = hits[0] - hits[1:]
        means = gains.mean(dim=1)
        errors = ((gains.square().mean(dim=1) - means.square()) / gains.shape[1]).sqrt()
        contributions = torch.stack((means, errors), dim=1).flatten()
        return torch.cat((torch.stack((loss / hits.shape[1], hits[0].mean())), contributions))

    def trained_slots(self) -> list[int]:
        """Slots whose seed gets a gradient this epoch."""
        return [i for i, slot in enumerate(self.network.slots) if slot.stage is Stage.TRAINING or slot.stage.blended]

    def blended_slots(self) -> list[int]:
        """Slots whose seed changes what the network says."""
        return [i for i, slot in enumerate(self.network.slots) if slot.stage.blended]

    def take(self, trained: list[float], validated: list[float]) -> Measurement:
        """Give the numbers of `train` and `validate`, once on the host, their names; note them in the slots."""
        norms = dict(zip(self.trained_slots(), trained[3:], strict=True))
        pairs = zip(validated[2::2], validated[3::2], strict=True)
        contributions = dict(zip(self.blended_slots(), pairs, strict=True))
        for index, slot in enumerate(self.network.slots):
            slot.grad_norm = norms.get(index)
            if index in contributions:
                slot.measure(*contributions[index])
        return Measurement(
            train_loss=trained[0],
            train_accuracy=trained[1],
            loss=validated[0],
            accuracy=validated[1],
            grad_norm=trained[2],
            slot_grad_norms=norms,
            contributions=contributions,
        )
