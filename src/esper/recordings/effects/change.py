"""Changes of a recorded episode: a decision left out or replaced, or another plan, and what follows.

Users name recorded decisions by their step, from 1: `step:17`, `seed:early:17`. They write new ones as in a plan:
`12:depthwise@early`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

import msgspec

from esper.common.configuration.config import ConfigError
from esper.common.decisions import SET_ALPHA, WAIT, Decision, describe_decision, describe_options, parse_decision
from esper.recordings.effects.episode import RecordedEpisode, RecordedSeed
from esper.recordings.state.series import decision_of

RECORDED = "recorded"
"""Value of `Change.then`: the recorded decisions; the env waits where one has become illegal."""
NOTHING = "wait"
"""Value of `Change.then`: no further decision."""
_WITHOUT = re.compile(r"step:(?P<step>\d{1,9})|seed:(?P<slot>[^:\s]+):(?P<planted>\d{1,9})")


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change of the decisions of an episode. Without any field, the episode as it was recorded."""

    decisions: dict[int, Decision] = {}
    """New decisions, keyed by step, from 1."""
    then: str = RECORDED
    """Decisions after the last changed step, or all without one: `recorded`, `wait`, or the reference of a policy,
    such as `plan:1:depthwise@early`."""

    @property
    def key(self) -> str:
        """Text that is the same for equal changes only."""
        return msgspec.json.encode((sorted(self.decisions.items()), self.then)).decode()

    @property
    def first_step(self) -> int:
        """First step, from 1, whose decision can differ."""
        return min(self.decisions, default=1)


UNCHANGED = Change()
"""The episode as it was recorded."""
WITHOUT_GROWTH = Change(then=NOTHING)
"""The reference of an episode: the env waits in every step, so that its host trains alone."""


def without_steps(steps: Sequence[int], then: str = RECORDED) -> Change:
    """Return the change that leaves out the decisions of some steps."""
    return Change(decisions=dict.fromkeys(steps, Decision(WAIT)), then=then)


def without_decision(episode: RecordedEpisode, step: int, then: str = RECORDED) -> Change:
    """Return the change that leaves out one decision.

    Without the planting of a seed, no later decision about this seed is legal: leaving out the seed is the same change.
    """
    seed = next((seed for seed in episode.seeds if seed.step == step), None)
    return without_seed(seed, then) if seed else without_steps([step], then)


def changes_of(episode: RecordedEpisode) -> dict[int, Change]:
    """Return the change that leaves out each decision of an episode, except to wait, keyed by step, from 1."""
    seeds = {seed.step: without_seed(seed) for seed in episode.seeds}
    return {step.step: seeds.get(step.step) or without_steps([step.step]) for step in episode.steps if step.op != WAIT}


def without_seed(seed: RecordedSeed, then: str = RECORDED) -> Change:
    """Return the change that leaves out a seed: all recorded decisions about it, or its planting if others follow."""
    return without_steps(seed.decisions if then == RECORDED else [seed.step], then)


def parse_without(text: str, episode: RecordedEpisode, then: str = RECORDED) -> Change:
    """Return the change that leaves out a decision, `step:17`, or all that concern a seed, `seed:early:17`.

    Raises:
        ConfigError: The text is invalid, or the episode has no such decision or seed.
    """
    found = _WITHOUT.fullmatch(text.strip())
    if found is None:
        raise ConfigError(f"{text!r} is not a decision; expected step:17 or seed:early:17")
    step = int(found["step"] or found["planted"])
    _check_step(text, step, episode)
    if found["step"]:
        if episode.steps[step - 1].op == WAIT:
            raise ConfigError(f"{text!r}: the env waited in step {step}, so there is nothing to leave out")
        return without_decision(episode, step, then)
    for seed in episode.seeds:
        if (seed.slot, seed.step) == (found["slot"], step):
            return without_seed(seed, then)
    known = ", ".join(f"seed:{seed.slot}:{seed.step}" for seed in episode.seeds) or "none"
    raise ConfigError(f"{text!r} is not a seed of this episode; its seeds: {known}")


def parse_do(texts: Sequence[str], episode: RecordedEpisode) -> Change:
    """Return the change that replaces decisions, written as `12:depthwise@early,tempo=5`, one or more in each text.

    An option that is not given is that of the recorded decision if it has the same op, else the default.

    Raises:
        ConfigError: A text is invalid, two decisions have the same step, or the episode has no such step.
    """
    decisions: dict[int, Decision] = {}
    for word in itertools.chain.from_iterable(text.split() or [text] for text in texts):
        step, decision = parse_decision(word)
        _check_step(word, step, episode)
        if step in decisions:
            raise ConfigError(f"{word!r}: step {step} has another decision already; an env takes one per step")
        recorded = decision_of(episode.steps[step - 1])
        if recorded.op == decision.op:
            decision = Decision(**(recorded.choices | decision.choices))
        if decision.op == SET_ALPHA and decision.alpha_target is None:
            raise ConfigError(f"{word!r}: set_alpha needs alpha=0.5, 0.7 or 1.0")
        decisions[step] = decision.with_defaults()
    return Change(decisions=decisions)


def _check_step(text: str, step: int, episode: RecordedEpisode) -> None:
    if step < 1:
        raise ConfigError(f"{text!r}: steps count from 1")
    if step > len(episode.steps):
        raise ConfigError(f"{text!r}: the episode has steps 1 to {len(episode.steps)}")


def describe_change(change: Change, episode: RecordedEpisode) -> str:
    """Return a change in words, such as `without germinate depthwise in early, step 17`.

    The decisions that are left out with the planting of their seed are not named.
    """
    if not change.decisions:
        names = {UNCHANGED.then: "as recorded", WITHOUT_GROWTH.then: "without growth"}
        return names.get(change.then, f"all decisions by {change.then}")
    recorded = {step: decision_of(episode.steps[step - 1]) for step in change.decisions}
    left_out = {step for step, decision in change.decisions.items() if decision.op == WAIT != recorded[step].op}
    with_a_seed = {step for seed in episode.seeds if seed.step in left_out for step in seed.decisions[1:]}
    parts = [
        f"without {describe_decision(recorded[step])}, step {step}"
        if step in left_out
        else f"step {step}: {describe_decision(decision)}{describe_options(decision)}"
        for step, decision in sorted(change.decisions.items())
        if step not in left_out & with_a_seed
    ]
    follows = "" if change.then == RECORDED else f", then {change.then}"
    return "; ".join(parts) + follows
