"""The probe of a task: dry runs of its model that find the layout of each slot and refuse what cannot work.

Everything runs on the CPU, with a few samples of the training split, before a run is set up.
"""

# PyTorch does not declare the types of `backward` and `unique`.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from esper.common.formatting import suggest
from esper.common.score_scale import ScoreScale
from esper.common.seeding import forked_generators, make_generator
from esper.common.user_code.isolation import isolated
from esper.networks.seeds.blueprints import BLUEPRINTS, offered_blueprints
from esper.networks.seeds.layouts import Layout
from esper.networks.seeds.masks import read_mask
from esper.networks.seeds.network import call_model, count_samples
from esper.networks.seeds.outputs import Nested, first_tensor, list_tensors, map_tensors, replace_first_tensor
from esper.networks.seeds.site import SlotSite
from esper.networks.seeds.tensors import named_tensors
from esper.networks.tasks.chance import measure_chance
from esper.networks.tasks.checks.axes import find_doubtful_layouts
from esper.networks.tasks.checks.causality import is_causal
from esper.networks.tasks.checks.functions import check_augment, check_functions, check_last_batch
from esper.networks.tasks.checks.padding import find_mask_problem, leave_out_readers
from esper.networks.tasks.checks.pairing import check_pairing
from esper.networks.tasks.checks.prefix import check_prefix
from esper.networks.tasks.checks.scores import check_output_type
from esper.networks.tasks.checks.seeds import check_seeds
from esper.networks.tasks.checks.settings import check_settings
from esper.networks.tasks.checks.state import check_state
from esper.networks.tasks.family import TaskFamily
from esper.networks.tasks.hosts import build_host, find_submodule
from esper.networks.tasks.losses import loss_of
from esper.networks.tasks.profile import TaskProfile, combine_profiles
from esper.networks.tasks.split_score import SplitScore
from esper.networks.tasks.splits import Splits, TaskData, spread, take
from esper.networks.tasks.task import Chance, Slot, Task
from esper.networks.tasks.user_calls import UserCalls

_BATCHES = (4, 6)
"""Numbers of samples of the dry runs. Two, so that the batch axis can be told from the others."""
_PAIRED_SAMPLES = 8
"""Number of samples whose outputs are compared alone and in a batch."""
_PERTURBATION_STD = 0.05
"""Standard deviation of the noise on the weights of a perturbed model."""
_PROBE_SEED = 0


def probe_task(task: Task, data: TaskData, slots: Sequence[str] = ()) -> TaskProfile:
    """Run the model of a task on a few samples, and return its properties.

    Args:
        data: Its data, on the CPU.
        slots: Names of the slots to use; none: all.

    Raises:
        TaskError: The task cannot be grown; the message says which field is wrong.
    """
    with isolated(f"task {task.name}"), forked_generators(make_generator(_PROBE_SEED, "probe").initial_seed()):
        if not isinstance(task, TaskFamily):
            return _Probe(task, data[0], slots).run()
        check_settings(task, data)
        probes = [_Probe(structure, splits, slots) for structure, splits in zip(task.structures, data, strict=True)]
        return combine_profiles([probe.run() for probe in probes])


def _largest_kernel(model: nn.Module) -> int:
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d)]
    return max((size for module in convolutions for size in module.kernel_size), default=1)


