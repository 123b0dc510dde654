"""Env: a host with its slots; applies an action, trains an epoch, validates.

Shapes: B samples of a batch, N samples of a split, K classes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import (
    Tensor,
    _foreach_norm,  # pyright: ignore[reportPrivateImportUsage]  (what torch.nn.utils.get_total_norm is made of)
    nn,
)

from esper.config import Config, CounterfactualName
from esper.domain import Op, Stage
from esper.envs.counterfactual import read_effects, validate_variants
from esper.envs.optimizer import FusedSGD
from esper.envs.precision import LossScaler, autocast, resolve_amp
from esper.envs.stopwatch import PhaseTimer
from esper.growth.blend import ALPHA_TARGETS, BLEND_STYLES, INITIAL_RAMP_EPOCHS, RAMP_EPOCHS
from esper.growth.lifecycle import GateConfig, StageTransition
from esper.growth.network import GrowingNetwork
from esper.policy.actions import ALPHA_CURVES, Action
from esper.seeding import make_generator as seeded
from esper.tasks.task import Splits, Task

VALIDATION_BATCH_SIZE = 1024
COOLDOWN_FRACTION = 0.25
"""Share of an episode, its last, in which the learning rate falls."""
FINAL_LR_FRACTION = 0.1
"""Share of the learning rate that is left in an episode's last step."""


def max_result_width(slots: int) -> int:
    """How many numbers `train` and `validate` together leave of an env whose slots are all in use, at most."""
    return (6 + 2 * (1 + slots)) + (2 + 3 * slots)


def lr_scale(step: int, steps: int) -> float:
    """Share of the learning rate that a step of an episode has: all of it, and at the end a linear fall to `LEFT`.

    At a constant rate the last epoch is measured with the noise of its last few minibatches in it (constant rate with
    cooldown: Hägele et al., 2024).
    """
    fallen = ((step + 1) / steps - (1.0 - COOLDOWN_FRACTION)) / COOLDOWN_FRACTION
    return 1.0 - (1.0 - FINAL_LR_FRACTION) * max(fallen, 0.0)


@dataclass(kw_only=True)
class EpochResult:
    """What one epoch of one env came to. Gradient norms are means over its batches, before clipping."""

    train_loss: float
    train_accuracy: float
    weights_finite: bool
    """Of the host and of every seed that trains, after the last batch."""
    loss: float
    accuracy: float
    grad_norm: float
    slot_grad_norms: dict[int, float]
    """By slot: only those that trained."""
    loss_scale: float | None
    """At the end of the epoch; None without loss scaling."""
    growth_tracker: int | None
    """Clean batches since that scale last changed."""
    lost: int
    """Batches that taught nothing since a gradient of any owner overflowed; with loss scaling only."""
    skipped: dict[str, int]
    """Batches that taught nothing since a gradient overflowed, by its owner, host or slot; with loss scaling only."""
    contributions: dict[int, tuple[float, float]]
    """By slot, for those that are blended: contribution to the accuracy and its standard error."""
    shapley: dict[int, float]
    """By slot, for the same, where Shapley values were asked for: at the end of an episode."""


