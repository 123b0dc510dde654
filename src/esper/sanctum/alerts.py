"""Calls people to the run while they look elsewhere: what is worth it, and how the terminal is asked to notify them."""

from __future__ import annotations

import math
from itertools import takewhile

from esper.sanctum.source import ENDED, Source
from esper.sanctum.symbols import plain, shorten
from esper.telemetry import events as ev
from esper.telemetry.state import LogLine

SEQUENCES = ("osc9", "osc777")
"""Terminals agree on none: iTerm2 began with the first, rxvt with the second."""
PERIOD = 10.0
"""Seconds between two notifications; what comes meanwhile is told together."""
LENGTH = 200
"""Characters of a notification at most."""


class Alerts:
    """Told at every look at a source that has begun.

    Args:
        source: of the run. A past that is looked at is no news.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._state = source.present
        self._heard = self._state.seq
        """The last event that was looked at."""
        self._silent = False
        """Whether the engine was found to be gone without a word."""
        self._waiting: list[str] = []
        self._sent = -math.inf

    def look(self, stale: ev.AnomalyFound | None) -> bool:
        """Look for what has happened since the last look; whether an anomaly has begun.

        Args:
            stale: the anomaly that no event tells of, where it has just begun.
        """
        source, state = self._source, self._source.present
        if state is not self._state:  # what a keyframe brings, or a jump in a recording, is no news
            self._state, self._heard = state, state.seq
        lines = list(takewhile(lambda line: line.seq > self._heard, reversed(state.log)))
        self._heard = state.seq
        gone = source.live and not source.alive and state.status not in ENDED
        texts = ["the engine ended without a word"] if gone and not self._silent else []
        self._silent = gone
        texts += [stale.text] if stale is not None else []
        self._waiting[:0] = texts + [line.text for line in lines if _calls(line)]
        return stale is not None or any(line.kind == ev.AnomalyFound.__name__ for line in lines)

    def due(self, now: float) -> str | None:
        """What to notify people of now, the newest first; None if there is nothing, or something was told just now.

        Args:
            now: a clock that does not jump, seconds.
        """
        if not self._waiting or now - self._sent < PERIOD:
            return None
        text, self._waiting, self._sent = " · ".join(self._waiting), [], now
        return text


def _calls(line: LogLine) -> bool:
    """Whether it is worth a notification: an anomaly, a run that is held, its end; not a pause that was asked for."""
    held = line.kind == ev.Paused.__name__ and line.severity == "error"
    return held or line.kind in {ev.AnomalyFound.__name__, ev.RunEnded.__name__}


def notification(sequence: str, title: str, text: str, *, tmux: bool) -> str:
    """What makes a terminal show a notification of the desktop.

    Args:
        sequence: one of `SEQUENCES`.
        title: of the notification, or where there is none before its text.
        text: of the notification.
        tmux: wrap it for the terminal around tmux, which passes it on where `allow-passthrough` is on.
    """
    title, text = (shorten(plain(part).replace(";", ","), LENGTH) for part in (title, text))  # ; ends a field
    body = f"9;{title}: {text}" if sequence == "osc9" else f"777;notify;{title};{text}"
    escaped = f"\x1b]{body}\x07"
    return f"\x1bPtmux;{escaped.replace(chr(27), 2 * chr(27))}\x1b\\" if tmux else escaped
