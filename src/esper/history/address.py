"""Moments and views as people type them: `round:14`, `1h20m`, `RUN#step=812&env=17`."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple
from urllib.parse import quote, unquote

from esper.formatting import suggest
from esper.history.history import History

MOMENT_KEYS = ("round", "step", "event", "anomaly")
"""What may say when; each counts as `find_moment` does."""
ADDRESS_KEYS = (*MOMENT_KEYS, "env", "view")
"""What may stand after the `#`."""
_EXAMPLE = "RUN#step=812&env=17&view=overview"
_PART = re.compile(r"([^&=#]+)=([^&=#]+)")


class AddressError(ValueError):
    """No address; the text is one sentence for whoever wrote it."""


class ViewAddress(NamedTuple):
    """Which run, and what of it; what is not said is None."""

    run: str
    """As `resolve_run` takes it."""
    moment: str | None = None
    """As `find_moment` takes it: `step:812`."""
    env: int | None = None
    """The env under the cursor."""
    view: str | None = None
    """Name of a screen."""

    def __str__(self) -> str:
        parts = [
            self.moment.replace(":", "=") if self.moment is not None else "",
            f"env={self.env}" if self.env is not None else "",
            f"view={self.view}" if self.view is not None else "",
        ]
        return f"{quote(self.run, safe='/')}#{'&'.join(filter(None, parts))}"


def parse_address(text: str) -> ViewAddress:
    """Read what a person typed or pasted: a run, URL-quoted, and what of it; a name without `#` is taken as it is.

    Raises:
        AddressError: what follows the `#` is none of `round=`, `step=`, `event=`, `anomaly=`, `env=` and `view=`, or
            says something twice.
    """
    run, mark, rest = text.rpartition("#")
    if not mark:
        return ViewAddress(text)
    found: dict[str, str] = {}
    for part in rest.split("&"):
        match = _PART.fullmatch(part)
        if match is None:
            raise AddressError(f"{part!r} in {text!r} says nothing: write {_EXAMPLE}")
        name, value = match.groups()
        if name not in ADDRESS_KEYS:
            raise AddressError(f"{part!r} in {text!r} says nothing: {suggest(name, ADDRESS_KEYS)}")
        if name != "view" and not (value.isascii() and value.isdecimal()):
            raise AddressError(f"{part!r} in {text!r} is not valid: {name} takes a whole number")
        if name in found:
            raise AddressError(f"{text!r} gives {name} twice: write one")
        found[name] = value
    moments = [name for name in MOMENT_KEYS if name in found]
    if len(moments) > 1:
        raise AddressError(f"{text!r} names two moments, {moments[0]} and {moments[1]}: write one")
    moment = f"{moments[0]}:{found[moments[0]]}" if moments else None
    return ViewAddress(unquote(run), moment, int(found["env"]) if "env" in found else None, found.get("view"))


MOMENT_FORMATS = "round:14, step:812, event:1234, anomaly:1, 1h20m, 12:30 or 40%"
"""What can be written, for messages."""

_COUNTED = re.compile(r"(round|step|event|anomaly):(\d+)")
_DURATION = re.compile(r"(?=\d)(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?")
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")
_SHARE = re.compile(r"(\d+(?:\.\d+)?)%")


class MomentError(ValueError):
    """No moment of this recording; the text is one sentence for whoever wrote it."""


def parse_moment(text: str, history: History) -> int:
    """The position that is meant.

    Args:
        text: `round:N`, the end of its first step; `step:N`, the end of the N-th step since the run began;
            `event:N`, all three counted from the start of the run also where the recording begins later; `anomaly:N`,
            the N-th of the recording; a time since the beginning such as `1h20m` or `90s`; a local time of day such as
            `12:30` or `12:30:15`, the first that the recording reached; or a share such as `40%` of its length.
        history: the recording.

    Raises:
        MomentError: it cannot be read, or the recording has no such moment.
    """
    text = text.strip()
    if match := _COUNTED.fullmatch(text):
        return _counted(match[1], int(match[2]), history)
    if match := _DURATION.fullmatch(text):
        hours, minutes, seconds = (float(part or 0) for part in match.groups())
        return _elapsed(text, 3600 * hours + 60 * minutes + seconds, history)
    if match := _CLOCK.fullmatch(text):
        return _time_of_day(text, [int(part or 0) for part in match.groups()], history)
    if (match := _SHARE.fullmatch(text)) and float(match[1]) <= 100:
        return history.position_at(float(match[1]) / 100 * history.duration)
    raise MomentError(f"{text!r} is no moment: write {MOMENT_FORMATS}")


def _counted(what: str, number: int, history: History) -> int:
    if what == "anomaly":
        if mark := history.marks.nth_anomaly(number):
            return mark.position
        count = history.marks.num_anomalies
        known = f"anomaly:1 to anomaly:{count}" if count else "none"
        raise MomentError(f"there is no anomaly:{number} in this recording: it has {known}")
    known, number_at = _NUMBERED[what]
    places = known(history)
    if not places:
        raise MomentError(f"there is no {what}:{number} in this recording: it has no {what} yet")
    first = number_at(history, places[0])  # not 1 where the recording was cut out of a run
    # Where a line was damaged a number is missing, and those after it come the sooner.
    latest = min(max(number - first, 0), len(places) - 1)
    sound = number_at(history, places[latest]) == number
    index = latest if sound else bisect_left(places, number, hi=latest, key=partial(number_at, history))
    if sound or number_at(history, places[index]) == number:
        return _first_step(history, places[index]) if what == "round" else places[index]
    last = number_at(history, places[-1])
    if first < number < last:
        raise MomentError(f"there is no {what}:{number} in this recording: its line is damaged or missing")
    raise MomentError(f"there is no {what}:{number} in this recording: it has {what}:{first} to {what}:{last}")


def _first_step(history: History, start: int) -> int:
    """The end of the first step after the start of a round; before that, nothing of it is to be seen but its number."""
    steps, rounds = history.steps, history.rounds
    step, after = bisect_right(steps, start), bisect_right(rounds, start)
    end = rounds[after] if after < len(rounds) else history.length
    return steps[step] if step < len(steps) and steps[step] <= end else start + 1


def _round_after(history: History, position: int) -> int:
    return history.state_at(position + 1).round


def _step_before(history: History, position: int) -> int:
    return history.state_at(position).steps_done


def _event_before(history: History, position: int) -> int:
    return history.state_at(position).seq


_NUMBERED: dict[str, tuple[Callable[[History], Sequence[int]], Callable[[History, int], int]]] = {
    "round": (lambda history: history.rounds, _round_after),
    "step": (lambda history: history.steps, _step_before),
    "event": (lambda history: range(1, history.length + 1), _event_before),
}
"""For each thing that has numbers, the positions of all, in order, and what number the one at a position has."""


def _elapsed(text: str, seconds: float, history: History) -> int:
    if seconds > history.duration:
        length = timedelta(seconds=int(history.duration))
        raise MomentError(f"{text} is beyond the end of this recording, which lasts {length}")
    return history.position_at(seconds)


def _time_of_day(text: str, parts: list[int], history: History) -> int:
    hour, minute, second = parts
    if hour > 23 or minute > 59 or second > 59:
        raise MomentError(f"{text} is no time of day")
    start, end = history.start_time, history.end_time
    if start is None or end is None:
        raise MomentError("this recording is empty")
    wanted = datetime.fromtimestamp(start).replace(hour=hour, minute=minute, second=second, microsecond=0)
    if wanted.timestamp() + 60 <= start:  # the minute in which it began counts as its beginning
        wanted += timedelta(days=1)
    if wanted.timestamp() > end:
        first, last = (f"{datetime.fromtimestamp(when):%H:%M:%S}" for when in (start, end))
        raise MomentError(f"this recording was not running at {text}: it goes from {first} to {last}")
    return history.position_at_time(wanted.timestamp())
