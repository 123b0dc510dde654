"""Exercises: what a pupil learns from a lesson in one order.

Shapes: O orders, P alternatives, T steps, F features, S slots, H heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from research.teaching.lessons import Lesson, net_rewards
from torch import Tensor

from esper.training.policy.masks import ActionMasks
from esper.training.policy.observation import set_rent


@dataclass(frozen=True, kw_only=True, eq=False)
class Exercise:
    """The alternatives of a lesson in one order, each sequence of actions once.

    Plans of a family are equal where a host lacks the slots in which they differ, and a policy can follow a plan.

    Attributes:
        order: Index of the order.
        rents: Range of the weights of the rent for which the lesson has good alternatives.
        score_OPT: Validation scores of the lesson in every order, [O, P, T + 1]; `rent_OPT` and `cost_OPT` as in
            `Lesson`.
        is_same_OP: True for the orders in which the alternative takes the same actions as in this one.
    """

    order: int
    rents: tuple[float, float]
    obs_PTF: Tensor
    blueprint_PTS: Tensor
    masks: ActionMasks
    actions_PTH: Tensor
    valid_PT: Tensor
    score_OPT: Tensor
    rent_OPT: Tensor
    cost_OPT: Tensor
    is_same_OP: Tensor

    def observations(self, rent: float) -> Tensor:
        """Return the observations at a weight of the rent, not normalised, [P, T, F]."""
        obs_PTF = self.obs_PTF.clone()
        set_rent(obs_PTF, self.rent_OPT[self.order], rent)
        return obs_PTF

    def rewards(self, rent: float) -> Tensor:
        """Return the net reward of each step at a weight of the rent, [O, P, T]."""
        return net_rewards(self.score_OPT, self.rent_OPT, self.cost_OPT, rent)

    def returns(self, rent: float) -> Tensor:
        """Return the net return of each alternative, averaged over the orders in which its actions are the same, [P].

        Orders differ in their level. It is measured by the alternatives that take the same actions in every order, and
        the difference from the mean over all orders is removed, so that all alternatives can be compared.
        """
        return_OP = self.rewards(rent).sum(dim=-1)
        common_P = self.is_same_OP.all(dim=0)
        level_O1 = (return_OP[:, common_P] if common_P.any() else return_OP).mean(dim=1, keepdim=True)
        comparable_OP = return_OP - level_O1 + level_O1.mean()
        return (comparable_OP * self.is_same_OP).sum(dim=0) / self.is_same_OP.sum(dim=0)

    def unknown_returns(self, rent: float) -> Tensor:
        """Return the return from each step on minus its known part, [P, T].

        The known part is the negative score at the step (`RewardFunction.known_return`).
        """
        reward_PT = self.rewards(rent)[self.order]
        return reward_PT.flip(-1).cumsum(-1).flip(-1) + self.score_OPT[self.order, :, :-1]


def split_lesson(lesson: Lesson, rents: tuple[float, float]) -> list[Exercise]:
    """Return the exercise of each order of a lesson.

    Args:
        rents: Range of the weights of the rent for which the lesson has good alternatives.
    """
    return [_exercise(lesson, order, rents) for order in range(len(lesson.actions_OPTH))]


def _exercise(lesson: Lesson, order: int, rents: tuple[float, float]) -> Exercise:
    kept_P = torch.tensor(_first_of_each(lesson.actions_OPTH[order].unbind(0)))

    def of_order(values_OP: Tensor) -> Tensor:
        return values_OP[order].index_select(0, kept_P)

    def of_all(values_OP: Tensor) -> Tensor:
        return values_OP.index_select(1, kept_P)

    actions_PTH = of_order(lesson.actions_OPTH)
    return Exercise(
        order=order,
        rents=rents,
        obs_PTF=of_order(lesson.obs_OPTF),
        blueprint_PTS=of_order(lesson.blueprint_OPTS),
        masks=ActionMasks(*map(of_order, lesson.masks)),
        actions_PTH=actions_PTH,
        valid_PT=of_order(lesson.valid_OPT),
        score_OPT=of_all(lesson.score_OPT),
        rent_OPT=of_all(lesson.rent_OPT),
        cost_OPT=of_all(lesson.cost_OPT),
        is_same_OP=(of_all(lesson.actions_OPTH) == actions_PTH).flatten(2).all(dim=-1),
    )


def _first_of_each(actions: Sequence[Tensor]) -> list[int]:
    """Return the index of the first of equal sequences of actions, [T, H] each."""
    first: dict[bytes, int] = {}
    for index, actions_TH in enumerate(actions):
        first.setdefault(actions_TH.numpy().tobytes(), index)
    return list(first.values())