class Env:
    """A network that trains, and is grown.

    Args:
        index: number of the env in the population.
        task: what it learns.
        splits: the task's data, on the env's device.
        slots: names of the slots to use.
        config: of the run.
        scaler: of its losses, its own or that of its lane; None unless autocast is to float16.
    """

    def __init__(
        self,
        index: int,
        task: Task,
        splits: Splits,
        slots: Sequence[str],
        config: Config,
        scaler: LossScaler | None,
    ) -> None:
        self.index = index
        self.task = task
        self.splits = splits
        self.training = config.training
        self.counterfactual: CounterfactualName = config.counterfactual
        self.seed = config.seed
        self._steps = config.steps
        self._host = index // config.envs_per_host
        """Number of the host in the population. Envs of one host also see the same data, and plant the same seeds."""
        self.scaler = scaler
        self._device = splits.train_x.device
        self._dtype = resolve_amp(config.amp, self._device)
        network = GrowingNetwork(
            task.build_host(), slots, GateConfig(require_contribution=config.counterfactual != "off")
        )
        self.network = network.to(device=self._device, memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        self.host_optimizer = self._optimizer(
            self.network.host_parameters(), task.host_learning_rate, self.training.host_clip
        )
        self.slot_optimizers: dict[int, FusedSGD] = {}
        self.epoch_seconds = 1.0
        """That its last epoch took on a CPU; as long as any other before there was one."""

    def reset(self, round_index: int) -> None:
        """A fresh host with empty slots, in place."""
        self.network.reset(seeded(self.seed, "host", self._host, round_index))
        for momentum in self.host_optimizer.momenta:
            momentum.zero_()
        self.slot_optimizers.clear()

    def apply_action(self, action: Action, round_index: int, step: int) -> list[StageTransition]:
        """Carry out a decision. The masks keep illegal ones from getting here.

        Raises:
            IllegalTransitionError: the op is not legal in the slot's stage.
        """
        op, slot = Op(action.op), self.network.slots[action.slot]
        curve, speed = ALPHA_CURVES[action.alpha_curve], RAMP_EPOCHS[action.alpha_speed]
        if op is Op.GERMINATE:
            style = BLEND_STYLES[action.style]
            move = slot.germinate(
                self.task.blueprints[action.blueprint],
                style.blend,
                style.curve,
                INITIAL_RAMP_EPOCHS[action.tempo],
                ALPHA_TARGETS[action.alpha_target],
                seeded(self.seed, "seed", self._host, round_index, step, action.slot),
            )
        elif op is Op.ADVANCE:
            move = slot.advance()
        elif op is Op.SET_ALPHA:
            move = slot.set_alpha(ALPHA_TARGETS[action.alpha_target], speed, curve, BLEND_STYLES[action.style].blend)
        elif op is Op.CULL:
            move = slot.cull(speed, curve, "cull")
        elif op is Op.FOSSILIZE:
            move = slot.fossilize()
        else:
            move = None
        self.sync_optimizers()
        return [move] if move else []

    def tick(self) -> list[StageTransition]:
        """End the epoch for every slot."""
        moves = [move for slot in self.network.slots for move in slot.tick()]
        self.sync_optimizers()
        return moves

    def sync_optimizers(self) -> None:
        """One optimizer for each seed that there is: built when it is planted, dropped when it is removed.

        A seed whose blend is changed to or from GATE gains or loses parameters; the others keep their momenta.
        """
        for index, slot in enumerate(self.network.slots):
            if slot.seed is None:
                self.slot_optimizers.pop(index, None)
                continue
            before, parameters = self.slot_optimizers.get(index), self.network.slot_parameters(index)
            if before is None or not before.has_same_parameters(parameters):
                now = self._optimizer(parameters, self.task.seed_learning_rate, self.training.seed_clip)
                if before is not None:
                    now.copy_momenta_from(before)
                self.slot_optimizers[index] = now

    def _optimizer(self, parameters: list[nn.Parameter], learning_rate: float, clip: float) -> FusedSGD:
        task = self.task
        return FusedSGD(
            parameters,
            learning_rate=learning_rate,
            momentum=task.momentum,
            weight_decay=task.weight_decay,
            clip=clip,
        )

    def run_epoch(self, round_index: int, step: int, stopwatch: PhaseTimer, *, last: bool) -> list[Tensor]:
        """Train one epoch, then measure what came of it: what `train` and `validate` return, timed as such."""
        start = time.perf_counter()
        with stopwatch("train"):
            trained = self.train_epoch(round_index, step)
        with stopwatch("validate"):
            validated = self.validate(last=last)
        self.epoch_seconds = time.perf_counter() - start
        return [trained, validated]

    def train_epoch(self, round_index: int, step: int) -> Tensor:
        """Train one epoch of `samples_per_epoch` samples in this env's own order.

        Returns:
            [6 + 2 O] on the device for O owners of parameters, the host and then each slot that trains, in order: mean
            loss, accuracy, whether all weights are finite, loss scale and its growth tracker (0 without one), number of
            batches that were skipped, mean gradient norm of each owner over the others, and number of batches that
            were, for a gradient of this owner.
        """
        self.network.train()
        owners = self.active_optimizers()
        for owner in owners:
            owner.lr_scale = lr_scale(step, self._steps)
        x_NCHW, y_N = self.epoch_data(round_index, step)
        batches = zip(x_NCHW.split(self.task.batch_size), y_N.split(self.task.batch_size), strict=True)
        logits, norms = zip(*(self.train_batch(owners, x_BCHW, y_B) for x_BCHW, y_B in batches), strict=True)
        logits_NK = torch.cat(logits).float()
        hits = (logits_NK.argmax(dim=-1) == y_N).float().mean()
        loss = F.cross_entropy(logits_NK, y_N)
        scaler = self.scaler
        scale = torch.stack((scaler.current(), scaler.growth_tracker().float())) if scaler else loss.new_zeros(2)
        finite = torch.stack(_foreach_norm([p for owner in owners for p in owner.parameters])).isfinite().all()
        return torch.cat((torch.stack((loss, hits, finite.float())), scale, self._grad_norm_stats(norms)))

    def train_batch(self, owners: Sequence[FusedSGD], x_BCHW: Tensor, y_B: Tensor) -> tuple[Tensor, list[Tensor]]:
        """One minibatch, for the host and the seeds that train.

        Returns:
            logits [B, K], and the norm of each owner's gradient before clipping, scalars on the device.
        """
        with autocast(self._device, self._dtype):
            logits_BK = self.network(x_BCHW, self.network.alphas())
            loss = F.cross_entropy(logits_BK, y_B)
        try:
            (self.scaler.scale_loss(loss) if self.scaler else loss).backward()
            return logits_BK.detach(), self._optimize(owners)
        finally:  # also where memory ran out on the way
            for owner in owners:
                owner.zero_grad()

    def active_optimizers(self) -> list[FusedSGD]:
        """Who has a gradient in this epoch: the host, then each slot that trains."""
        return [self.host_optimizer, *(self.slot_optimizers[index] for index in self.trained_slots())]

    @property
    def batches_per_epoch(self) -> int:
        """In an epoch."""
        samples = min(len(self.splits.train_y), self.task.samples_per_epoch)
        return -(-samples // self.task.batch_size)

    def epoch_data(self, round_index: int, step: int) -> tuple[Tensor, Tensor]:
        """Pictures and labels of one epoch, in an order that belongs to this env's host, the round and the step."""
        splits = self.splits
        generator = seeded(self.seed, "order", self._host, round_index, step)
        pinned = self._device.type == "cuda"  # or the copy would hold the host up
        order_N = torch.randperm(len(splits.train_y), generator=generator, pin_memory=pinned)
        order_N = order_N[: self.task.samples_per_epoch].to(self._device, non_blocking=True)
        # In channels_last a picture is a row of memory, and is copied as one.
        x_NHWC = splits.train_x.permute(0, 2, 3, 1).index_select(0, order_N)
        return x_NHWC.permute(0, 3, 1, 2), splits.train_y[order_N]

    @torch.no_grad()
    def _optimize(self, owners: Sequence[FusedSGD]) -> list[Tensor]:
        """Clip the gradient of each owner, and step its optimizer; none of them if scaling made one overflow.

        Returns:
            The norm of each one's gradient before that, a scalar on the device.
        """
        found = [owner.gradients() for owner in owners]
        every = [value for gradients in found for value in gradients.values]
        if self.scaler:
            self.scaler.unscale_grads_([parameter for owner in owners for parameter in owner.parameters])
        norms = torch.stack(_foreach_norm(every)).split([len(gradients.values) for gradients in found])
        norm_O = [torch.linalg.vector_norm(norm) for norm in norms]
        overflow = self.scaler.update(torch.stack(norm_O)) if self.scaler else None
        for owner, gradients, norm in zip(owners, found, norm_O, strict=True):
            owner.step(gradients, norm, overflow)
        return norm_O

    def _grad_norm_stats(self, norms: Sequence[list[Tensor]]) -> Tensor:
        """From the norms in each of M batches: how many were skipped; for each owner the mean, and how many overflowed.

        Without loss scaling nothing is skipped, and a gradient that is not finite shows in the mean. Each owner's are
        summed by themselves, so that the host's mean is the same to the bit whoever else there is.

        Returns:
            [1 + 2 O] on the device.
        """
        norm_OM = [torch.stack(each) for each in zip(*norms, strict=True)]
        if self.scaler is None:
            mean_O = torch.stack([norm_M.mean() for norm_M in norm_OM])
            return torch.cat((mean_O.new_zeros(1), mean_O, torch.zeros_like(mean_O)))
        overflow_OM = torch.stack([~norm_M.isfinite() for norm_M in norm_OM])
        skipped_M = overflow_OM.any(dim=0)
        total_O = torch.stack([norm_M.masked_fill(skipped_M, 0.0).sum() for norm_M in norm_OM])
        return torch.cat((skipped_M.sum(dim=0, keepdim=True), total_O / (~skipped_M).sum(), overflow_OM.sum(dim=1)))

    @torch.inference_mode()
    def validate(self, *, last: bool) -> Tensor:
        """Measure loss and accuracy on the validation split, and the effect of each measured seed on the accuracy.

        Args:
            last: True at the end of an episode: Shapley values are measured too, if the configuration asks for them.

        Returns:
            [2 + 2 n] or [2 + 3 n] on the device for n measured slots, as `validate_variants` describes.
        """
        self.network.eval()
        return validate_variants(
            self.network,
            self.measured_slots(),
            self.splits.validation_x,
            self.splits.validation_y,
            batch_size=VALIDATION_BATCH_SIZE,
            subsets=last and self.counterfactual == "shapley",
        )

    @torch.inference_mode()
    def test_accuracy(self) -> Tensor:
        """Accuracy on the test split, [1] on the device. For `evaluate` only."""
        self.network.eval()
        alphas, splits = self.network.alphas(), self.splits
        batches = zip(
            splits.test_x.split(VALIDATION_BATCH_SIZE), splits.test_y.split(VALIDATION_BATCH_SIZE), strict=True
        )
        hits = [(self.network(x_BCHW, alphas).argmax(dim=-1) == y_B).float() for x_BCHW, y_B in batches]
        return torch.cat(hits).mean(dim=0, keepdim=True)

    def trained_slots(self) -> list[int]:
        """Slots whose seed gets a gradient this epoch."""
        return [i for i, slot in enumerate(self.network.slots) if slot.stage is Stage.TRAINING or slot.stage.is_blended]

    def blended_slots(self) -> list[int]:
        """Slots whose seed changes what the network says."""
        return [i for i, slot in enumerate(self.network.slots) if slot.stage.is_blended]

    def measured_slots(self) -> list[int]:
        """Slots whose seed has its contribution measured."""
        return [] if self.counterfactual == "off" else self.blended_slots()

    def unpack_results(self, trained: list[float], validated: list[float]) -> EpochResult:
        """Unpack the values of `train` and `validate` into a `Measurement`, and update the slots."""
        owners = self.trained_slots()
        norms, lost = trained[6 : 7 + len(owners)], trained[7 + len(owners) :]
        names = ["host", *(self.network.slots[index].name for index in owners)]
        slot_norms = dict(zip(owners, norms[1:], strict=True))
        contributed, shapley = read_effects(validated[2:], self.measured_slots())
        for index, slot in enumerate(self.network.slots):
            slot.grad_norm = slot_norms.get(index)
            if index in contributed:
                slot.record_contribution(*contributed[index])
        return EpochResult(
            train_loss=trained[0],
            train_accuracy=trained[1],
            weights_finite=bool(trained[2]),
            loss=validated[0],
            accuracy=validated[1],
            grad_norm=norms[0],
            slot_grad_norms=slot_norms,
            loss_scale=trained[3] if self.scaler else None,
            growth_tracker=int(trained[4]) if self.scaler else None,
            lost=int(trained[5]),
            skipped={name: int(count) for name, count in zip(names, lost, strict=True) if count},
            contributions=contributed,
            shapley=shapley,
        )
