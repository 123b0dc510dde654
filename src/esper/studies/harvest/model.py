"""GrownModel: a host with its grown seeds, as an ordinary module without stages or schedules."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from esper.common.configuration.config import TaskError
from esper.common.domain import AlphaCurve, Stage
from esper.common.seeding import forked_generators, make_generator
from esper.common.system.disk import read_regular
from esper.common.user_code.references import with_short_errors
from esper.networks.seeds.blend import Blend, BlendGate, blend_seed
from esper.networks.seeds.blueprints import build_seed
from esper.networks.seeds.layouts import Layout
from esper.networks.seeds.masks import read_mask
from esper.networks.seeds.network import call_model
from esper.networks.seeds.outputs import Nested, first_tensor, replace_first_tensor
from esper.networks.seeds.slot import Slot
from esper.networks.seeds.tensors import named_tensors
from esper.networks.tasks.family import TaskFamily
from esper.networks.tasks.hosts import build_host
from esper.networks.tasks.loading import absolute_reference, resolve_task
from esper.networks.tasks.losses import score_of
from esper.networks.tasks.registry import TASKS
from esper.networks.tasks.splits import Split, batches
from esper.networks.tasks.task import Task
from esper.studies.harvest.structure import WEIGHTS_FILE, GrownSeed, HarvestError, read_structure
from esper.training.envs.env import Env
from esper.training.envs.env_state import check_tensors, load_tensors


class GrownSlot(nn.Module):
    """A seed, blended into its host at a constant alpha."""

    def __init__(self, structure: GrownSeed) -> None:
        super().__init__()
        self._layout = Layout(structure.layout)
        self._blend = Blend(structure.blend)
        self._alpha = structure.alpha
        self.mask = structure.mask
        self.seed = build_seed(
            structure.blueprint, self._layout, structure.channels, structure.is_causal, torch.Generator()
        )
        self.gate = BlendGate(structure.channels, self._layout.canonical) if self._blend is Blend.GATE else None

    def forward(self, features: Tensor, inputs: Mapping[str, Any]) -> Tensor:
        """Return the host's features, in the layout of the slot, with the seed blended in.

        Args:
            inputs: Inputs of the host by name, if a slot has a mask.
        """
        mask = read_mask(inputs, self.mask)
        return blend_seed(self._blend, self._layout, features, self.seed, self._alpha, self.gate, mask)


class GrownModel(nn.Module):
    """A host with its grown seeds. It is called as the host is, and can be trained, copied and saved as any module.

    Args:
        seeds: Structure of each seed, in the order of the forward pass. Their weights are arbitrary at first.

    Raises:
        ValueError: A blueprint or blend is unknown.
        AttributeError: The host has no submodule of a seed's path.
    """

    def __init__(self, host: nn.Module, seeds: Sequence[GrownSeed]) -> None:
        super().__init__()
        self.host = host
        self._has_mask = any(seed.mask for seed in seeds)
        self._inputs: Mapping[str, Any] = {}
        for seed in seeds:
            name = slot_module(seed)
            self.add_module(name, GrownSlot(seed))
            host.get_submodule(seed.module).register_forward_hook(partial(self._grow, name))

    def forward(self, *args: Any, **kwargs: Any) -> Nested:
        """Return the output of the host, with each seed blended in."""
        if self._has_mask:
            self._inputs = {**inspect.signature(self.host.forward).bind_partial(*args).arguments, **kwargs}
        try:
            return self.host(*args, **kwargs)
        finally:
            if not self.training:  # a host with gradient checkpointing calls its modules again in the backward pass
                self._inputs = {}

    def _grow(self, name: str, module: nn.Module, args: object, output: Nested) -> Nested:  # noqa: ARG002 (a hook)
        features = first_tensor(output)
        assert features is not None
        return replace_first_tensor(output, self.get_submodule(name)(features, self._inputs))


def slot_module(seed: GrownSeed) -> str:
    """Return the name of the module of a seed's slot: that of a GrowingNetwork, whose weights have the same names."""
    return f"slot_{seed.slot}"


def grown_seeds(slots: Sequence[Slot]) -> list[GrownSeed]:
    """Return the structure of the seeds that affect the network's output: those blended in at an alpha above 0."""
    return [
        GrownSeed(
            slot=slot.name,
            module=slot.site.module,
            layout=slot.site.layout.value,
            channels=slot.site.channels,
            is_causal=slot.site.is_causal,
            mask=slot.site.mask,
            blueprint=slot.blueprint,
            blend=slot.blend.value,
            alpha=slot.alpha,
            parameters=slot.parameter_count,
        )
        for slot in slots
        if slot.blueprint is not None and slot.stage.is_blended and slot.alpha > 0.0
    ]


