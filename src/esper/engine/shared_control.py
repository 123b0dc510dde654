"""Requests under several ranks: whoever was asked, all of them honour the same requests at the same step."""

from __future__ import annotations

from collections import deque

from esper.control import Control, Request
from esper.ranks import Ranks


class SharedControl(Control):
    """The inbox of all ranks: what any of them is asked reaches each, in one order.

    Args:
        own: this rank's inbox.
        ranks: all of them.
    """

    def __init__(self, own: Control, ranks: Ranks) -> None:
        super().__init__()
        self._own = own
        self._ranks = ranks
        self._agreed: deque[Request] = deque()

    def take(self, timeout: float = 0.0) -> Request | None:
        """Take the oldest request, as `Control` does; all ranks must call it together.

        Raises:
            RankLostError: another rank has ended, or does not answer.
        """
        if not self._agreed:
            asked = self._ranks.collect(self._own.take(timeout))
            self._agreed.extend(request for request in asked if request)
        return self._agreed.popleft() if self._agreed else None
