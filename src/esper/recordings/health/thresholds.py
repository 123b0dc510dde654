"""Thresholds of the anomaly rules, from the configuration of a run or of a recording."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import msgspec

from esper.common.configuration.config import AnomalyConfig, Config
from esper.recordings import events as ev

_KEYS = {field.encode_name for field in msgspec.structs.fields(AnomalyConfig)}


class Thresholds(NamedTuple):
    """Thresholds of the anomaly rules."""

    limits: AnomalyConfig = AnomalyConfig()
    """Table `[anomalies]` of the configuration."""
    host_clip: float = 1.0
    """Norm below which no gradient of the host explodes: that to which it is clipped, or 1 if it is not clipped."""
    seed_clip: float = 1.0
    """The same of each seed."""

    @classmethod
    def from_config(cls, config: Config) -> Thresholds:
        """Return the thresholds of a run."""
        training, defaults = config.training, cls()
        host_clip = training.host_clip or defaults.host_clip
        return cls(config.anomalies, host_clip, training.seed_clip or defaults.seed_clip)

    @classmethod
    def from_recording(cls, started: ev.RunStarted | None) -> Thresholds:
        """Return the thresholds of a recorded run; the defaults where its configuration has none.

        The dashboard needs them only to draw, so a table that this version does not accept counts as absent.
        """
        if started is None:
            return cls()
        recorded, training, defaults = _table(started, "anomalies"), _table(started, "training"), cls()
        known = {key: recorded[key] for key in _KEYS & recorded.keys()}
        try:
            limits = msgspec.convert(known, AnomalyConfig, strict=False)
        except msgspec.ValidationError:  # another version allows other values
            limits = defaults.limits
        host_clip = float(training.get("host-clip") or defaults.host_clip)
        return cls(limits, host_clip, float(training.get("seed-clip") or defaults.seed_clip))


def _table(started: ev.RunStarted, name: str) -> dict[str, Any]:
    return cast("dict[str, Any]", started.config.get(name) or {})