def check_is_one_structure(task: Task) -> None:
    """Raise TaskError if a task is a family: a grown network belongs to one of its structures."""
    if isinstance(task, TaskFamily):
        raise TaskError(f"{task.name} is a family of tasks, and a network grows for one task; {_advise_task(task)}")


def _advise_task(family: TaskFamily) -> str:
    """Return which task to grow a network for in the place of a family."""
    built_in = [structure.name for structure in family.structures if structure.name in TASKS]
    if built_in:
        return f"use --task {built_in[0]}"
    reference = absolute_reference(family)
    if reference is None:
        return f"pass one of its structures, such as structures[0], {family.structures[0].name}"
    code = f"from esper.networks.tasks import load_task; task = load_task({reference!r}).structures[0]"
    return f"for its structure {family.structures[0].name}, pass --task a file that contains: {code}"


def plant_grown(env: Env, seeds: Sequence[GrownSeed], random_seed: int) -> None:
    """Plant the seeds of a grown network in an env with empty slots: with fresh weights, blended in from the start.

    Args:
        env: Env at the start of an episode.
    """
    slots = {slot.name: (index, slot) for index, slot in enumerate(env.network.slots)}
    for seed in seeds:
        index, slot = slots[seed.slot]
        generator = make_generator(random_seed, "fixed", env.key.env, index)
        slot.germinate(seed.blueprint, Blend(seed.blend), AlphaCurve.LINEAR, 0, seed.alpha, generator)
        slot.stage = Stage.FOSSILIZED
    env.sync_optimizers()


@with_short_errors
def load_grown(directory: Path | str, task: Task | str) -> GrownModel:
    """Rebuild a harvested network as a module that can be trained further, on the CPU.

    The host comes from the task's model function, the rest from `structure.json` and `weights.safetensors`, which
    contain no code. The exported program is not opened: loading one from a stranger is not safe.

    Args:
        directory: Directory of the harvest.
        task: Task whose model is the host, its name or a reference, as for `train`.

    Returns:
        The network in float32, in training mode; all of its parameters can be trained. It is called as the model of the
        task.

    Raises:
        HarvestError: A file is missing or damaged, or does not fit the task.
        TaskError: The task cannot be loaded.
    """
    path = Path(directory) / WEIGHTS_FILE
    structure = read_structure(path.parent)
    task = resolve_task(task)
    try:
        tensors = safetensors.torch.load(read_regular(path))
    except OSError as error:
        raise HarvestError(f"{path} cannot be read: {error.strerror or error}") from None
    except safetensors.SafetensorError as error:
        raise HarvestError(f"{path} is damaged: {error}") from None
    return build_model(task, structure.seeds, tensors)


def build_model(task: Task, seeds: Sequence[GrownSeed], tensors: Mapping[str, Tensor]) -> GrownModel:
    """Build a grown model on the CPU. Parameters that the task froze during the growth can be trained.

    Args:
        tensors: Weights and buffers by name. Further ones, as of seeds without effect, are ignored.

    Raises:
        HarvestError: The host has no place for a seed, or a tensor is missing or has another shape.
        TaskError: The model function raises an exception.
    """
    host = build_host(replace(task, train=True), seed=0, host=0, round_index=0).model
    try:
        # Seeds of a damaged structure may be too large for the memory. On the meta device they have only shapes.
        with torch.device("meta"):
            shapes = nn.ModuleDict({slot_module(seed): GrownSlot(seed) for seed in seeds})
        check_tensors(named_tensors(shapes), tensors)
        model = GrownModel(host, seeds)
        load_tensors(named_tensors(model), tensors)
    except (AttributeError, KeyError, ValueError) as error:
        raise HarvestError(f"the task {task.name} does not fit the network: {error}") from error
    except RuntimeError as error:
        raise HarvestError(f"the task {task.name} does not fit the network: the tensor {error}") from error
    return model


@torch.no_grad()
def sample_scores(model: nn.Module, split: Split, task: Task) -> Tensor:
    """Return the result of `Score.parts` for a split, in evaluation mode. The model may draw random numbers.

    Args:
        model: Model on the device of the data.
    """
    model.eval()
    score = score_of(task)
    with forked_generators(0, next(model.parameters()).device):
        outputs = ((call_model(model, x), y) for x, y in batches(split, task.validation_batch))
        return score.parts(*score.record_all(outputs))
