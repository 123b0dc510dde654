"""Units and limits of recorded quantities, for charts and lists."""

from __future__ import annotations

from collections.abc import Collection

from esper.common.formatting import format_return, strip_control
from esper.common.plots.chart import Quantity, percent, score_quantity
from esper.common.score_scale import ScoreScale

_SECONDS, _COUNT = Quantity("", "s", low=0.0), Quantity("", low=0.0)
_GIB = Quantity("", "GiB", 2.0**-30, 0.0)
_QUANTITIES = {
    "gradient norm": _COUNT,
    "seed gradient norm": _COUNT,
    "parameters": Quantity("", "×host", low=0.0),
    "return": Quantity("", text_of=format_return),
    "mean return": Quantity("", text_of=format_return),
    "loss scale": _COUNT,
    "skipped batches": _COUNT,
    "entropy": Quantity("", low=0.0, high=1.0),
    "KL": Quantity("", "nats", low=0.0),
    "clip fraction": percent(""),
    "explained variance": Quantity("", high=1.0),
    "explained variance within a step": Quantity("", high=1.0),
    "value loss": _COUNT,
    "learning rate": _COUNT,
    "fossilized seeds": _COUNT,
    "culled seeds": _COUNT,
    "rollbacks": _COUNT,
    "planted": Quantity("", "per episode", low=0.0),
    "env-steps per second": _COUNT,
    "busy": percent(""),
    "launching": percent(""),
    "CUDA graphs": _COUNT,
    "utilisation": percent(""),
    "memory allocated": _GIB,
    "memory reserved": _GIB,
    "memory used": _GIB,
    "temperature": Quantity("", "°C"),
    "power": Quantity("", "W", low=0.0),
    "step time": _SECONDS,
}
"""Units and limits of quantities; others have none."""


def quantity_of(name: str, title: str, scores: Collection[str], scale: ScoreScale) -> Quantity:
    """Return a recorded quantity with its unit and limits.

    Args:
        title: Name that the chart shows.
        scores: Names of the scores of the shown tasks.
        scale: Scale of the scores.
    """
    if name.removeprefix("train ").removeprefix("final ") in scores:
        return score_quantity(strip_control(title), scale)
    if name == "dependence":
        factor = 100.0 if scale.is_percent else 1.0
        return Quantity(strip_control(title), scale.difference_unit, factor)
    return _QUANTITIES.get(name, Quantity(""))._replace(name=strip_control(title))
