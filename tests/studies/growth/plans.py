"""Slots and a space of plans for the tests of a search."""

from __future__ import annotations

from collections.abc import Sequence

from esper.networks.seeds.layouts import Layout
from esper.networks.seeds.site import SlotSite
from esper.studies.growth.space import PlanSpace

BLUEPRINTS = ("norm", "depthwise", "conv_light", "conv_heavy")
SLOTS = ("early", "mid", "late")


def sites(slots: Sequence[str] = SLOTS, blueprints: Sequence[str] = BLUEPRINTS) -> list[SlotSite]:
    return [
        SlotSite(
            name=name, module=name, layout=Layout.BCHW, channels=4 + index, sizes=(8, 8), blueprints=tuple(blueprints)
        )
        for index, name in enumerate(slots)
    ]


def space(steps: int = 20, limit: int | None = None) -> PlanSpace:
    return PlanSpace(sites(), steps, host_parameters=1000, max_parameters=limit)
