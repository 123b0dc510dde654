"""Steps of episodes with one seed in the slot `mid`, as changes of `env_stepped`."""

from __future__ import annotations

from esper.common.domain import StageName
from esper.recordings import events as ev


def slots(stage: StageName, alpha: float | None = None, dependence: float | None = None) -> list[ev.SlotReading]:
    """Return the readings of three slots; the seed is in the second."""
    empty = ev.SlotReading(stage="dormant")
    return [empty, ev.SlotReading(stage=stage, alpha=alpha, dependence=dependence), empty]


def choices(**words: str) -> dict[str, ev.HeadChoice]:
    """Return the choices of the heads."""
    return {head: ev.HeadChoice(choice=word) for head, word in words.items()}


def planting(style: str, tempo: str, target: str = "1.0") -> dict[str, object]:
    """Return a step that plants a norm."""
    decision = choices(slot="mid", blueprint="norm", style=style, tempo=tempo, alpha_target=target)
    return {"op": "germinate", "target": "mid", "decision": decision, "slots": slots("training")}


def blended(alpha: float = 0.5, dependence: float | None = 0.3, **changes: object) -> dict[str, object]:
    """Return a step with a blended seed and good scores."""
    readings = slots("probationary", alpha, dependence)
    return {"slots": readings, "score": 0.8, "train_score": 0.8} | changes


def cull(speed: str, curve: str = "linear") -> dict[str, object]:
    """Return a decision to cull the seed."""
    decision = choices(slot="mid", alpha_speed=speed, alpha_curve=curve)
    return {"op": "cull", "target": "mid", "decision": decision}


def removed(**changes: object) -> dict[str, object]:
    """Return a step without a seed."""
    return {"slots": slots("embargoed")} | changes


GOOD = [planting("linear_add", "5", "0.5") | {"score": 0.8, "train_score": 0.8}, *[blended()] * 3]
"""A norm that contributes 0.3 is blended at alpha 0.5."""
