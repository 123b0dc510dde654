"""Env: a growing network that applies actions, trains for an epoch, and is validated.

Shapes: B samples of a batch, N samples of a split.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial

import torch
from torch import Tensor, nn

from esper.common.configuration.config import Config, CounterfactualName
from esper.common.domain import Op, Stage
from esper.common.seeding import EpisodeKey, forked_generators, make_generator, seed_global_generators
from esper.networks.seeds.blend import ALPHA_TARGETS, BLEND_STYLES, INITIAL_RAMP_EPOCHS, RAMP_EPOCHS
from esper.networks.seeds.lifecycle import GateConfig, StageTransition
from esper.networks.seeds.network import GrowingNetwork, count_samples
from esper.networks.seeds.outputs import Nested, concatenate, map_tensors, to_float32
from esper.networks.seeds.tensors import module_tensors
from esper.networks.tasks.contexts import context_splits, draw_context
from esper.networks.tasks.family import LEARNING_RATE
from esper.networks.tasks.lazy_split import LazySplit, ReadPlan
from esper.networks.tasks.losses import loss_of, score_of
from esper.networks.tasks.per_sample import PerSample
from esper.networks.tasks.schedules import is_by_step, lr_factor
from esper.networks.tasks.splits import Split, TaskData, batches, lazy_of, take
from esper.training.envs.counterfactual import read_effects, validate_variants
from esper.training.envs.cuda_graphs import StepGraphs
from esper.training.envs.epoch_result import EpochResult, SmallResults, TrainedBatch, TrainedValues, Validation
from esper.training.envs.fused_ops import foreach_norm, l2_norm
from esper.training.envs.grad_norms import summarise_norms
from esper.training.envs.hosts import HostFactory, HostKind
from esper.training.envs.optimizer import ModuleOptimizer
from esper.training.envs.packing import PackedModules
from esper.training.envs.precision import LossScaler, autocast, resolve_amp
from esper.training.envs.recorded_step import train_recorded, validate_recorded
from esper.training.envs.stopwatch import PhaseTimer
from esper.training.envs.task_optimizer import check_groups, make_optimizer
from esper.training.policy.actions import ALPHA_CURVES, Action


class Env:
    """A growing network with its optimizers and its data order.

    Args:
        index: Index of the env in its pool. Its random draws follow from the key of its episode, whose env is this one
            at first.
        data: Data of the task, on the env's device.
        scaler: Loss scaler of this env, or of all envs of its lane; None unless autocast uses float16.
    """

    def __init__(
        self, index: int, hosts: HostFactory, data: TaskData, config: Config, scaler: LossScaler | None
    ) -> None:
        self.index = index
        self._data = data
        self.counterfactual: CounterfactualName = config.counterfactual
        self._context_seed = config.context_seed or config.seed
        self.steps = config.steps
        """Steps of an episode."""
        self._envs_per_host = config.envs_per_host
        self.scaler = scaler
        self._hosts = hosts
        self._device = hosts.device
        self._dtype = resolve_amp(config.amp, self._device, float32_defaults=hosts.task.float32_defaults)
        self._networks: dict[HostKind, GrowingNetwork] = {}
        """Networks by kind of the host. Each is built when an episode first needs it."""
        self._modules = PackedModules()
        self.slot_optimizers: dict[int, ModuleOptimizer] = {}
        """Optimizers of the planted seeds, with their blend gates, keyed by slot index."""
        self.epoch_seconds = 1.0
        """Duration of the last epoch in seconds, for balancing CPU lanes; 1.0 before the first."""
        self.key = EpisodeKey(config.seed, index, -1)
        """Key of the episode whose context the env has."""
        self.enter(self.key._replace(round=0))

    def enter(self, key: EpisodeKey) -> None:
        """Take the context of an episode: its kind of host, data and learning rate. Weights and slots stay as they
        are."""
        if self.key == key:
            return
        hosts, previous = self._hosts, self._kind if self.key.round >= 0 else None
        self.key = key
        self.context = draw_context(hosts.task, self._context_seed, self._host, key.round)
        structure = self.context.structure
        kind = self._kind = HostKind(structure, key.width)
        self.task, self.profile = hosts.task_of(kind), hosts.profile.of_structure(structure)
        self._loss, self._score = loss_of(self.task), score_of(self.task)
        if kind not in self._networks:
            gates = GateConfig(require_dependence=self.counterfactual != "off")
            network = self._networks[kind] = hosts.build_network(self._host, gates, kind)
            check_groups(self.task.optimizer, network.named_host_parameters())
            optimizer = make_optimizer(self.task.optimizer, network.named_host_parameters(), self.task.clip)
            self._modules.add(network.host, network.host_tensors, optimizer)
        if kind != previous:
            self.network = self._networks[kind]
            self.host_optimizer = self._modules.optimizer(self.network.host)
            self.slot_optimizers.clear()
            self.sync_optimizers()
        own_rate = self.task.optimizer.learning_rate
        learning_rate = self.context.settings.get(LEARNING_RATE, own_rate)
        if learning_rate is not None:  # the user's function builds an optimizer with a rate of its own
            self.host_optimizer.learning_rate = float(learning_rate)
        self.splits = context_splits(
            hosts.task, self._data[structure], self.context, self._context_seed, self._host, key.round
        )

    @property
    def _host(self) -> int:
        """Index of the host in the population. Envs with the same host share its initial weights, the order of their
        data, and the initial weights of their seeds."""
        return self.key.env // self._envs_per_host

    def reset(self, key: EpisodeKey) -> None:
        """Give the host the weights of a new episode and empty all slots, in place."""
        self.enter(key)
        for slot in self.network.slots:
            slot.reset()
        self._hosts.reset(self.network, key.seed, self._host, key.round, self._kind)
        self.host_optimizer.reset_state()
        self.slot_optimizers.clear()

    def apply_action(self, action: Action, step: int) -> list[StageTransition]:
        """Apply an action, and return the transition that it caused, if any. The policy's masks exclude illegal ones.

        Args:
            step: Index of the step, from 0; part of the random seed of a new seed's weights.

        Raises:
            IllegalTransitionError: The op is illegal in the slot's current state.
        """
        op, slot = Op(action.op), self.network.slots[action.slot]
        curve, speed = ALPHA_CURVES[action.alpha_curve], RAMP_EPOCHS[action.alpha_speed]
        if op is Op.GERMINATE:
            style = BLEND_STYLES[action.style]
            move = slot.germinate(
                self.profile.blueprints[action.blueprint],
                style.blend,
                style.curve,
                INITIAL_RAMP_EPOCHS[action.tempo],
                ALPHA_TARGETS[action.alpha_target],
                self._make_generator("seed", step, action.slot),
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
        """Give each new seed its optimizer, without momenta, and drop those of removed seeds.

        A blend that changes to or from GATE adds or removes parameters; all other parameters keep their momenta.
        """
        for index, slot in enumerate(self.network.slots):
            if slot.planted:
                self.slot_optimizers[index] = self._modules.update_optimizer(
                    self.slot_optimizers.get(index), slot.planted, self.task.seed_optimizer, self.task.seed_clip
                )
            else:
                self.slot_optimizers.pop(index, None)

    def optimizer_of(self, module: nn.Module) -> ModuleOptimizer:
        """Return the optimizer of the host, or of a seed or blend gate that was ever planted."""
        return self._modules.optimizer(module)

    def blocks(self) -> list[Tensor]:
        """Return flat tensors that together contain all weights, buffers and optimizer states, but no frozen weights.

        They are the same objects in every call while the env has the same host, seeds and blend gates.
        """
        planted = (module for slot in self.network.slots for module in slot.planted)
        return self._modules.blocks(self.network.host, *planted)

    def run_epoch(self, step: int, timer: PhaseTimer, *, last: bool) -> list[Tensor]:
        """Train one epoch and validate; return the results of `train_epoch` and `validate`.

        Args:
            timer: Receives the times of the phases "train" and "validate".
            last: True in the last step of an episode; see `validate`.
        """
        start = time.perf_counter()
        with timer("train"):
            trained = self.train_epoch(step)
        with timer("validate"):
            self._seed_generators("validation", step)
            validated = self.validate(last=last)
        self.epoch_seconds = time.perf_counter() - start
        return [trained, validated]

    def train_epoch(self, step: int) -> Tensor:
        """Train one epoch of `samples_per_epoch` samples.

        Returns:
            [6 + 2 O] on the device, for O owners of parameters (`owners`): mean loss, mean score, 1 if all weights are
            finite, loss scale and its growth tracker (0 without loss scaling), number of skipped batches, mean gradient
            norm of each owner over the batches that were not skipped, and number of batches in which the owner's
            gradient overflowed.
        """
        self._seed_generators("training", step)
        optimizers = self.active_optimizers()
        set_rates = self._rate_setter(optimizers, step)
        graphs = self._select_graphs(optimizers)
        if graphs is not None:

            def train(batch: Split) -> TrainedBatch:
                self.network.train()  # takes longer than a replay
                return self.train_batch(optimizers, batch)

            summarise = partial(self._summarise_epoch, optimizers)
            is_joined = self.task.augment or lazy_of(self.splits.train)
            split = concatenate(list(self.training_batches(step))) if is_joined else self.epoch_data(step)
            return train_recorded(graphs, train, summarise, split, self.task.batch_size, set_rates)
        self.network.train()
        for optimizer in optimizers:
            optimizer.begin_epoch()
        is_long = lazy_of(self.splits.train) is not None and self._device.type == "cpu"
        keep = SmallResults().keep if is_long else None
        trained: list[TrainedBatch] = []
        targets: list[Nested] = []
        for number, batch in enumerate(self.training_batches(step)):
            set_rates(number)
            result, target = self.train_batch(optimizers, batch), batch[1]
            trained.append(map_tensors(keep, result) if keep else result)
            targets.append(map_tensors(keep, target) if keep else target)
        for optimizer in optimizers:
            optimizer.end_epoch()
        return self._summarise_epoch(optimizers, trained, targets)

    def _rate_setter(self, optimizers: Sequence[ModuleOptimizer], step: int) -> Callable[[int], None]:
        """Return a function that sets the learning rates for a batch of a step, given its index from 0.

        A schedule by batch begins for a seed when it is planted. With the clock of the episode, seeds that are planted
        late learn less (`research/seed_clock.py`).
        """
        schedule, batches = self.task.schedule, self.batches_per_epoch
        ages = [] if is_by_step(schedule) else [self.network.slots[index].age for index in self.trained_slots()]
        starts = [0] * (len(optimizers) - len(ages)) + [step - age for age in ages]

        def set_rates(batch: int) -> None:
            for optimizer, start in zip(optimizers, starts, strict=True):
                optimizer.lr_scale = lr_factor(schedule, step - start, self.steps - start, batch, batches)
                optimizer.rate()  # a graph reads the tensor that this writes

        return set_rates

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of the host in the last batch of a step, which is counted from 0."""
        batches = self.batches_per_epoch
        return self.host_optimizer.learning_rate * lr_factor(self.task.schedule, step, self.steps, batches - 1, batches)

    def _summarise_epoch(
        self, optimizers: Sequence[ModuleOptimizer], trained: Sequence[TrainedBatch], targets: Sequence[Nested]
    ) -> Tensor:
        """Return the result of `train_epoch` from those of its batches."""
        loss = self._loss.epoch_mean([batch.record for batch in trained], targets)
        score = self._score.samples([batch.score_record for batch in trained], targets).mean()
        scaler = self.scaler
        scale = torch.stack((scaler.current(), scaler.growth_tracker().float())) if scaler else loss.new_zeros(2)
        weights = [p for optimizer in optimizers for p in optimizer.parameters]
        finite = torch.stack(foreach_norm(weights)).isfinite().all().float() if weights else torch.ones_like(loss)
        norms = summarise_norms([batch.norms for batch in trained], self._device, scaled=scaler is not None)
        return torch.cat((torch.stack((loss, score, finite)), scale, norms))

    def _select_graphs(self, optimizers: Sequence[ModuleOptimizer]) -> StepGraphs | None:
        """Return the graphs of this env in its topology; None if its kernels are launched.

        Alphas are written here, because a graph only reads them.
        """
        graphs = self._hosts.cuda_graphs
        if graphs is None or self.context.structure not in graphs.structures:
            return None
        inputs = [*(optimizer.rate() for optimizer in optimizers), *self.network.alpha_inputs()]
        slots = [self.network.slots[index] for index in self.trained_slots()]
        objects = [self.network, self.scaler, *optimizers, *(part for slot in slots for part in (slot.seed, slot.gate))]

        def tensors() -> list[Tensor]:
            states = [value for optimizer in optimizers for values in optimizer.state.values() for value in values]
            scalers = self.scaler.tensors() if self.scaler else []
            modules = [self.network.host, *slots]
            weights = [value for module in modules for value in module_tensors(module)]
            own = [*weights, *states, *scalers]
            return [*own, *(value for value in inputs if isinstance(value, Tensor))]

        return graphs.select(self.index, self._kind, self.network.topology, objects, tensors)

    def train_batch(self, optimizers: Sequence[ModuleOptimizer], batch: Split) -> TrainedBatch:
        """Train the host and the active seeds on one batch.

        Args:
            optimizers: Result of `active_optimizers`.
        """
        x, y = batch
        with autocast(self._device, self._dtype):
            output = self.network(x, self.network.alpha_inputs())
            loss = self._loss.mean(output, y)
        try:
            if loss.requires_grad:  # not without a trained parameter: a frozen host before its first seed
                torch.autograd.backward(self.scaler.scale_loss(loss) if self.scaler else loss)
            with torch.no_grad():
                score = self._score.record(to_float32(output), y)
            return TrainedBatch(self._loss.record(output, loss), score, self._optimize(optimizers))
        finally:  # also after an out-of-memory error
            for optimizer in optimizers:
                optimizer.zero_grad()

    def active_optimizers(self) -> list[ModuleOptimizer]:
        """Return the optimizers that step in this epoch: the host's unless it is frozen, then that of each slot that
        trains."""
        host = [self.host_optimizer] if self.host_optimizer.parameters else []
        return [*host, *(self.slot_optimizers[index] for index in self.trained_slots())]

    def owners(self) -> list[str]:
        """Return the owners of the optimizers of `active_optimizers`: "host", and names of slots."""
        host = ["host"] if self.host_optimizer.parameters else []
        return [*host, *(self.network.slots[index].name for index in self.trained_slots())]

    @property
    def batches_per_epoch(self) -> int:
        """Number of batches in an epoch."""
        return self.task.count_epoch_batches(self._train_samples)

    @property
    def samples_per_epoch(self) -> int:
        """Number of training samples in an epoch."""
        return self.task.count_epoch_samples(self._train_samples)

    @property
    def _train_samples(self) -> int:
        return count_samples(self._data[self.context.structure].train[0])

    def epoch_data(self, step: int) -> Split:
        """Return inputs and targets of one epoch."""
        order_N = self._epoch_order(self._make_generator("order", step))
        return take(self.splits.train, order_N.to(self._device, non_blocking=True))

    def _epoch_order(self, generator: torch.Generator) -> Tensor:
        """Return the indices of the samples of an epoch, from a generator of the host, the round and the step."""
        pinned = self._device.type == "cuda"  # a copy from pageable memory would block the host
        samples = count_samples(self.splits.train[0])
        # A context with few samples repeats them, so that all contexts have equally many batches in an epoch.
        passes = -(-self.samples_per_epoch // samples)
        orders = [torch.randperm(samples, generator=generator, pin_memory=pinned) for _ in range(passes)]
        order_N = orders[0]
        if passes > 1:
            order_N = torch.cat(orders, out=torch.empty(passes * samples, dtype=torch.int64, pin_memory=pinned))
        return order_N[: self.samples_per_epoch]

    def training_batches(self, step: int) -> Iterator[Split]:
        """Yield the batches of an epoch, augmented as the task says."""
        lazy = lazy_of(self.splits.train)
        if lazy is None:
            parts = batches(self.epoch_data(step), self.task.batch_size)
        else:
            parts = lazy.read(self._training_plan(lazy, step))
        augment = self.task.augment
        if augment is None or isinstance(augment, PerSample):
            yield from parts
            return
        number = self._make_generator("augmentation", step).initial_seed()
        generator = torch.Generator(self._device).manual_seed(number)
        yield from (augment(*part, generator) for part in parts)

    def _training_plan(self, lazy: LazySplit, step: int) -> ReadPlan:
        order = partial(self._epoch_order, self._make_generator("order", step))
        seeds = self.key.seed, self._host, self.key.round, step
        return lazy.ordered_plan(seeds, self.task.batch_size, order)

    def expect_reads(self, step: int) -> None:
        """Let the readers read ahead what an epoch and its validation need that is not in memory."""
        if (lazy := lazy_of(self.splits.train)) is not None:
            lazy.expect(self._training_plan(lazy, step))
        if (lazy := lazy_of(self.splits.validation)) is not None:
            lazy.expect(lazy.plan(self.task.validation_batch))

    def seeded(self, purpose: str) -> AbstractContextManager[None]:
        """Seed the global generators for one use in this round, for a network that draws in evaluation mode too."""
        number = make_generator(self.key.seed, purpose, self.key.env, self.key.round).initial_seed()
        return forked_generators(number, self._device)

    def _make_generator(self, purpose: str, *numbers: int) -> torch.Generator:
        """Return a generator of random numbers that the envs of this host share.

        Args:
            numbers: Step, and slot, that distinguish this use from others with the same purpose.
        """
        return make_generator(self.key.seed, purpose, self._host, self.key.round, *numbers)

    def _seed_generators(self, purpose: str, step: int) -> None:
        """Seed the global generators, so that dropout does not depend on the envs that run before this one."""
        number = make_generator(self.key.seed, purpose, self.key.env, self.key.round, step).initial_seed()
        seed_global_generators(number, self._device)

    @torch.no_grad()
    def _optimize(self, optimizers: Sequence[ModuleOptimizer]) -> list[Tensor]:
        """Clip the gradients of each optimizer and step it; step none of them if a gradient overflowed.

        Returns:
            Gradient norm of each optimizer's parameters before clipping, scalars on the device.
        """
        gradients = [optimizer.gradients() for optimizer in optimizers]
        all_grads = [grad for part in gradients for grad in part.values]
        if not all_grads:  # of a frozen host with seeds that have no parameters
            return [torch.zeros((), device=self._device) for _ in optimizers]
        if self.scaler:
            self.scaler.unscale_grads_([parameter for optimizer in optimizers for parameter in optimizer.parameters])
        norms = torch.split(torch.stack(foreach_norm(all_grads)), [len(part.values) for part in gradients])
        norm_O = [l2_norm(norm) for norm in norms]
        overflow = self.scaler.update(torch.stack(norm_O)) if self.scaler else None
        for optimizer, part, norm in zip(optimizers, gradients, norm_O, strict=True):
            optimizer.step(part, norm, overflow)
        return norm_O

    @torch.no_grad()  # not inference mode: a model may cache tensors, which training could then not use
    def validate(self, *, last: bool) -> Tensor:
        """Measure loss, score and metrics on the validation split, and the dependence on each measured seed.

        Args:
            last: True in the last step of an episode. Shapley values are measured then, if they are configured.

        Returns:
            [2 + M + 2 n] or [2 + M + 3 n] on the device for M metrics and n measured slots, as `validate_variants`
            describes.
        """
        slots, subsets = self.measured_slots(), last and self.counterfactual == "shapley"

        def run(split: Split) -> Tensor:
            self.network.eval()
            return validate_variants(self.network, slots, split, self.task, subsets=subsets)

        # Shapley values are measured once per episode, so a graph would hardly be used again. A split that is read when
        # it is needed may not fit into buffers.
        is_launched = subsets or lazy_of(self.splits.validation) is not None
        graphs = None if is_launched else self._select_graphs(self.active_optimizers())
        if graphs is None:
            return run(self.splits.validation)
        return validate_recorded(graphs, run, self.context.structure, self.splits.validation)

    @torch.no_grad()
    def sample_scores(self, split: Split) -> Tensor:
        """Return the result of `Score.parts` for a split, on the device."""
        self.network.eval()
        alphas = self.network.alpha_inputs()
        outputs = ((self.network(x, alphas), y) for x, y in batches(split, self.task.validation_batch))
        return self._score.parts(*self._score.record_all(outputs))

    def trained_slots(self) -> list[int]:
        """Return the indices of the slots whose seed trains in this epoch."""
        return [i for i, slot in enumerate(self.network.slots) if slot.stage is Stage.TRAINING or slot.stage.is_blended]

    def measured_slots(self) -> list[int]:
        """Return the indices of the slots with a measured dependence: those with a blended seed."""
        if self.counterfactual == "off":
            return []
        return [i for i, slot in enumerate(self.network.slots) if slot.stage.is_blended]

    def unpack_results(self, trained: list[float], validated: list[float]) -> EpochResult:
        """Unpack the values of `train_epoch` and `validate` into an `EpochResult`, and update the slots."""
        slots, has_host = self.trained_slots(), bool(self.host_optimizer.parameters)
        owners = has_host + len(slots)
        training, validation = TrainedValues(*trained[: len(TrainedValues._fields)]), Validation.of(validated)
        by_owner, others = trained[len(training) :], validated[len(validation) :]
        norms, overflows = by_owner[:owners], by_owner[owners:]
        slot_norms = dict(zip(slots, norms[has_host:], strict=True))
        metrics, effects = others[: len(self.task.metrics)], others[len(self.task.metrics) :]
        dependences, shapley = read_effects(effects, self.measured_slots()) if effects else ({}, {})
        for index, slot in enumerate(self.network.slots):
            slot.grad_norm = slot_norms.get(index)
            if index in dependences:
                slot.record_dependence(*dependences[index])
        return EpochResult(
            train_loss=training.loss,
            train_score=training.score,
            weights_finite=bool(training.weights_finite),
            loss=validation.loss,
            score=validation.score,
            grad_norm=norms[0] if has_host else None,
            metrics=dict(zip(self.task.metrics, metrics, strict=True)),
            slot_grad_norms=slot_norms,
            loss_scale=training.loss_scale if self.scaler else None,
            growth_tracker=int(training.growth_tracker) if self.scaler else None,
            skipped_batches=int(training.skipped_batches),
            overflows_by_owner={
                owner: int(count) for owner, count in zip(self.owners(), overflows, strict=True) if count
            }
            if any(overflows)
            else {},
            dependences=dependences,
            shapley=shapley,
        )
