"""The dry run on a GPU: a task is trained by CUDA graphs if recorded epochs equal launched ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import cycle, product
from typing import NamedTuple

import torch
from torch import Tensor

from esper.common.domain import AlphaCurve, Stage
from esper.common.seeding import make_generator
from esper.networks.seeds.blend import INITIAL_RAMP_EPOCHS, Blend
from esper.networks.seeds.network import count_samples
from esper.networks.tasks.splits import batches
from esper.training.envs.cuda_graphs import CudaGraphs
from esper.training.envs.env import Env
from esper.training.envs.env_state import env_state_tensors
from esper.training.envs.stopwatch import PhaseTimer

_EPOCHS = 3
"""Epochs that are compared: the functions of the first are launched or recorded, those of the last only replayed."""
_EPOCH = "epoch"
_BATCHES, _VALIDATION_BATCHES = 3, 2
"""Maximum number of batches of these epochs. The training has a smaller last batch, too, if an epoch has more."""
_RELATIVE, _NOISE = 1e-3, 10.0
"""Allowed difference: relative to the largest value, and relative to the difference of two launched runs, whose kernels
may add in different orders."""
_MAX_NOISE = 0.01
"""Allowed difference of the losses, scores and norms of two launched runs, relative to the largest value."""
_STATES = tuple(product(Blend, (Stage.BLENDING, Stage.PROBATIONARY, Stage.TRAINING)))
"""Blends and stages of the planted seeds. Each runs other kernels: alpha is below 1 in BLENDING, and 1 in PROBATIONARY.
"""


def graph_problem(env: Env, graphs: CudaGraphs) -> str | None:
    """Train an env with launched kernels and with CUDA graphs, from the same state, and compare the results.

    This is done with the bare host and with a seed in each slot, in training and in evaluation mode, until each
    blueprint and each of `_STATES` was planted somewhere. The env is changed and must not be used afterwards.

    Returns:
        Why the structure of the env is not trained by graphs; None if the results agree. The host waits for the device.
    """
    structure = env.context.structure
    _shorten(env)
    try:
        for seeds in ((), *_plantings([slot.site.blueprints for slot in env.network.slots])):
            _plant_seeds(env, seeds)
            launched, again = _play(env, graphs, recorded=False), _play(env, graphs, recorded=False)
            recorded = _play(env, graphs, recorded=True)
            problem = next(iter(graphs.take_notices()), None) or _difference(launched, again, recorded)
            if problem is not None:
                return problem
    finally:
        graphs.structures.discard(structure)
        graphs.clear()
    return None


def _play(env: Env, graphs: CudaGraphs, *, recorded: bool) -> dict[str, Tensor]:
    """Train a few epochs from the current state; return results and weights by name, and restore the state."""
    structure = env.context.structure
    (graphs.structures.add if recorded else graphs.structures.discard)(structure)
    state = {name: value.clone() for name, value in env_state_tensors(env).items()}
    scaler = env.scaler.state_dict() if env.scaler else None
    found: dict[str, Tensor] = {}
    for step in range(_EPOCHS):
        # An episode may be shorter; after its last step, the learning rate would be negative.
        trained, validated = env.run_epoch(min(step, env.steps - 1), PhaseTimer(), last=False)
        # The loss scale is so large that other differences would be small beside it.
        found[f"{_EPOCH} {step + 1}, training"] = torch.cat((trained[:3], trained[5:]))
        found[f"{_EPOCH} {step + 1}, validation"] = validated.clone()
    current = env_state_tensors(env)
    found |= {name: value.clone() for name, value in current.items()}
    with torch.no_grad():
        for name, value in current.items():
            value.copy_(state[name])
    if env.scaler and scaler:
        env.scaler.load_state_dict(scaler)
    return found


def _shorten(env: Env) -> None:
    """Limit the epochs of an env."""
    size = env.task.batch_size
    samples = min(env.samples_per_epoch, _BATCHES * size + size // 2)
    env.task = replace(env.task, samples_per_epoch=samples)
    limit = min(_VALIDATION_BATCHES * env.task.validation_batch, count_samples(env.splits.validation[0]))
    env.splits = replace(env.splits, validation=next(iter(batches(env.splits.validation, limit))))


def _difference(
    launched: Mapping[str, Tensor], again: Mapping[str, Tensor], recorded: Mapping[str, Tensor]
) -> str | None:
    """Return the first result that differs between two launched runs, or between these and that of the graphs."""
    for name, wanted in launched.items():
        one, two, found = (values.double().nan_to_num() for values in (wanted, again[name], recorded[name]))
        if not wanted.numel():
            continue
        largest, noise = one.abs().max(), (one - two).abs().max()
        if name.startswith(_EPOCH) and bool(noise > _MAX_NOISE * largest):
            return f"{name} differs when it is repeated from the same state"
        allowed = _RELATIVE * largest + _NOISE * noise
        if bool((found - one).abs().max() > allowed) or bool((wanted.isnan() != recorded[name].isnan()).any()):
            return f"{name} differs between recorded and launched kernels"
    return None


class _Seed(NamedTuple):
    """A seed to plant."""

    blueprint: str
    blend: Blend
    stage: Stage


def _plantings(sites: Sequence[Sequence[str]]) -> Iterator[list[_Seed]]:
    """Yield a seed for each slot, until each blueprint and each of `_STATES` was planted somewhere.

    Args:
        sites: Blueprints of each slot.
    """
    states, left, missing = cycle(_STATES), len(_STATES), {name for names in sites for name in names}
    while sites and (left > 0 or missing):
        seeds: list[_Seed] = []
        for blueprints in sites:
            chosen = next((name for name in blueprints if name in missing), blueprints[0])
            missing.discard(chosen)
            seeds.append(_Seed(chosen, *next(states)))
        left -= len(seeds)
        yield seeds


def _plant_seeds(env: Env, seeds: Sequence[_Seed]) -> None:
    """Plant a seed in each slot, in place of those that were planted before; none without seeds."""
    generator = make_generator(0, "graph check")
    for slot, seed in zip(env.network.slots, seeds, strict=False):
        slot.reset()
        slot.germinate(seed.blueprint, seed.blend, AlphaCurve.LINEAR, INITIAL_RAMP_EPOCHS[0], 1.0, generator)
        while slot.stage is not seed.stage:
            slot.grad_norm = 1.0
            if slot.can_advance:
                slot.advance()
            else:
                slot.tick()
    env.sync_optimizers()
