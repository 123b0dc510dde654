"""Moments and views as texts: `14`, `8:12`, `1h20m`, `RUN#step=812&env=17`."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple
from urllib.parse import quote, unquote

from esper.common.configuration.config import ConfigError
from esper.common.domain import StepNumber
from esper.common.formatting import suggest
from esper.recordings.history.history import History

MOMENT_KEYS = ("round", "step", "event", "anomaly")
"""Keys that name a moment, each counted as in `parse_moment`."""
ADDRESS_KEYS = (*MOMENT_KEYS, "env", "view")
"""Keys that may follow the `#`."""
_EXAMPLE = "RUN#step=812&env=17&view=overview"
_PART = re.compile(r"([^&=#]+)=([^&=#]+)")


class ViewAddress(NamedTuple):
    """Address of a view: a run, and optionally a moment, an env and a screen."""

    run: str
    """Run name, path, or `last`, as `resolve_run` accepts it."""
    moment: str | None = None
    """Moment as `parse_moment` accepts it, such as `step:812`."""
    env: int | None = None
    """Index of the selected env."""
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
    """Parse an address.

    Args:
        text: URL-quoted run name or path, `#`, and parts such as `step=812` joined by `&`; or an unquoted run without
            a `#`.

    Raises:
        ConfigError: A part is not one of `round=`, `step=`, `event=`, `anomaly=`, `env=` and `view=`, its value is
            invalid, or a key or a second moment is repeated.
    """
    run, mark, rest = text.rpartition("#")
    if not mark:
        return ViewAddress(text)
    found: dict[str, str] = {}
    for part in rest.split("&"):
        match = _PART.fullmatch(part)
        if match is None:
            raise ConfigError(f"invalid part {part!r} in {text!r}; expected an address such as {_EXAMPLE}")
        name, value = match.groups()
        if name not in ADDRESS_KEYS:
            raise ConfigError(f"unknown key in {part!r} of {text!r}; {suggest(name, ADDRESS_KEYS)}")
        if name != "view" and not re.fullmatch(r"[0-9]{1,15}", value):
            raise ConfigError(f"invalid value in {part!r} of {text!r}; {name} must be a whole number")
        if name in found:
            raise ConfigError(f"{text!r} contains {name} twice; remove one")
        found[name] = value
    moments = [name for name in MOMENT_KEYS if name in found]
    if len(moments) > 1:
        raise ConfigError(f"{text!r} contains two moments, {moments[0]} and {moments[1]}; remove one")
    moment = f"{moments[0]}:{found[moments[0]]}" if moments else None
    return ViewAddress(unquote(run), moment, int(found["env"]) if "env" in found else None, found.get("view"))


MOMENT_FORMATS = "8 or round:8 (its end), 8:12 (its step 12), step:812, event:1234, anomaly:1, 1h20m, 12:30:00 or 40%"
"""Accepted forms of a moment, for messages."""

_COUNTED = re.compile(r"(round|step|event|anomaly)[: ]\s*(\d{1,15})|(?:r\s*)?(\d{1,15})", re.IGNORECASE)
_STEP_OF_ROUND = re.compile(r"(\d{1,15}):(\d{1,15})")
_DURATION = re.compile(r"(?=\d)(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9}(?:\.\d{1,9})?)s)?")
_CLOCK = re.compile(r"(\d{1,2}):(\d{2}):(\d{2})")
_PERCENTAGE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)%")


class MomentError(ValueError):
    """Invalid moment, or one that the recording does not contain. The text is one sentence for the user."""


class MissingMomentError(MomentError):
    """Moment that the recording does not contain."""


class Moment(NamedTuple):
    """A moment of a history."""

    position: int
    env: int | None = None
    """Env that the moment is about; None if it is about none."""


def parse_moment(text: str, history: History) -> int:
    """Return the position of a moment in a history.

    Args:
        text: `round:N`, `round N` or `N`, the end of the last step of that round; `N:M`, the end of its step M;
            `step:N`, the end of the N-th step of the run; `event:N`, the N-th event of the run, which may stand within
            a step; `anomaly:N`, the end of the step of the N-th anomaly of the recording; a recorded time since the
            start, such as `1h20m` or `90s`; a local time of day, such as `12:30:15`, where the first one in the
            recording counts; or a percentage of the recorded time, such as `40%`. Rounds, steps and events are numbered
            from the start of the run, even if the recording starts later.
        history: Recording.

    Raises:
        MomentError: The text is invalid, or the recording does not contain the moment.
    """
    text = text.strip()
    if counted := _parse_counted(text):
        key, number = counted
        return _end_of_round(number, history) if key == "round" else position_of_number(key, number, history)
    if match := _STEP_OF_ROUND.fullmatch(text):
        return _step_of_round(int(match[1]), int(match[2]), history)
    if match := _DURATION.fullmatch(text):
        hours, minutes, seconds = (float(part or 0) for part in match.groups())
        elapsed = 3600 * hours + 60 * minutes + seconds
        if elapsed > history.duration:
            length = timedelta(seconds=int(history.duration))
            raise MissingMomentError(f"{text} is after the end of this recording, which lasts {length}")
        return history.position_at(elapsed)
    if match := _CLOCK.fullmatch(text):
        return _time_of_day(text, [int(part or 0) for part in match.groups()], history)
    if (match := _PERCENTAGE.fullmatch(text)) and float(match[1]) <= 100:
        return history.position_at(float(match[1]) / 100 * history.duration)
    raise MomentError(f"{text!r} is not a moment; expected {MOMENT_FORMATS}")


def find_moment(text: str, history: History) -> Moment | None:
    """Return a moment of a history that may not be completely read; None if it must be read on.

    Args:
        text: Moment as `parse_moment` accepts it.
        history: Recording, as far as it was read.

    Raises:
        MomentError: The text is invalid, or the completely read recording does not contain the moment.
    """
    try:
        position = parse_moment(text, history)
    except MissingMomentError:
        if history.is_fully_read:
            raise
        return None
    if not history.is_fully_read:
        needs_end = _PERCENTAGE.fullmatch(text.strip()) is not None
        last_step = history.steps[-1] if history.steps else 0  # the step of a later position has not ended yet
        if needs_end or position > last_step or history.is_undone(position):
            return None
    key, number = _parse_counted(text.strip()) or ("", 0)
    mark = history.marks.nth_anomaly(number) if key == "anomaly" else None
    return Moment(position, mark.env if mark is not None else None)


def _parse_counted(text: str) -> tuple[str, int] | None:
    """Return key and number of a numbered moment; a number without a key is that of a round. None for other texts."""
    match = _COUNTED.fullmatch(text)
    return ((match[1] or "round").lower(), int(match[2] or match[3])) if match else None


def position_of_number(key: str, number: int, history: History) -> int:
    """Return the position of a numbered moment; of a round, before its first event.

    Args:
        key: `round`, `step`, `event` or `anomaly`, counted as in `parse_moment`.

    Raises:
        MissingMomentError: The recording does not contain it.
    """
    if key == "anomaly":
        if mark := history.marks.nth_anomaly(number):
            return history.step_end(mark.position)
        count = history.marks.num_anomalies
        known = f"anomaly:1 to anomaly:{count}" if count else "none"
        raise MissingMomentError(f"anomaly:{number} is not in this recording; it has {known}")
    positions_of, number_at = _NUMBERED[key]
    positions = positions_of(history)
    if not positions:
        raise MissingMomentError(f"{key}:{number} is not in this recording; it has no {key} yet")
    first = number_at(history, positions[0])  # above 1 in an excerpt
    # Every damaged line leaves out a number, so the wanted one is at this index or before it.
    latest = min(max(number - first, 0), len(positions) - 1)
    found = number_at(history, positions[latest])
    index = latest
    if found > number:
        index = bisect_left(positions, number, hi=latest, key=partial(number_at, history))
        found = number_at(history, positions[index])
    if found == number:
        return positions[index]
    last = number_at(history, positions[-1])
    if first < number < last:
        raise MissingMomentError(f"{key}:{number} is not in this recording; its line is damaged or missing")
    raise MissingMomentError(f"{key}:{number} is not in this recording; it has {key}:{first} to {key}:{last}")


def _end_of_round(number: int, history: History) -> int:
    """Return the end of the last step of a round, or of its last step so far; its start if no step has ended."""
    start = position_of_number("round", number, history)
    after = bisect_right(history.rounds, start)
    if after == len(history.rounds) and not history.is_fully_read:
        raise MissingMomentError(f"the end of round {number} was not read yet")
    stop = history.rounds[after] if after < len(history.rounds) else history.length
    last = bisect_right(history.steps, stop) - 1
    return history.steps[last] if last >= 0 and history.steps[last] > start else start + 1


def _step_of_round(round_: int, step: int, history: History) -> int:
    """Return the end of a step, counted from the start of its round."""
    started = history.state_at(min(history.length, 1)).started
    if started is not None and not 1 <= step <= started.steps:
        time = f"; a time of day has seconds: {round_}:{step:02d}:00"
        raise MomentError(f"round {round_} has no step {step}, only 1 to {started.steps}{time}")
    position_of_number("round", round_, history)  # raises an error about the round, if that is missing
    return position_of_number("step", StepNumber(round_, step).steps_done(started.steps if started else 0), history)


_NUMBERED: dict[str, tuple[Callable[[History], Sequence[int]], Callable[[History, int], int]]] = {
    "round": (lambda history: history.rounds, lambda history, position: history.state_at(position + 1).round),
    "step": (lambda history: history.steps, lambda history, position: history.state_at(position).steps_done),
    "event": (lambda history: range(1, history.length + 1), lambda history, position: history.state_at(position).seq),
}
"""Keyed by kind of moment: functions that return all positions in order, and the number at a position."""


def _time_of_day(text: str, parts: list[int], history: History) -> int:
    hour, minute, second = parts
    if hour > 23 or minute > 59 or second > 59:
        raise MomentError(f"{text} is not a time of day; expected 0:00:00 to 23:59:59")
    start, end = history.start_time, history.end_time
    if start is None or end is None:
        raise MissingMomentError("this recording is empty")
    moment = datetime.fromtimestamp(start).replace(hour=hour, minute=minute, second=second, microsecond=0)
    if moment.timestamp() + 60 <= start:  # the minute of the start counts as the start
        moment += timedelta(days=1)
    if moment.timestamp() > end:
        first, last = (f"{datetime.fromtimestamp(when):%H:%M:%S}" for when in (start, end))
        raise MissingMomentError(f"{text} is not in this recording, which lasts from {first} to {last}")
    return history.position_at_time(moment.timestamp())
