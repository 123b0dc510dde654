"""Report on a task: its slots, how it is measured, its memory, and the time of an epoch."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from esper.common.configuration.config import Config
from esper.common.formatting import format_bytes, html_text, pluralise
from esper.common.score_scale import ScoreScale
from esper.common.seeding import restored_generators
from esper.common.user_code.references import with_short_errors
from esper.networks.seeds.network import count_samples
from esper.networks.seeds.outputs import list_tensors
from esper.networks.tasks.data_loading import load_data
from esper.networks.tasks.family import describe_recipe, settings_of_family, structures_of
from esper.networks.tasks.loading import resolve_task
from esper.networks.tasks.probe import probe_task
from esper.networks.tasks.profile import TaskProfile
from esper.networks.tasks.split_score import SplitScore
from esper.networks.tasks.splits import batches, data_tensors, move_data
from esper.networks.tasks.task import Task
from esper.training.envs.env import Env
from esper.training.envs.hosts import HostFactory


@dataclass(frozen=True, kw_only=True, repr=False)
class TaskReport:
    """Results of a dry run of a task.

    The report prints itself, and shows itself in a notebook.

    Attributes:
        task: Name of the task.
        score_scale: Range and better end of the score.
        profile: Slots, blueprints and chance; of a family, those of all structures.
        host_parameters: Number of parameters of the bare host.
        trained_parameters: Number of those that are trained.
        env_bytes: Bytes of the weights, buffers, gradients and optimizer state of one env, without activations.
        output_bytes: Bytes of the outputs that one env keeps for a score of a whole split; 0 without one.
        data_bytes: Bytes of the data.
        epoch_seconds: Seconds that one epoch and validation of the bare host take, on one CPU core.
        structures: Name of each structure of a family; empty for another task. The figures above are then those of one
            structure.
        settings: Values of each setting of a family, keyed by name.
        recipe: Optimizers and schedule in words, keyed by field of the task.
    """

    task: str
    score_scale: ScoreScale
    profile: TaskProfile
    host_parameters: int
    trained_parameters: int
    env_bytes: int
    output_bytes: int
    data_bytes: int
    epoch_seconds: float
    structures: tuple[str, ...] = ()
    settings: Mapping[str, Sequence[float | str]] = field(default_factory=dict[str, Sequence[float | str]])
    recipe: Mapping[str, str] = field(default_factory=dict[str, str])

    def __str__(self) -> str:
        profile = self.profile
        if self.structures:
            lines = [f"family {self.task} of {pluralise(len(self.structures), 'structure')}"]
        else:
            trained = f"{self.trained_parameters:,} of them trained"
            lines = [f"task {self.task}: {self.host_parameters:,} parameters, {trained}"]
        for name, found in zip(self.structures, profile.structures, strict=True):
            lines.append(
                f"  structure {name}: {found.host_parameters:,} parameters, {pluralise(len(found.sites), 'slot')}"
            )
        for name, values in self.settings.items():
            lines.append(f"  setting {name}: {', '.join(map(str, values))}")
        for site in profile.sites:
            lines.append(
                f"  slot {site.name}: {site.module}, layout {site.layout}, "
                f"{f'mask {site.mask}, ' if site.mask else ''}{site.channels} channels; "
                f"blueprints: {', '.join(site.blueprints)}"
            )
        if profile.is_causal:
            lines.append("  causal: only blueprints and blends that do not look ahead are offered")
        lines += [f"  {name.replace('_', ' ')}: {words}" for name, words in self.recipe.items()]
        how = "the forward pass before a slot is shared" if profile.shares_prefix else "one forward pass per seed"
        reason = f", because {profile.prefix_problem}" if profile.prefix_problem else ""
        lines.append(f"  dependences: {how}{reason}")
        lines.append(f"  memory format of pictures: {'channels last' if profile.channels_last else 'contiguous'}")
        lines.append(f"  chance: loss {profile.chance.loss:.4g}, score {self.score_scale.text(profile.chance.score)}")
        lines.append(
            f"  memory: {format_bytes(self.env_bytes)} per env without activations, "
            f"{format_bytes(self.data_bytes)} of data"
        )
        if self.output_bytes:
            kept = "outputs that each env keeps for a score of a whole split"
            lines.append(f"  memory: {format_bytes(self.output_bytes)} of {kept}")
        lines += [f"  warning: {warning}" for warning in profile.warnings]
        lines.append(f"  time: {self.epoch_seconds:.3g} s per epoch of the bare host, on one CPU core")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return html_text(str(self))


@with_short_errors
@restored_generators()
def check(task: Task | str, data_dir: Path | None = None) -> TaskReport:
    """Check a task by dry runs and two epochs of its bare host on the CPU, and report the results. Nothing is recorded.

    Args:
        task: The task, its name or a reference, as for `train`.
        data_dir: Directory that the task's data function receives.

    Raises:
        TaskError: The task cannot be loaded or grown, or its data are missing or damaged.
    """
    task = resolve_task(task)
    data = load_data(task, data_dir)
    profile = probe_task(task, data)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        hosts = HostFactory(task, profile, torch.device("cpu"), 0)
        config = Config(envs=1, amp="off")
        on_cpu = move_data(data, torch.device("cpu"), channels_last=profile.channels_last)
        env = Env(0, hosts, on_cpu, config, None)
        env.train_epoch(0)  # the first epoch of a process is slower
        start = time.perf_counter()
        env.train_epoch(1)
        env.validate(last=False)
        seconds = time.perf_counter() - start
    finally:
        torch.set_num_threads(threads)
    trained = env.network.host_parameters()
    state = [value for values in env.host_optimizer.state.values() for value in values]
    return TaskReport(
        score_scale=task.score_scale,
        task=task.name,
        profile=profile,
        host_parameters=env.network.host_parameter_count,
        trained_parameters=sum(parameter.numel() for parameter in trained),
        env_bytes=sum(tensor.nbytes for tensor in (*trained, *env.network.host_tensors(), *state)),
        output_bytes=_output_bytes(task, env),
        data_bytes=sum(tensor.nbytes for tensor in data_tensors(data)),
        epoch_seconds=seconds,
        structures=tuple(structure.name for structure in structures_of(task)) if profile.structures else (),
        settings={name: setting.values for name, setting in settings_of_family(task).items()},
        recipe=describe_recipe(task),
    )


@torch.no_grad()
def _output_bytes(task: Task, env: Env) -> int:
    """Return the bytes of the outputs that are kept until the end of a split, for a score or metric of it."""
    if not any(isinstance(function, SplitScore) for function in (task.score, *task.metrics.values())):
        return 0
    x, _ = next(iter(batches(env.splits.validation, task.validation_batch)))
    output = env.network(x, env.network.alpha_inputs())
    samples = count_samples(env.splits.validation[0]) * (1 + len(env.network.slots))  # one output per ablated seed
    samples = max(samples, task.count_epoch_samples(count_samples(env.splits.train[0])))
    return sum(tensor.nbytes for tensor in list_tensors(output)) * samples // count_samples(x)
