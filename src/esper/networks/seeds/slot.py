"""Slot: the state machine of the seed at one place of a host.

The slot computes alpha, but its forward pass does not read it: the caller passes it to `GrowingNetwork.forward`.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from esper.common.domain import AlphaCurve, Stage
from esper.networks.seeds.blend import Alpha, AlphaSchedule, Blend, BlendGate, blend_seed, straight_through
from esper.networks.seeds.kept_modules import KeptModules
from esper.networks.seeds.lifecycle import (
    LEGAL_TRANSITIONS,
    GateConfig,
    GateResult,
    IllegalTransitionError,
    StageTransition,
    gate_g1,
    gate_g2,
    gate_g3,
    gate_g5,
)
from esper.networks.seeds.site import SlotSite

_VELOCITY_EMA_DECAY = 0.7
"""Weight of the previous value in the exponential moving average of the dependence's change."""


class Slot(nn.Module):
    """A place of a host, empty or with a seed.

    The operations (`germinate`, `advance`, `set_alpha`, `cull`, `fossilize`) raise `IllegalTransitionError` exactly if
    the property of the same name (`can_germinate`, …) is False. `tick` ends an epoch.
    """

    stage: Stage
    seed: nn.Module | None
    gate: BlendGate | None
    """The blend gate of a seed that is blended by GATE, else None."""

    def __init__(self, site: SlotSite, gates: GateConfig) -> None:
        super().__init__()
        self.site = site
        self.name = site.name
        self.gates = gates
        self.register_module("seed", None)
        self.register_module("gate", None)
        self.kept = KeptModules(site)
        self._alpha_tensor: Tensor | None = None
        """The tensor of `alpha_input`, which keeps its address."""
        self._written_alpha: float | None = None
        """Value of `_alpha_tensor`."""
        self._empty(Stage.DORMANT)

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute. Only the two modules need the method of `nn.Module`, which takes ten times as long."""
        if name in ("seed", "gate"):
            super().__setattr__(name, value)  # pyright: ignore[reportArgumentType]
        else:
            object.__setattr__(self, name, value)

    def _empty(self, stage: Stage) -> None:
        """Remove the seed and all its measurements."""
        self.stage = stage
        self.epochs_in_stage = 0
        self.seed = None
        self.gate = None
        self.planted: tuple[nn.Module, ...] = ()
        """The seed, and its blend gate if it has one; empty without a seed."""
        self.parameter_count = 0
        """Number of parameters of the seed and its blend gate."""
        self.blueprint: str | None = None
        self.blend = Blend.ADD
        self.schedule: AlphaSchedule | None = None
        """The pending, current or finished ramp; None without a seed."""
        self.age = 0
        """Epochs since germination."""
        self.grad_norm: float | None = None
        """Mean gradient norm in the last epoch, set by the training loop; None if not measured."""
        self.dependence: float | None = None
        """Validation score with all seeds minus without this one, as a fraction; None if not measured."""
        self.dependence_se: float | None = None
        self.dependence_velocity: float | None = None
        """Moving average of the dependence's change between measurements; None before the second one."""
        self._gate_seed = 0
        self._cull_reason: str | None = None

    # State

    @property
    def alpha(self) -> float:
        """Blending weight of the seed in the next epoch, 0 to 1; 0 before blending and without a seed."""
        return self.schedule.value if self.schedule is not None else 0.0

    @property
    def is_ramping(self) -> bool:
        """True while alpha is ramping. No op on this slot is legal until the ramp has finished."""
        return self.stage is Stage.BLENDING and self.schedule is not None and not self.schedule.finished

    @property
    def is_culling(self) -> bool:
        """True while alpha ramps to 0, after which the seed is removed."""
        return self._cull_reason is not None

    # Legality of the operations

    @property
    def can_germinate(self) -> bool:
        """True if the slot is empty and not embargoed."""
        return self.stage is Stage.DORMANT

    @property
    def can_advance(self) -> bool:
        """True if the seed is in TRAINING and passes G2."""
        return self.stage is Stage.TRAINING and self._check_g2().passed

    @property
    def can_set_alpha(self) -> bool:
        """True if the seed is blended and not fossilized, and alpha is not ramping."""
        return self.stage in (Stage.BLENDING, Stage.PROBATIONARY) and not self.is_ramping

    @property
    def can_cull(self) -> bool:
        """True if there is a seed of at least `cull_age` epochs that is not fossilized, and alpha is not ramping."""
        old_enough = self.age >= self.gates.cull_age
        return Stage.CULLED in LEGAL_TRANSITIONS[self.stage] and old_enough and not self.is_ramping

    @property
    def can_fossilize(self) -> bool:
        """True if the seed is in PROBATIONARY and passes G5."""
        return self.stage is Stage.PROBATIONARY and self._check_g5().passed

    def refusing_gate(self) -> GateResult | None:
        """Return the result of the next gate if it refuses the seed, else None."""
        result = self.check_next_gate()
        return None if result is None or result.passed else result

    def check_next_gate(self) -> GateResult | None:
        """Evaluate the gate to the seed's next stage; None if no gate follows."""
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
        return gate_g5(self.dependence, self.gates)

    # Operations

    def germinate(
        self, blueprint: str, blend: Blend, curve: AlphaCurve, tempo: int, target: float, generator: torch.Generator
    ) -> StageTransition:
        """Plant a seed and prepare its first ramp.

        Args:
            curve: Shape of the first ramp.
            tempo: Length of the first ramp in epochs.
            target: Alpha at the end of the first ramp.
            generator: CPU generator of the seed's initial values.
        """
        self._check_legal(self.can_germinate, "germinate")
        self.seed = self.kept.get_seed(blueprint, generator, training=self.training)
        self.blueprint = blueprint
        # Drawn for every blend, so that the values drawn from `generator` do not depend on the blend.
        self._gate_seed = int(torch.randint(2**62, (), generator=generator))
        self._set_blend(blend)
        self.schedule = AlphaSchedule(start=0.0, target=target, steps=tempo, curve=curve)
        return self._transition_to(Stage.GERMINATED, "germinate")

    def advance(self) -> StageTransition:
        """Move the seed from TRAINING to BLENDING; the next epoch runs at the first step of the ramp."""
        self._check_legal(self.can_advance, "advance")
        assert self.schedule is not None
        self.schedule.tick()
        return self._transition_to(Stage.BLENDING, "advance")

    def set_alpha(
        self, target: float, steps: int, curve: AlphaCurve, blend: Blend | None = None
    ) -> StageTransition | None:
        """Start a ramp to a new alpha target, and change the blend if one is given.

        A change to or from GATE changes the slot's parameters.

        Args:
            target: Alpha at the end of the ramp.
            steps: Length of the ramp in epochs; 0 sets alpha at once.
            blend: New blend; None keeps the current one.

        Returns:
            The transition back to BLENDING, or None if the seed was already in BLENDING.
        """
        self._check_legal(self.can_set_alpha, "set_alpha")
        if blend is not None and blend is not self.blend:
            self._set_blend(blend)
        return self._start_ramp(target, steps, curve, "set_alpha")

    def cull(self, steps: int, curve: AlphaCurve, reason: str) -> StageTransition | None:
        """Remove the seed at once if `steps` is 0 or it is not blended; else ramp alpha to 0 and remove it then.

        Args:
            steps: Length of the ramp to 0 in epochs.
            reason: Recorded as the reason of the transitions.

        Returns:
            The first transition, or None if the seed is in BLENDING and stays there during the ramp.
        """
        self._check_legal(self.can_cull, "cull")
        if steps == 0 or not self.stage.is_blended:
            return self.remove_seed(reason)
        self._cull_reason = reason
        return self._start_ramp(0.0, steps, curve, reason)

    def fossilize(self) -> StageTransition:
        """Make the seed permanent at its current alpha."""
        self._check_legal(self.can_fossilize, "fossilize")
        return self._transition_to(Stage.FOSSILIZED, "fossilize")

    def remove_seed(self, reason: str) -> StageTransition:
        """Remove the seed at once, regardless of its age and alpha.

        Raises:
            IllegalTransitionError: There is no seed, or it is fossilized.
        """
        before, blueprint = self.stage, self.blueprint
        if Stage.CULLED not in LEGAL_TRANSITIONS[before]:
            raise IllegalTransitionError(f"slot {self.name}: cannot remove a seed in stage {before.label}")
        self._empty(Stage.CULLED)
        return StageTransition(self.name, before, Stage.CULLED, blueprint, reason)

    def reset(self) -> None:
        """Empty the slot for a new episode, regardless of its stage."""
        self._empty(Stage.DORMANT)

    def record_dependence(self, dependence: float, standard_error: float | None) -> None:
        """Store how much of the validation score depends on the seed (a fraction), and update its velocity.

        A dependence that is not finite is ignored.
        """
        if not math.isfinite(dependence):
            return
        if self.dependence is not None:
            change = dependence - self.dependence
            past = change if self.dependence_velocity is None else self.dependence_velocity
            self.dependence_velocity = _VELOCITY_EMA_DECAY * past + (1.0 - _VELOCITY_EMA_DECAY) * change
        self.dependence, self.dependence_se = dependence, standard_error

    def tick(self) -> list[StageTransition]:
        """End an epoch: age the seed, advance alpha, and return the transitions that need no decision."""
        if self.stage is Stage.DORMANT:
            return []
        self.epochs_in_stage += 1
        if self.planted:
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
        # G3 is checked before alpha advances, so that the seed is trained and validated at its target first.
        if not self.is_culling and self._check_g3().passed:
            return [self._transition_to(Stage.PROBATIONARY, "G3")]
        assert self.schedule is not None
        self.schedule.tick()
        if self._cull_reason is not None and self.schedule.finished:
            return [self.remove_seed(self._cull_reason)]
        return []

    def _start_ramp(self, target: float, steps: int, curve: AlphaCurve, reason: str) -> StageTransition | None:
        self.schedule = AlphaSchedule(start=self.alpha, target=target, steps=steps, curve=curve)
        self.schedule.tick()
        return self._transition_to(Stage.BLENDING, reason) if self.stage is Stage.PROBATIONARY else None

    def _transition_to(self, after: Stage, reason: str) -> StageTransition:
        before = self.stage
        if after not in LEGAL_TRANSITIONS[before]:
            raise IllegalTransitionError(f"slot {self.name}: illegal transition from {before.label} to {after.label}")
        self.stage, self.epochs_in_stage = after, 0
        return StageTransition(self.name, before, after, self.blueprint, reason)

    def _check_legal(self, legal: bool, op: str) -> None:
        if not legal:
            gate = self.refusing_gate()
            why = f"; {gate.gate} refuses: {', '.join(gate.failed_checks)}" if gate is not None else ""
            raise IllegalTransitionError(f"slot {self.name}: {op} is illegal in stage {self.stage.label}{why}")

    # Modules

    @property
    def topology(self) -> Hashable:
        """Description of the operations of the forward pass; None if they are those of an empty slot."""
        if self.stage is Stage.TRAINING:
            return self.blueprint, self.blend
        return (self.blueprint, self.blend, self.alpha > 0, self.alpha < 1) if self.stage.is_blended else None

    @torch.no_grad()
    def alpha_input(self) -> Alpha:
        """Return alpha for a forward pass: 0 and 1 as numbers, other values in a tensor of the slot.

        The tensor is the same in every call. It is written here if alpha has changed, so a function that is recorded in
        a CUDA graph must not be the first to call this.
        """
        alpha = self.alpha
        if alpha in (0.0, 1.0):
            return alpha
        if self._alpha_tensor is None or self._alpha_tensor.device != self.kept.device:
            self._alpha_tensor, self._written_alpha = torch.zeros((), device=self.kept.device), None
        if alpha != self._written_alpha:
            self._alpha_tensor.fill_(alpha)
            self._written_alpha = alpha
        return self._alpha_tensor

    def forward(self, host: Tensor, alpha: Alpha, mask: Tensor | None = None) -> Tensor:
        """Return the host's features, in the layout of the site, with the seed blended in at `alpha`.

        A seed in TRAINING is straight-through in training mode, and is not called in evaluation mode. Features that do
        not change are returned as they are, not as a copy.

        Args:
            mask: Real positions of a sequence, bool [B, T]; None: all.
        """
        if self.seed is None:
            return host
        if self.stage is Stage.TRAINING and self.training:
            return straight_through(host, self._blended(host.detach(), 1.0, mask))
        if self.stage.is_blended and (isinstance(alpha, Tensor) or alpha != 0.0):
            return self._blended(host, alpha, mask)
        return host

    def _blended(self, host: Tensor, alpha: Alpha, mask: Tensor | None) -> Tensor:
        assert self.seed is not None
        return blend_seed(self.blend, self.site.layout, host, self.seed, alpha, self.gate, mask)

    def _set_blend(self, kind: Blend) -> None:
        self.blend = kind
        self.gate = self.kept.get_gate(self._gate_seed, training=self.training) if kind is Blend.GATE else None
        self.planted = tuple(module for module in (self.seed, self.gate) if module is not None)
        self.parameter_count = sum(parameter.numel() for parameter in self.parameters())

    @property
    def device(self) -> torch.device:
        """Device of the seeds."""
        return self.kept.device

    # Persistence

    def lifecycle_state(self) -> dict[str, Any]:
        """Return the state without the weights, as JSON-compatible values; a measured NaN stays NaN."""
        return {
            "stage": self.stage.label,
            "epochs_in_stage": self.epochs_in_stage,
            "blueprint": self.blueprint,
            "blend": self.blend.value,
            "schedule": msgspec.to_builtins(self.schedule),
            "age": self.age,
            "grad_norm": self.grad_norm,
            "dependence": self.dependence,
            "dependence_se": self.dependence_se,
            "dependence_velocity": self.dependence_velocity,
            "gate_seed": self._gate_seed,
            "cull_reason": self._cull_reason,
        }

    def load_lifecycle_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `lifecycle_state` returned, and plant the modules that it needs.

        The caller overwrites all their weights and buffers.
        """
        blueprint, kind = state["blueprint"], Blend(state["blend"])
        if (blueprint, kind) != (self.blueprint, self.blend):
            self._empty(Stage.DORMANT)
        self._gate_seed = state["gate_seed"]
        if blueprint is not None and self.seed is None:
            self.blueprint = blueprint
            self.seed = self.kept.get_seed(blueprint, None, training=self.training)
            self._set_blend(kind)
        self.schedule = msgspec.convert(state["schedule"], AlphaSchedule | None)
        self.stage = Stage[state["stage"].upper()]
        self.epochs_in_stage = state["epochs_in_stage"]
        self.age = state["age"]
        self.grad_norm = state["grad_norm"]
        self.dependence = state["dependence"]
        self.dependence_se = state["dependence_se"]
        self.dependence_velocity = state["dependence_velocity"]
        self._cull_reason = state["cull_reason"]
