"""Decisions of an episode: their value, their text in plans and changes, and their description in words.

    1:conv_light@early 3:depthwise@mid,tempo=5,alpha=0.7,style=linear_gate 20:set_alpha@mid,alpha=0.5 25:cull@early

Each word is one decision: its step, from 1; the blueprint of a new seed, or another op; its slot; and its options.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from esper.common.configuration.config import ConfigError
from esper.common.domain import HEADS, HEADS_BY_OP, Op
from esper.common.formatting import suggest

WAIT, GERMINATE, ADVANCE, SET_ALPHA, CULL, FOSSILIZE = (op.label for op in Op)
_OPTIONS = {"tempo": "tempo", "alpha": "alpha_target", "style": "style", "speed": "alpha_speed", "curve": "alpha_curve"}
"""Head of each option, keyed by its name in the text, in the order in which options are written."""
_DEFAULTS: Mapping[str, Mapping[str, str]] = {
    GERMINATE: {"style": "linear_add", "tempo": "3", "alpha_target": "1.0"},
    SET_ALPHA: {"style": "linear_add", "alpha_speed": "0", "alpha_curve": "linear"},
    CULL: {"alpha_speed": "0", "alpha_curve": "linear"},
}
"""Choices of the options that are not given, keyed by op and head. An alpha to set has no default."""
_HEADS = {op.label: heads for op, heads in HEADS_BY_OP.items()}
"""Heads that each op uses, keyed by its name."""
_WORD = re.compile(
    r"(?P<step>\d{1,9}):(?P<name>[^@:,=\s]+)(?:@(?P<slot>[^@:,\s]+))?(?P<options>(?:,[^=,\s]+=[^=,\s]+)*)"
)
_EXPECTED = "expected STEP:BLUEPRINT@SLOT, such as 3:depthwise@mid, or STEP:OP@SLOT, such as 12:cull@mid"


class Decision(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """An op of an env in one step, and its choices as text.

    A choice is None if the op does not use it, or if it is left to the default.
    """

    op: str
    """wait, germinate, advance, set_alpha, cull, or fossilize."""
    slot: str | None = None
    blueprint: str | None = None
    style: str | None = None
    tempo: str | None = None
    alpha_target: str | None = None
    alpha_speed: str | None = None
    alpha_curve: str | None = None

    @property
    def choices(self) -> dict[str, str]:
        """The choices that are given, keyed by head, in the order of `HEADS`."""
        found = {head: getattr(self, head) for head in HEADS}
        return {head: choice for head, choice in found.items() if choice is not None}

    @property
    def options(self) -> dict[str, str]:
        """The options that differ from the default, keyed by their name in the text."""
        defaults, choices = _DEFAULTS.get(self.op, {}), self.choices
        return {
            name: choices[head]
            for name, head in _OPTIONS.items()
            if head in choices and choices[head] != defaults.get(head)
        }

    def with_defaults(self) -> Decision:
        """Return the decision with the default for each choice that is not given."""
        return Decision(**{**_DEFAULTS.get(self.op, {}), **self.choices})


class PlannedDecision(NamedTuple):
    """A decision, and its step. Its text is a word of a plan or of a change."""

    step: int
    """Step of the episode, from 1."""
    decision: Decision

    def __str__(self) -> str:
        decision = self.decision
        name = decision.blueprint if decision.op == GERMINATE else decision.op
        slot = f"@{decision.slot}" if decision.slot else ""
        options = "".join(f",{option}={choice}" for option, choice in decision.options.items())
        return f"{self.step}:{name}{slot}{options}"

    @classmethod
    def planting(cls, step: int, slot: str, blueprint: str) -> PlannedDecision:
        """Return the planting of a seed."""
        return cls(step, Decision(GERMINATE, slot, blueprint))


def parse_decision(text: str) -> PlannedDecision:
    """Return the decision of one word. Slot, blueprint and choices need not exist.

    Raises:
        ConfigError: The text is not a decision.
    """
    found = _WORD.fullmatch(text)
    if found is None and re.fullmatch(r"\d+:", text):
        raise ConfigError(f"{text!r}: no space may follow the colon; {_EXPECTED}")
    if found is None:
        raise ConfigError(f"{text!r} is not a decision; {_EXPECTED}; steps count from 1")
    if int(found["step"]) < 1:
        raise ConfigError(f"{text!r}: steps count from 1")
    name, slot = found["name"], found["slot"]
    op = name if name in _HEADS else GERMINATE
    if name == GERMINATE:
        raise ConfigError(f"{text!r}: name the blueprint in place of {GERMINATE}, such as 3:depthwise@mid")
    if slot is None and op != WAIT:
        raise ConfigError(f"{text!r}: {_EXPECTED}")
    if slot is not None and op == WAIT:
        raise ConfigError(f"{text!r}: wait has no slot")
    choices = {"op": op}
    if slot is not None:
        choices["slot"] = slot
    if op == GERMINATE:
        choices["blueprint"] = name
    allowed = [option for option, head in _OPTIONS.items() if head in _HEADS[op]]
    for pair in found["options"].split(",")[1:]:
        option, _, choice = pair.partition("=")
        if option not in allowed:
            known = suggest(option, allowed) if allowed else "it has none"
            raise ConfigError(f"{text!r}: {option!r} is not an option of {op}; {known}")
        if _OPTIONS[option] in choices:
            raise ConfigError(f"{text!r}: {option!r} is given twice")
        choices[_OPTIONS[option]] = choice
    return PlannedDecision(int(found["step"]), Decision(**choices))


def is_blueprint_name(name: str) -> bool:
    """Return True if the text of a decision can name a blueprint in this way."""
    return re.fullmatch(r"[^@:,=\s]+", name) is not None and name not in _HEADS


def write_plan(planned: Iterable[PlannedDecision]) -> str:
    """Return the text of a plan."""
    return " ".join(map(str, planned))


def describe_decision(decision: Decision) -> str:
    """Return a decision in words, such as `germinate depthwise in early` or `set alpha in early to 0.7`."""
    words = [decision.op.replace("_", " "), decision.blueprint, f"in {decision.slot}" if decision.slot else None]
    if decision.op == SET_ALPHA and decision.alpha_target:
        words.append(f"to {decision.alpha_target}")
    return " ".join(filter(None, words))


def label_decision(decision: Decision) -> str:
    """Return a short form of `describe_decision`, in which a seed stands for its planting: `depthwise in early`."""
    return describe_decision(decision).removeprefix(f"{GERMINATE} ")


def describe_options(decision: Decision) -> str:
    """Return the options that `describe_decision` leaves out, such as ` (tempo=5)`; empty without any."""
    named = {"alpha"} if decision.op == SET_ALPHA else set[str]()
    chosen = ", ".join(f"{option}={choice}" for option, choice in decision.options.items() if option not in named)
    return f" ({chosen})" if chosen else ""


def describe_planned(planned: PlannedDecision) -> str:
    """Return a planned decision in words, such as `depthwise in early at step 3 (tempo=5)`."""
    return f"{label_decision(planned.decision)} at step {planned.step}{describe_options(planned.decision)}"


def option_name(head: str) -> str:
    """Return the name of a head in the text of a decision: `alpha` for `alpha_target`."""
    return next((option for option, of_head in _OPTIONS.items() if of_head == head), head)
