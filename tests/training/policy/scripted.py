"""An env whose slots are real but not trained: tests set the measurements of an epoch."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from esper.common.configuration.config import Config, CounterfactualName
from esper.common.domain import HEADS, Stage
from esper.networks.seeds.lifecycle import StageTransition
from esper.networks.tasks import load_task
from esper.networks.tasks.probe import probe_task
from esper.training.envs.env import Env
from esper.training.envs.hosts import HostFactory
from esper.training.policy.actions import Action
from esper.training.policy.agent import EnvStatus

TASK = load_task("digits_impaired")
SPLITS = TASK.data(None)
PROFILE = probe_task(TASK, (SPLITS,))
BLUEPRINTS = PROFILE.blueprints
SLOTS = ("early", "mid", "late")
NOISE = torch.zeros(1, 25, len(HEADS))
"""Random numbers for agents that do not use them."""


class ScriptedEnv:
    """Real slots with an `EnvStatus`, and epochs without training."""

    def __init__(self, steps: int = 25, counterfactual: CounterfactualName = "ablation") -> None:
        hosts = HostFactory(TASK, PROFILE, torch.device("cpu"), 0)
        self.env = Env(0, hosts, (SPLITS,), Config(counterfactual=counterfactual), None)
        self.slots = self.env.network.slots
        self.view = EnvStatus(
            env=0,
            slots=self.slots,
            steps=steps,
            chance_loss=PROFILE.chance.loss,
            chance_score=PROFILE.chance.score,
            losses=[2.5],
            scores=[0.1],
        )

    def apply(self, action: Action) -> list[StageTransition]:
        """Apply an action; errors of the slots are passed on."""
        return self.env.apply_action(action, self.view.step)

    def end_epoch(
        self, dependences: Mapping[int, float] | None = None, grad_norm: float = 1.0, fall: float = 0.0
    ) -> None:
        """End an epoch: set gradient norms and dependences, and reduce the loss by the fraction `fall`."""
        for index in self.env.trained_slots():
            self.slots[index].grad_norm = grad_norm
        for index in self.env.measured_slots():
            self.slots[index].record_dependence((dependences or {}).get(index, 0.1), 0.01)
        view = self.view
        view.step += 1
        view.losses.append(view.losses[-1] * (1 - fall))
        view.scores.append(view.scores[-1])
        view.parameter_ratio = self.env.network.parameter_ratio
        self.env.tick()

    def stages(self) -> list[Stage]:
        """Return the stage of each slot."""
        return [slot.stage for slot in self.slots]
