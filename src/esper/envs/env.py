"""Env: a growing network that applies actions, trains for an epoch, and is validated.

Shapes: B samples of a batch, N samples of a split, K classes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.config import Config, CounterfactualName
from esper.domain import Op, Stage
from esper.envs.counterfactual import read_effects, validate_variants
from esper.envs.fused_ops import foreach_norm, l2_norm
from esper.envs.optimizer import FusedSGD, lr_scale
from esper.envs.precision import LossScaler, autocast, resolve_amp
from esper.envs.stopwatch import PhaseTimer
from esper.growth.blend import ALPHA_TARGETS, BLEND_STYLES, INITIAL_RAMP_EPOCHS, RAMP_EPOCHS
from esper.growth.lifecycle import GateConfig, StageTransition
from esper.growth.network import GrowingNetwork
from esper.policy.actions import ALPHA_CURVES, Action
from esper.seeding import make_generator
from esper.tasks.task import Splits, Task

VALIDATION_BATCH_SIZE = 1024


def max_result_width(slots: int) -> int:
    """Return the maximum number of values that `train_epoch` and `validate` together return for one env."""
    return (6 + 2 * (1 + slots)) + (2 + 3 * slots)


@dataclass(kw_only=True)
class EpochResult:
    """Results of one epoch of one env. Gradient norms are means over its batches, before clipping.

    Attributes:
        weights_finite: True if all weights of the host and of the trained seeds are finite after the last batch.
        slot_grad_norms: Keyed by index of the slot; only slots that trained.
        loss_scale: Loss scale at the end of the epoch; None without loss scaling.
        growth_tracker: Clean batches since the loss scale last changed; None without loss scaling.
        skipped_batches: Batches without an optimizer step, because a gradient overflowed; 0 without loss scaling.
        overflows_by_owner: Skipped batches keyed by the owner of the gradient that overflowed ("host" or a slot name).
        contributions: Contribution to the accuracy (a fraction) and its standard error, keyed by index of the slot;
            only slots with a blended seed.
        shapley: Shapley values, keyed by index of the slot; empty if not measured (only at the end of an episode).
    """

    train_loss: float
    train_accuracy: float
    weights_finite: bool
    loss: float
    accuracy: float
    grad_norm: float
    slot_grad_norms: dict[int, float]
    loss_scale: float | None
    growth_tracker: int | None
    skipped_batches: int
    overflows_by_owner: dict[str, int]
    contributions: dict[int, tuple[float, float]]
    shapley: dict[int, float]


class Env:
    """A growing network with its optimizers and its data order.

    Args:
        index: Index of the env in the population.
        task: Task that the network trains on.
        splits: Data of the task, on the env's device.
        slots: Names of the slots to use.
        config: Configuration of the run.
        scaler: Loss scaler of this env, or of all envs of its lane; None unless autocast uses float16.
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
        """Index of the host in the population. Envs with the same host share its initial weights, the order of their
        data, and the initial weights of their seeds."""
        self.scaler = scaler
        self._device = splits.train_x.device
        self._dtype = resolve_amp(config.amp, self._device)
        network = GrowingNetwork(
            task.build_host(), slots, GateConfig(require_contribution=config.counterfactual != "off")
        )
        self.network = network.to(device=self._device).to(memory_format=torch.channels_last)
        self.host_optimizer = self._optimizer(
            self.network.host_parameters(), task.host_learning_rate, self.training.host_clip
        )
        self.slot_optimizers: dict[int, FusedSGD] = {}
        self.epoch_seconds = 1.0
        """Duration of the last epoch in seconds, for balancing CPU lanes; 1.0 before the first."""

    def reset(self, round_index: int) -> None:
        """Initialise the host for a new episode and empty all slots, in place."""
        self.network.reset(make_generator(self.seed, "host", self._host, round_index))
        for momentum in self.host_optimizer.momenta:
            momentum.zero_()
        self.slot_optimizers.clear()

    def apply_action(self, action: Action, round_index: int, step: int) -> list[StageTransition]:
        """Apply an action, and return the transition that it caused, if any. The policy's masks exclude illegal ones.

        Args:
            action: Action to apply.
            round_index: Index of the round, from 0; part of the random seed of a new seed's weights.
            step: Index of the step, from 0; likewise.

        Raises:
            IllegalTransitionError: The op is illegal in the slot's current state.
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
                make_generator(self.seed, "seed", self._host, round_index, step, action.slot),
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
        """End the epoch in every slot, and return the transitions that need no decision."""
        moves = [move for slot in self.network.slots for move in slot.tick()]
        self.sync_optimizers()
        return moves

    def sync_optimizers(self) -> None:
        """Create an optimizer for each new seed, and drop those of removed seeds.

        A blend that changes to or from GATE adds or removes parameters; all other parameters keep their momenta.
        """
        for index, slot in enumerate(self.network.slots):
            if slot.seed is None:
                self.slot_optimizers.pop(index, None)
                continue
            current, parameters = self.slot_optimizers.get(index), self.network.slot_parameters(index)
            if current is None or not current.has_same_parameters(parameters):
                optimizer = self._optimizer(parameters, self.task.seed_learning_rate, self.training.seed_clip)
                if current is not None:
                    optimizer.copy_momenta_from(current)
                self.slot_optimizers[index] = optimizer

    def _optimizer(self, parameters: list[nn.Parameter], learning_rate: float, clip: float) -> FusedSGD:
        task = self.task
        return FusedSGD(
            parameters,
            learning_rate=learning_rate,
            momentum=task.momentum,
            weight_decay=task.weight_decay,
            clip=clip,
        )

    def run_epoch(self, round_index: int, step: int, timer: PhaseTimer, *, last: bool) -> list[Tensor]:
        """Train one epoch and validate; return the results of `train_epoch` and `validate`.

        Args:
            round_index: Index of the round, from 0.
            step: Index of the step, from 0.
            timer: Receives the times of the phases "train" and "validate".
            last: True in the last step of an episode; see `validate`.
        """
        start = time.perf_counter()
        with timer("train"):
            trained = self.train_epoch(round_index, step)
        with timer("validate"):
            validated = self.validate(last=last)
        self.epoch_seconds = time.perf_counter() - start
        return [trained, validated]

    def train_epoch(self, round_index: int, step: int) -> Tensor:
        """Train one epoch of `samples_per_epoch` samples.

        Returns:
            [6 + 2 O] on the device, for O owners of parameters (the host, then each slot that trains): mean loss,
            accuracy, 1 if all weights are finite, loss scale and its growth tracker (0 without loss scaling), number
            of skipped batches, mean gradient norm of each owner over the batches that were not skipped, and number of
            batches in which the owner's gradient overflowed.
        """
        self.network.train()
        optimizers = self.active_optimizers()
        for optimizer in optimizers:
            optimizer.lr_scale = lr_scale(step, self._steps)
        x_NCHW, y_N = self.epoch_data(round_index, step)
        batch_size = self.task.batch_size
        batches = zip(torch.split(x_NCHW, batch_size), torch.split(y_N, batch_size), strict=True)
        logits, norms = zip(*(self.train_batch(optimizers, x_BCHW, y_B) for x_BCHW, y_B in batches), strict=True)
        logits_NK = torch.cat(logits).float()
        hits = (logits_NK.argmax(dim=-1) == y_N).float().mean()
        loss = F.cross_entropy(logits_NK, y_N)
        scaler = self.scaler
        scale = torch.stack((scaler.current(), scaler.growth_tracker().float())) if scaler else loss.new_zeros(2)
        finite = (
            torch.stack(foreach_norm([p for optimizer in optimizers for p in optimizer.parameters])).isfinite().all()
        )
        return torch.cat((torch.stack((loss, hits, finite.float())), scale, self._grad_norm_stats(norms)))

    def train_batch(self, optimizers: Sequence[FusedSGD], x_BCHW: Tensor, y_B: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Train the host and the active seeds on one batch.

        Args:
            optimizers: Result of `active_optimizers`.
            x_BCHW: Images.
            y_B: Their labels.

        Returns:
            Logits [B, K], and the gradient norm of each optimizer's parameters before clipping, scalars on the device.
        """
        with autocast(self._device, self._dtype):
            logits_BK = self.network(x_BCHW, self.network.alphas())
            loss = F.cross_entropy(logits_BK, y_B)
        try:
            torch.autograd.backward(self.scaler.scale_loss(loss) if self.scaler else loss)
            return logits_BK.detach(), self._optimize(optimizers)
        finally:  # also after an out-of-memory error
            for optimizer in optimizers:
                optimizer.zero_grad()

    def active_optimizers(self) -> list[FusedSGD]:
        """Return the optimizers that step in this epoch: the host's, then that of each slot that trains."""
        return [self.host_optimizer, *(self.slot_optimizers[index] for index in self.trained_slots())]

    @property
    def batches_per_epoch(self) -> int:
        """Number of batches in an epoch."""
        samples = min(len(self.splits.train_y), self.task.samples_per_epoch)
        return -(-samples // self.task.batch_size)

    def epoch_data(self, round_index: int, step: int) -> tuple[Tensor, Tensor]:
        """Return images and labels of one epoch, in an order that depends on the host, the round and the step."""
        splits = self.splits
        generator = make_generator(self.seed, "order", self._host, round_index, step)
        pinned = self._device.type == "cuda"  # a copy from pageable memory would block the host
        order_N = torch.randperm(len(splits.train_y), generator=generator, pin_memory=pinned)
        order_N = order_N[: self.task.samples_per_epoch].to(self._device, non_blocking=True)
        # In channels_last, an image is contiguous in memory and is copied as one block.
        x_NHWC = splits.train_x.permute(0, 2, 3, 1).index_select(0, order_N)
        return x_NHWC.permute(0, 3, 1, 2), splits.train_y[order_N]

    @torch.no_grad()
    def _optimize(self, optimizers: Sequence[FusedSGD]) -> list[Tensor]:
        """Clip the gradients of each optimizer and step it; step none of them if a gradient overflowed.

        Returns:
            Gradient norm of each optimizer's parameters before clipping, scalars on the device.
        """
        gradients = [optimizer.gradients() for optimizer in optimizers]
        all_grads = [grad for part in gradients for grad in part.values]
        if self.scaler:
            self.scaler.unscale_grads_([parameter for optimizer in optimizers for parameter in optimizer.parameters])
        norms = torch.split(torch.stack(foreach_norm(all_grads)), [len(part.values) for part in gradients])
        norm_O = [l2_norm(norm) for norm in norms]
        overflow = self.scaler.update(torch.stack(norm_O)) if self.scaler else None
        for optimizer, part, norm in zip(optimizers, gradients, norm_O, strict=True):
            optimizer.step(part, norm, overflow)
        return norm_O

    def _grad_norm_stats(self, norms: Sequence[list[Tensor]]) -> Tensor:
        """Summarise the gradient norms of M batches and O owners.

        Without loss scaling no batch is skipped, and a non-finite gradient makes the mean non-finite. Each owner is
        summed separately, so that the host's mean does not depend, to the bit, on the number of seeds.

        Args:
            norms: For each batch, the norm of each owner.

        Returns:
            [1 + 2 O] on the device: number of skipped batches, mean norm of each owner over the other batches, and
            number of batches in which the owner's gradient overflowed.
        """
        norm_OM = [torch.stack(norm_M) for norm_M in zip(*norms, strict=True)]
        if self.scaler is None:
            mean_O = torch.stack([norm_M.mean() for norm_M in norm_OM])
            return torch.cat((mean_O.new_zeros(1), mean_O, torch.zeros_like(mean_O)))
        overflow_OM = torch.stack([~norm_M.isfinite() for norm_M in norm_OM])
        skipped_M = overflow_OM.any(dim=0)
        total_O = torch.stack([norm_M.masked_fill(skipped_M, 0.0).sum() for norm_M in norm_OM])
        return torch.cat((skipped_M.sum(dim=0, keepdim=True), total_O / (~skipped_M).sum(), overflow_OM.sum(dim=1)))

    @torch.inference_mode()
    def validate(self, *, last: bool) -> Tensor:
        """Measure loss and accuracy on the validation split, and the contribution of each measured seed.

        Args:
            last: True in the last step of an episode. Shapley values are measured then, if they are configured.

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
        """Return the accuracy on the test split, [1] on the device. For `evaluate` only."""
        self.network.eval()
        alphas, splits = self.network.alphas(), self.splits
        batches = zip(
            torch.split(splits.test_x, VALIDATION_BATCH_SIZE),
            torch.split(splits.test_y, VALIDATION_BATCH_SIZE),
            strict=True,
        )
        hits = [(self.network(x_BCHW, alphas).argmax(dim=-1) == y_B).float() for x_BCHW, y_B in batches]
        return torch.cat(hits).mean(dim=0, keepdim=True)

    def trained_slots(self) -> list[int]:
        """Return the indices of the slots whose seed trains in this epoch."""
        return [i for i, slot in enumerate(self.network.slots) if slot.stage is Stage.TRAINING or slot.stage.is_blended]

    def blended_slots(self) -> list[int]:
        """Return the indices of the slots whose seed contributes to the network's output."""
        return [i for i, slot in enumerate(self.network.slots) if slot.stage.is_blended]

    def measured_slots(self) -> list[int]:
        """Return the indices of the slots whose contribution is measured."""
        return [] if self.counterfactual == "off" else self.blended_slots()

    def unpack_results(self, trained: list[float], validated: list[float]) -> EpochResult:
        """Unpack the values of `train_epoch` and `validate` into an `EpochResult`, and update the slots."""
        slots = self.trained_slots()
        norms, overflows = trained[6 : 7 + len(slots)], trained[7 + len(slots) :]
        owners = ["host", *(self.network.slots[index].name for index in slots)]
        slot_norms = dict(zip(slots, norms[1:], strict=True))
        contributions, shapley = read_effects(validated[2:], self.measured_slots())
        for index, slot in enumerate(self.network.slots):
            slot.grad_norm = slot_norms.get(index)
            if index in contributions:
                slot.record_contribution(*contributions[index])
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
            skipped_batches=int(trained[5]),
            overflows_by_owner={owner: int(count) for owner, count in zip(owners, overflows, strict=True) if count},
            contributions=contributions,
            shapley=shapley,
        )