class _Probe:
    """The dry runs of one task."""

    def __init__(self, task: Task, splits: Splits, slots: Sequence[str]) -> None:
        splits.check(task.name)
        self.task = task
        self.splits = splits
        self._user = UserCalls(task)
        self.paths = {
            name: path if isinstance(path, Slot) else Slot(path)
            for name, path in task.slots.items()
            if not slots or name in slots
        }
        if not self.paths:
            found = f"it has none of the slots {', '.join(slots)}; it has {', '.join(task.slots)}"
            raise self._user.error("slots", found)
        samples = count_samples(splits.train[0])
        self.batches = [take(splits.train, torch.arange(min(size, samples))) for size in _BATCHES]

    def run(self) -> TaskProfile:
        model = self._build_model()
        channels_last = self._runs_in_channels_last()
        outputs = self._slot_outputs(model)
        order = list(outputs[-1])
        layouts = {name: self._layout(name, *(found[name] for found in outputs)) for name in order}
        check_functions(self.task, model, self.splits, self.batches[-1])
        perturbed = self._perturbed_model().eval()
        check_pairing(self.task, perturbed, spread(self.splits.train, _PAIRED_SAMPLES))
        check_augment(self.task, model, self.splits)
        check_last_batch(self.task, self.splits)
        self._check_gradients(order)
        has_tokens = any(layout.canonical is Layout.BTC for layout in layouts.values())
        causal = has_tokens and is_causal(perturbed, self.batches[-1][0])
        sites, blueprints = self._sites(order, layouts, {name: outputs[-1][name].shape for name in order}, causal)
        sites, padding_problems = leave_out_readers(self._perturbed_model, sites, self.batches[-1][0])
        blueprints = tuple(name for name in blueprints if any(name in site.blueprints for site in sites))
        for site in sites:
            if not site.blueprints:
                raise self._user.error(f"slots[{site.name!r}]", padding_problems[site.name])
            where, features = self._user.where(f"slots[{site.name!r}]"), outputs[-1][site.name]
            mask = read_mask(self.batches[-1][0], site.mask)
            check_seeds(site, features, mask, where, channels_last=channels_last)
        check = check_prefix(self._perturbed_model(), sites, self.batches[-1][0])
        if check.without_effect is not None:
            raise self._user.error(
                f"slots[{check.without_effect!r}]", "a seed there has no effect on the model's output"
            )
        doubts = [*find_doubtful_layouts(perturbed, sites, self.batches[-1][0]).items(), *padding_problems.items()]
        return TaskProfile(
            sites=sites,
            blueprints=blueprints,
            shares_prefix=not check.problem,
            prefix_problem=check.problem,
            channels_last=channels_last,
            host_parameters=sum(parameter.numel() for parameter in model.parameters()),
            kernel_size=_largest_kernel(model),
            chance=self._chance(model),
            warnings=tuple(f"{self._user.where(f'slots[{name!r}]')}: {doubt}" for name, doubt in doubts),
        )

    # The model and its slots

    def _build_model(self) -> nn.Module:
        """Return a model, after checking that every call returns new parameters, and that the slots exist."""
        hosts = [build_host(self.task, _PROBE_SEED, 0, call) for call in range(2)]
        first, second = (host.model for host in hosts)
        if not isinstance(cast("object", first), nn.Module):
            raise self._user.error("model", f"returned a {type(first).__name__}; return a torch.nn.Module")
        if any(is_lazy(tensor) for tensor in named_tensors(first).values()):
            raise self._user.error(
                "model", "returned lazy layers without sizes; call the module once before returning it"
            )
        if {id(parameter) for parameter in first.parameters()} & {id(parameter) for parameter in second.parameters()}:
            raise self._user.error("model", "returned the same parameters twice; build a new module in each call")
        if not any(parameter.numel() for parameter in first.parameters()):
            raise self._user.error("model", "returned a module without parameters")
        for name, parameter in first.named_parameters():
            if parameter.requires_grad and parameter.is_complex():
                problem = f"the parameter {name!r} is complex, and the optimizers of a run are for real numbers"
                remedy = "store it as torch.view_as_real gives it, and use torch.view_as_complex in forward"
                raise self._user.error("model", f"{problem}; {remedy}")
        for name, path in self.paths.items():
            submodule = find_submodule(first, path.module, self._user.where(f"slots[{name!r}]"))
            if isinstance(submodule, torch.jit.ScriptModule):
                problem = f"{path.module!r} is compiled by torch.jit, which has no hooks; name a submodule outside it"
                raise self._user.error(f"slots[{name!r}]", problem)
        check_state(self.task, hosts[0], hosts[1], [x for x, _ in self.batches])
        return first

    def _runs_in_channels_last(self) -> bool:
        """Return True if the model computes pictures in the channels-last format without an error."""
        if not any(tensor.dim() == 4 for tensor in list_tensors(self.batches[0][0])):
            return False
        model = build_host(self.task, _PROBE_SEED, 0, 0).model
        x = map_tensors(
            lambda tensor: tensor.to(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor,
            self.batches[0][0],
        )
        try:
            output = call_model(model.to(memory_format=torch.channels_last), x)
            loss = loss_of(self.task).mean(output, self.batches[0][1])
            if loss.requires_grad:
                torch.autograd.backward(loss)
        except Exception:  # noqa: BLE001 (this format allows no `.view` and no 5-D weight; later checks report other errors)
            return False
        return True

    def _slot_outputs(self, model: nn.Module) -> list[dict[str, Tensor]]:
        """Return the tensor of each slot for each batch, keyed by slot in the order of the calls."""
        found: list[dict[str, Tensor]] = []
        for is_training, (x, y) in itertools.product((True, False), self.batches):
            outputs: dict[str, Tensor] = {}

            def keep(name: str, output: Nested, outputs: dict[str, Tensor] = outputs) -> Nested:
                outputs[name] = self._checked_output(name, output, is_repeated=name in outputs)
                return output

            with self._hooks(model, keep), torch.no_grad():
                output = self._user.call_model(model.train(is_training), x)
            check_output_type(self.task, output, y, "training" if is_training else "evaluation")
            for name in self.paths.keys() - outputs.keys():
                raise self._user.error(
                    f"slots[{name!r}]",
                    f"the model never calls {self.paths[name].module!r} in "
                    f"{'training' if is_training else 'evaluation'} mode; name a submodule that it calls once",
                )
            found.append(outputs)
        return found[-len(_BATCHES) :]

    def _checked_output(self, name: str, output: Nested, *, is_repeated: bool) -> Tensor:
        module, tensor = self.paths[name].module, first_tensor(output)
        where = f"slots[{name!r}]"
        if is_repeated:
            raise self._user.error(
                where, f"the model calls {module!r} several times per forward pass; a slot needs one call"
            )
        if tensor is None:
            raise self._user.error(
                where,
                f"{module!r} returns a {type(output).__name__}; a slot needs a tensor, or a tuple that starts with one",
            )
        if tensor.is_nested:
            raise self._user.error(
                where, f"{module!r} returns a nested tensor; pass enable_nested_tensor=False to nn.TransformerEncoder"
            )
        if not tensor.is_floating_point():
            raise self._user.error(where, f"{module!r} returns {tensor.dtype}; a slot needs a floating-point tensor")
        if tensor.dtype is not torch.float32:
            raise self._user.error(
                where,
                f"{module!r} returns {tensor.dtype}, and seeds are float32; convert the model with .float(), "
                "and choose the precision of a run with --amp",
            )
        return tensor

    def _layout(self, name: str, small: Tensor, large: Tensor) -> Layout:
        """Return the layout of a slot: the declared one, or that of its number of axes."""
        where, declared = f"slots[{name!r}]", self.paths[name].layout
        shape = f"the output of {self.paths[name].module!r} has shape {list(large.shape)}"
        if declared is not None and declared not in Layout.__members__:
            raise self._user.error(where, f"unknown layout {declared!r}; {suggest(declared, Layout.__members__)}")
        if declared is None and large.dim() not in (2, 4):
            hint = "pass layout= BCL, BTC or TBC" if large.dim() == 3 else "a slot needs two to four axes"
            raise self._user.error(where, f"{shape}; {hint}, as in esper.Slot({self.paths[name].module!r}, layout=...)")
        layout = Layout(declared or ("BC" if large.dim() == 2 else "BCHW"))
        if large.dim() != len(layout):
            raise self._user.error(where, f"{shape}, and layout {layout} has {len(layout)} axes")
        sizes = [count_samples(x) for x, _ in self.batches]
        axes = [axis for axis, pair in enumerate(zip(small.shape, large.shape, strict=True)) if list(pair) == sizes]
        if sizes[0] != sizes[1] and layout.batch_axis not in axes:
            found = f"axis {axes[0]}" if axes else "none of its axes"
            raise self._user.error(
                where, f"{shape}, and {found} is the batch, not axis {layout.batch_axis} as in {layout}"
            )
        if problem := find_mask_problem(self.paths[name], layout, self.batches[-1][0], large):
            raise self._user.error(where, problem)
        return layout

    def _sites(
        self, order: Sequence[str], layouts: Mapping[str, Layout], shapes: Mapping[str, torch.Size], is_causal: bool
    ) -> tuple[tuple[SlotSite, ...], tuple[str, ...]]:
        """Return the places of the slots, and the blueprints that fit at least one of them."""
        for name in self.task.blueprints or ():
            if name not in BLUEPRINTS:
                raise self._user.error("blueprints", f"unknown blueprint {name!r}; {suggest(name, BLUEPRINTS)}")
        selected = list(self.task.blueprints or BLUEPRINTS)
        fitting = {name: offered_blueprints(layouts[name], is_causal) for name in order}
        blueprints = tuple(name for name in selected if any(name in fits for fits in fitting.values()))
        for name in order:
            if not set(fitting[name]) & set(blueprints):
                raise self._user.error(
                    f"slots[{name!r}]",
                    f"none of its blueprints fits layout {layouts[name]}{' of a causal model' if is_causal else ''}; "
                    f"these fit: {', '.join(fitting[name])}",
                )
        sites = tuple(
            SlotSite(
                name=name,
                module=self.paths[name].module,
                layout=layouts[name],
                mask=self.paths[name].mask,
                channels=shapes[name][layouts[name].channel_axis],
                sizes=tuple(size for axis, size in zip(layouts[name], shapes[name], strict=True) if axis not in "BC"),
                is_causal=is_causal,
                blueprints=tuple(blueprint for blueprint in blueprints if blueprint in fitting[name]),
            )
            for name in order
        )
        return sites, blueprints

    # Gradients

    def _check_gradients(self, order: Sequence[str]) -> None:
        """Refuse slots whose output does not affect the loss, and parameters with sparse gradients."""
        model = self._perturbed_model()
        zeros: dict[str, Tensor] = {}

        def add_zero(name: str, output: Nested) -> Nested:
            host = cast("Tensor", first_tensor(output))
            # A submodule in an activation checkpoint is called again in the backward pass.
            zero = zeros.setdefault(name, torch.zeros_like(host, requires_grad=True))
            return replace_first_tensor(output, host + zero)

        x, y = self.batches[-1]
        with self._hooks(model, add_zero), torch.enable_grad():
            output = self._user.call_model(model.train(), x)
            loss = self._user.call("loss", lambda: loss_of(self.task).mean(output, y))
            if not loss.requires_grad:
                raise self._user.error(
                    "loss", "its gradient reaches no weight and no slot; compute it without detaching the output"
                )
            self._user.call("model", lambda: torch.autograd.backward(loss))
        for name, parameter in model.named_parameters():
            if parameter.grad is not None and parameter.grad.layout is not torch.strided:
                problem = f"the gradient of the parameter {name!r} is sparse, which no optimizer of a run accepts"
                raise self._user.error("model", f"{problem}; leave out sparse=True")
        for name in order:
            gradient = zeros[name].grad
            if gradient is None or not bool(gradient.any()):
                raise self._user.error(
                    f"slots[{name!r}]",
                    f"the loss does not depend on the output of {self.paths[name].module!r}, so a seed there gets no "
                    "gradient; name a submodule whose output the model uses",
                )

    @torch.no_grad()
    def _perturbed_model(self) -> nn.Module:
        """Return a model with noise added to its weights, because some layers start at zero and would hide effects."""
        model, noise = build_host(self.task, _PROBE_SEED, 0, 0).model, make_generator(_PROBE_SEED, "perturbation")
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.add_(
                    torch.randn(parameter.shape, generator=noise).to(parameter.dtype), alpha=_PERTURBATION_STD
                )
        return model

    def _chance(self, model: nn.Module) -> Chance:
        chance = self.task.chance or self._measure_chance(model)
        if chance.loss <= 0:
            problem = f"the chance loss is {chance.loss:.3g}; it must be above 0: add a constant to the loss"
            raise self._user.error("chance" if self.task.chance else "loss", problem)
        if isinstance(self.task.score, SplitScore):
            self._check_chance_score(self.task.score.scale, chance.score)
        return chance

    def _check_chance_score(self, scale: ScoreScale, score: float) -> None:
        """Check that the score of a constant output can be compared with the best possible one."""
        if not math.isfinite(score):
            problem = f"the score of a constant output is {score}"
        elif scale.best_possible is not None and not scale.is_better(scale.best_possible, score):
            problem = f"the score of a constant output, {score:.4g}, is as good as the best one in range="
        else:
            return
        field, advice = (
            ("chance", "pass another score") if self.task.chance else ("score", "pass chance=esper.Chance(loss, score)")
        )
        raise self._user.error(field, f"{problem}; {advice}")

    def _measure_chance(self, model: nn.Module) -> Chance:
        x, y = spread(self.splits.validation, self.task.validation_batch)
        with torch.no_grad():
            return measure_chance(self.task, self._user.call_model(model.eval(), x), y)

    @contextmanager
    def _hooks(self, model: nn.Module, function: Callable[[str, Nested], Nested]) -> Generator[None]:
        """Call a function with the slot's name and the output of each slot's submodule, and use its result."""

        def hook_of(name: str) -> Callable[..., Nested]:
            return lambda *call: function(name, call[-1])

        handles = [
            model.get_submodule(path.module).register_forward_hook(hook_of(name)) for name, path in self.paths.items()
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
