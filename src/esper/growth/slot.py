"""A slot: the place in a host where seeds live, and the state machine of their lives.

Alpha is not read by the forward pass from here: it is an argument of `GrowingNetwork.forward`. The slot knows what
alpha should be, and when.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from esper.growth.blend import AlphaSchedule, Blend, BlendGate, Curve, blend, straight_through
from esper.growth.blueprints import build_seed
from esper.growth.layers import initialise_
from esper.growth.lifecycle import (
    LEGAL_TRANSITIONS,
    GateConfig,
    GateResult,
    IllegalTransitionError,
    gate_g1,
    gate_g2,
    gate_g3,
    gate_g5,
)
from esper.growth.stages import Stage

ModuleT = TypeVar("ModuleT", bound=nn.Module)

_VELOCITY_EMA_DECAY = 0.7
"""Weight of the past in the moving average of the contribution's change."""


@dataclass(frozen=True)
class StageTransition:
    """A transition that happened, for telemetry."""

    slot: str
    before: Stage
    after: Stage
    blueprint: str | None
    reason: str
    """The operation, the gate or the timer that made it."""


class Slot(nn.Module):
    """One injection point of one host, empty or with a seed.

    The operations (`germinate`, `advance`, `set_alpha`, `cull`, `fossilize`) raise `IllegalTransitionError` exactly if
    the property of the same name (`can_germinate`, …) is False. `tick` ends an epoch.
    """

    stage: Stage
    seed: nn.Module | None
    gate: BlendGate | None
    """The trainable gate of a seed that is blended by GATE."""

    def __init__(self, name: str, channels: int, gates: GateConfig) -> None:
        super().__init__()
        self.name = name
        self.channels = channels
        self.gates = gates
        self.register_module("seed", None)
        self.register_module("gate", None)
        # Follows `.to(device)`, so that a seed is built where its host lives.
        self.register_buffer("_device_anchor", torch.empty(0), persistent=False)
        self._empty(Stage.DORMANT)

    def _empty(self, stage: Stage) -> None:
        """Drop the seed and everything known of it."""
        self.stage = stage
        self.epochs_in_stage = 0
        self.seed = None
        self.gate = None
        self.parameter_count = 0
        """Of the seed and its gate."""
        self.blueprint: str | None = None
        self.blend = Blend.ADD
        self.schedule: AlphaSchedule | None = None
        """The ramp to come, under way or finished; None without a seed."""
        self.age = 0
        """Epochs since germination."""
        self.grad_norm: float | None = None
        """Mean gradient norm of the last epoch, set by whoever trains the seed."""
        self.contribution: float | None = None
        self.contribution_se: float | None = None
        self.contribution_velocity: float | None = None
        self._gate_seed = 0
        self._cull_reason: str | None = None

    # What is

    @property
    def alpha(self) -> float:
        """Share of the seed in the forward pass of the coming epoch; 0 before blending and without a seed."""
        return self.schedule.value if self.schedule is not None else 0.0

    @property
    def is_ramping(self) -> bool:
        """Whether alpha is on its way: until it arrives, nothing else may be asked of it."""
        return self.stage is Stage.BLENDING and self.schedule is not None and not self.schedule.finished

    @property
    def is_culling(self) -> bool:
        """Whether alpha is on its way to 0, at which the seed will be removed."""
        return self._cull_reason is not None

    # What may be done

    @property
    def can_germinate(self) -> bool:
        """The slot is empty and rested."""
        return self.stage is Stage.DORMANT

    @property
    def can_advance(self) -> bool:
        """The seed is in TRAINING and G2 lets it into BLENDING."""
        return self.stage is Stage.TRAINING and self._check_g2().passed

    @property
    def can_set_alpha(self) -> bool:
        """The seed is blended, not yet permanent, and its alpha rests."""
        return self.stage in (Stage.BLENDING, Stage.PROBATIONARY) and not self.is_ramping

    @property
    def can_cull(self) -> bool:
        """There is a seed that is not permanent, is old enough to be judged, and its alpha rests."""
        old_enough = self.age >= self.gates.cull_age
        return Stage.CULLED in LEGAL_TRANSITIONS[self.stage] and old_enough and not self.is_ramping

    @property
    def can_fossilize(self) -> bool:
        """The seed is on probation and G5 lets it become permanent."""
        return self.stage is Stage.PROBATIONARY and self._check_g5().passed

    def refusing_gate(self) -> GateResult | None:
        """The gate that holds the seed back now; None where none does."""
        result = self.check_next_gate()
        return None if result is None or result.passed else result

    def check_next_gate(self) -> GateResult | None:
        """What the gate to the seed's next stage says now; None where no gate is next."""
        if self.stage is Stage.GERMINATED:
            return gate_g1(self.epochs_in_stage)
        if self.stage is Stage.TRAINING:
            return self._check_g2()
        if self.stage is Stage.BLENDING and not self.is_culling:
            return self._check_g3()
        return self._check_g5() if self.stage is Stage.PROBATIONARY else None

    def _check_g2(self) -> GateResult:
        return gate_g2(self.epochs_in_stage, self.grad_norm, self.gates)

    def _check_g3(self) -> GateResult:
        assert self.schedule is not None
        return gate_g3(self.schedule.value, self.schedule.target)

    def _check_g5(self) -> GateResult:
        return gate_g5(self.contribution, self.gates)

    # The operations

    def germinate(
        self, blueprint: str, blend: Blend, curve: Curve, tempo: int, target: float, generator: torch.Generator
    ) -> StageTransition:
        """Plant a seed, to be blended later along a ramp of `tempo` epochs up to `target`.

        Its initial values are drawn from `generator` (on the CPU).

        Raises:
            IllegalTransition: the slot is not DORMANT.
            ValueError: no blueprint has this name.
        """
        self._check_legal(self.can_germinate, "germinate")
        seed = build_seed(blueprint, self.channels)
        initialise_(seed, generator)
        self.seed = self._place_module(seed)
        self.blueprint = blueprint
        # Drawn whatever the blend, so that neither the seed's values nor what is drawn next depend on it.
        self._gate_seed = int(torch.randint(2**62, (), generator=generator))
        self._set_blend(blend)
        self.schedule = AlphaSchedule(start=0.0, target=target, steps=tempo, curve=curve)
        return self._transition_to(Stage.GERMINATED, "germinate")

    def advance(self) -> StageTransition:
        """From TRAINING to BLENDING; the coming epoch runs at the first value of the ramp.

        Raises:
            IllegalTransition: the stage is not TRAINING, or G2 refuses.
        """
        self._check_legal(self.can_advance, "advance")
        assert self.schedule is not None
        self.schedule.tick()
        return self._transition_to(Stage.BLENDING, "advance")

    def set_alpha(self, target: float, steps: int, curve: Curve, blend: Blend | None = None) -> StageTransition | None:
        """Give alpha a new target, reached in `steps` epochs (0: at once), and the seed a new blend unless None.

        Returns the move back to BLENDING, or None if the seed was there already. A change to or from GATE changes the
        slot's parameters.

        Raises:
            IllegalTransition: the seed is not blended, is permanent, or its alpha is moving.
        """
        self._check_legal(self.can_set_alpha, "set_alpha")
        if blend is not None and blend is not self.blend:
            self._set_blend(blend)
        return self._start_ramp(target, steps, curve, "set_alpha")

    def cull(self, steps: int, curve: Curve, reason: str) -> StageTransition | None:
        """Remove the seed: at once if `steps` is 0 or it is not blended, else when alpha has gone down to 0.

        Returns the first move of it, or None if the seed is in BLENDING and stays there on its way down.

        Raises:
            IllegalTransition: there is no seed, it is permanent or too young, or its alpha is moving.
        """
        self._check_legal(self.can_cull, "cull")
        if steps == 0 or not self.stage.is_blended:
            return self.remove_seed(reason)
        self._cull_reason = reason
        return self._start_ramp(0.0, steps, curve, reason)

    def fossilize(self) -> StageTransition:
        """Make the seed permanent, at the alpha at which it was tried.

        Raises:
            IllegalTransition: the stage is not PROBATIONARY, or G5 refuses.
        """
        self._check_legal(self.can_fossilize, "fossilize")
        return self._transition_to(Stage.FOSSILIZED, "fossilize")

    def remove_seed(self, reason: str) -> StageTransition:
        """Remove a seed at once, whatever its age and alpha.

        Raises:
            IllegalTransition: there is no seed, or it is permanent.
        """
        before, blueprint = self.stage, self.blueprint
        if Stage.CULLED not in LEGAL_TRANSITIONS[before]:
            raise IllegalTransitionError(f"slot {self.name}: there is nothing to remove in stage {before.label}")
        self._empty(Stage.CULLED)
        return StageTransition(self.name, before, Stage.CULLED, blueprint, reason)

    def reset(self) -> None:
        """Empty the slot for a new episode, whatever is in it."""
        self._empty(Stage.DORMANT)

    def record_contribution(self, contribution: float, standard_error: float) -> None:
        """Note the seed's measured contribution to the validation accuracy, as a fraction, and how fast it changes."""
        if self.contribution is not None:
            change = contribution - self.contribution
            past = change if self.contribution_velocity is None else self.contribution_velocity
            self.contribution_velocity = _VELOCITY_EMA_DECAY * past + (1.0 - _VELOCITY_EMA_DECAY) * change
        self.contribution, self.contribution_se = contribution, standard_error

    def tick(self) -> list[StageTransition]:
        """End an epoch: age the seed, move alpha, and make the transitions that need no decision."""
        if self.stage is Stage.DORMANT:
            return []
        self.epochs_in_stage += 1
        if self.seed is not None:
            self.age += 1
        if self.stage is Stage.GERMINATED and gate_g1(self.epochs_in_stage).passed:
            return [self._transition_to(Stage.TRAINING, "G1")]
        if self.stage is Stage.BLENDING:
            return self._tick_alpha()
        if self.stage is Stage.CULLED:
            return [self._transition_to(Stage.EMBARGOED, "timer")]
        if self.stage is Stage.EMBARGOED and self.epochs_in_stage >= self.gates.embargo_epochs:
            return [self._transition_to(Stage.DORMANT, "timer")]
        return []

    def _tick_alpha(self) -> list[StageTransition]:
        """G3 is asked before alpha moves: the seed is trained and validated at its target before it goes on trial."""
        if not self.is_culling and self._check_g3().passed:
            return [self._transition_to(Stage.PROBATIONARY, "G3")]
        assert self.schedule is not None
        self.schedule.tick()
        if self._cull_reason is not None and self.schedule.finished:
            return [self.remove_seed(self._cull_reason)]
        return []

    def _start_ramp(self, target: float, steps: int, curve: Curve, reason: str) -> StageTransition | None:
        self.schedule = AlphaSchedule(start=self.alpha, target=target, steps=steps, curve=curve)
        self.schedule.tick()
        return self._transition_to(Stage.BLENDING, reason) if self.stage is Stage.PROBATIONARY else None

    def _transition_to(self, after: Stage, reason: str) -> StageTransition:
        before = self.stage
        if after not in LEGAL_TRANSITIONS[before]:
            raise IllegalTransitionError(f"slot {self.name}: no seed goes from {before.label} to {after.label}")
        self.stage, self.epochs_in_stage = after, 0
        return StageTransition(self.name, before, after, self.blueprint, reason)

    def _check_legal(self, legal: bool, op: str) -> None:
        if not legal:
            gate = self.refusing_gate()
            why = f"; {gate.gate} refuses: {gate.failed_checks}" if gate is not None else ""
            raise IllegalTransitionError(f"slot {self.name}: {op} is illegal in stage {self.stage.label}{why}")

    # The modules

    def forward(self, host_BCHW: Tensor, alpha: float) -> Tensor:
        """The host's features [B, C, H, W] with the seed blended in at `alpha`.

        In TRAINING it is straight-through in training mode, and in evaluation mode not called at all.
        """
        if self.seed is None:
            return host_BCHW
        if self.stage is Stage.TRAINING and self.training:
            return straight_through(host_BCHW, self._blended(host_BCHW.detach(), 1.0))
        if self.stage.is_blended and alpha != 0.0:
            return self._blended(host_BCHW, alpha)
        return host_BCHW

    def _blended(self, host_BCHW: Tensor, alpha: float) -> Tensor:
        assert self.seed is not None
        gate_B111 = self.gate(host_BCHW) if self.gate is not None else None
        return blend(self.blend, host_BCHW, self.seed(host_BCHW), alpha, gate_B111)

    def _set_blend(self, kind: Blend) -> None:
        self.blend = kind
        self.gate = None
        if kind is Blend.GATE:
            gate = BlendGate(self.channels)
            initialise_(gate, torch.Generator().manual_seed(self._gate_seed))
            self.gate = self._place_module(gate)
        self.parameter_count = sum(parameter.numel() for parameter in self.parameters())

    def _place_module(self, module: ModuleT) -> ModuleT:
        """The module on the host's device, in its memory format and its mode."""
        module = module.to(self.get_buffer("_device_anchor").device, non_blocking=True)
        return module.to(memory_format=torch.channels_last).train(self.training)

    # Persistence

    def lifecycle_state(self) -> dict[str, Any]:
        """Everything but the weights, as JSON can hold it; a measured NaN stays a NaN."""
        schedule = self.schedule
        return {
            "stage": self.stage.label,
            "epochs_in_stage": self.epochs_in_stage,
            "blueprint": self.blueprint,
            "blend": self.blend.value,
            "schedule": _schedule_state(schedule) if schedule is not None else None,
            "age": self.age,
            "grad_norm": self.grad_norm,
            "contribution": self.contribution,
            "contribution_se": self.contribution_se,
            "contribution_velocity": self.contribution_velocity,
            "gate_seed": self._gate_seed,
            "cull_reason": self._cull_reason,
        }

    def load_lifecycle_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `lifecycle_state` returned, and build the modules that it needs.

        Their weights are restored by `load_state_dict`.
        """
        blueprint, kind = state["blueprint"], Blend(state["blend"])
        if (blueprint, kind) != (self.blueprint, self.blend):
            self._empty(Stage.DORMANT)
        self._gate_seed = state["gate_seed"]
        if blueprint is not None and self.seed is None:
            self.blueprint = blueprint
            self.seed = self._place_module(build_seed(blueprint, self.channels))
            self._set_blend(kind)
        self.schedule = _load_schedule(state["schedule"]) if state["schedule"] else None
        self.stage = Stage[state["stage"].upper()]
        self.epochs_in_stage = state["epochs_in_stage"]
        self.age = state["age"]
        self.grad_norm = state["grad_norm"]
        self.contribution = state["contribution"]
        self.contribution_se = state["contribution_se"]
        self.contribution_velocity = state["contribution_velocity"]
        self._cull_reason = state["cull_reason"]


def _schedule_state(schedule: AlphaSchedule) -> dict[str, Any]:
    return {
        "start": schedule.start,
        "target": schedule.target,
        "steps": schedule.steps,
        "done": schedule.epochs_started,
        "curve": schedule.curve.value,
    }


def _load_schedule(state: dict[str, Any]) -> AlphaSchedule:
    return AlphaSchedule(
        start=state["start"],
        target=state["target"],
        steps=state["steps"],
        curve=Curve(state["curve"]),
        epochs_started=state["done"],
    )
