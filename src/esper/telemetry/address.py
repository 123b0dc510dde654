"""The address of a view of a recording: `RUN#step=812&env=17&view=overview`."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import quote, unquote

from esper.formatting import nearest

MOMENTS = ("round", "step", "event", "anomaly")
"""What may say when; each counts as `find_moment` does."""
PARTS = (*MOMENTS, "env", "view")
"""What may stand after the `#`."""
_EXAMPLE = "RUN#step=812&env=17&view=overview"
_PART = re.compile(r"([^&=#]+)=([^&=#]+)")


class AddressError(ValueError):
    """No address; the text is one sentence for whoever wrote it."""


class Address(NamedTuple):
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


def parse_address(text: str) -> Address:
    """Read what a person typed or pasted: a run, URL-quoted, and what of it; a name without `#` is taken as it is.

    Raises:
        AddressError: what follows the `#` is none of `round=`, `step=`, `event=`, `anomaly=`, `env=` and `view=`, or
            says something twice.
    """
    run, mark, rest = text.rpartition("#")
    if not mark:
        return Address(text)
    found: dict[str, str] = {}
    for part in rest.split("&"):
        match = _PART.fullmatch(part)
        if match is None:
            raise AddressError(f"{part!r} in {text!r} says nothing: write {_EXAMPLE}")
        name, value = match.groups()
        if name not in PARTS:
            raise AddressError(f"{part!r} in {text!r} says nothing: {nearest(name, PARTS)}")
        if name != "view" and not (value.isascii() and value.isdecimal()):
            raise AddressError(f"{part!r} in {text!r} is not valid: {name} takes a whole number")
        if name in found:
            raise AddressError(f"{text!r} gives {name} twice: write one")
        found[name] = value
    moments = [name for name in MOMENTS if name in found]
    if len(moments) > 1:
        raise AddressError(f"{text!r} names two moments, {moments[0]} and {moments[1]}: write one")
    moment = f"{moments[0]}:{found[moments[0]]}" if moments else None
    return Address(unquote(run), moment, int(found["env"]) if "env" in found else None, found.get("view"))
