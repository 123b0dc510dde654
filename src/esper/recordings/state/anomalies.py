"""State of an anomaly."""

from __future__ import annotations

import msgspec

from esper.recordings.events import AnomalyEnded, AnomalyFound, AnomalyJoined, AnomalyLeft


class Anomaly(msgspec.Struct, kw_only=True):
    """All occurrences of one rule for one subject.

    The subject of an anomaly of several envs is the first of them.
    """

    found: AnomalyFound
    """Start of the last occurrence."""
    first_round: int
    first_step: int
    last_round: int
    ended: float | None = None
    """Time at which the last occurrence ended, seconds since the epoch; None while it is active."""
    count: int = 1
    """Number of occurrences."""
    joined: dict[int, AnomalyJoined] = {}
    """Envs that joined the last occurrence, keyed by env index."""
    left: list[int] = []
    """Envs in which the last occurrence has ended, although it is active in others."""

    @property
    def envs(self) -> list[int]:
        """Envs of the last occurrence, in the order in which it reached them; empty if it concerns no env."""
        return [*dict.fromkeys([self.found.env, *self.joined])] if self.found.env is not None else []

    @property
    def active_envs(self) -> list[int]:
        """Envs in which the anomaly is active."""
        return [env for env in self.envs if env not in self.left] if self.ended is None else []

    def in_env(self, env: int) -> AnomalyFound | AnomalyJoined | None:
        """Return the start of the last occurrence in an env; None if it did not concern the env."""
        return self.joined.get(env) or (self.found if self.found.env == env else None)


def anomaly_key(anomaly: AnomalyFound | AnomalyJoined | AnomalyLeft | AnomalyEnded) -> str:
    """Return the key of an anomaly: its rule and subject."""
    return f"{anomaly.rule} {anomaly.where}"
