"""When something was, as people count: it stands in events, and in the names of checkpoints."""

from __future__ import annotations

from typing import NamedTuple


class Moment(NamedTuple):
    """The end of a step, which is counted from 1, of a round, which is too. The start of a run is 0, 0."""

    round: int
    step: int

    @classmethod
    def after(cls, rounds: int, steps: int, length: int) -> Moment:
        """After so many rounds of that many steps, and so many steps of the next."""
        if steps == 0:
            return cls(rounds, length if rounds else 0)
        return cls(rounds + 1, steps)
