"""Habits of a policy: counts of its decisions by round, and sentences about them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from esper.common.domain import Op
from esper.common.formatting import pluralise, strip_control
from esper.recordings import events as ev

WINDOW_ROUNDS = 5
"""Maximum number of first rounds, and of last ones, that the sentences are about."""
MAX_HABITS = 3
"""Maximum number of plantings that a sentence names."""
_HABIT_FRACTION = 0.5
"""Minimum fraction of the episodes in which a habit occurs."""
_SPREAD_STEPS = 2
"""Maximum difference between the quartiles of the steps for which their median is named."""
_MIN_PERCENT_TOTAL = 20
"""Minimum total for which a fraction is shown in percent."""
_IN = " in "
"""Stands between blueprint and slot in the name of a planting. A blueprint has no spaces in its name."""


class RoundDecisions(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Counts of the decisions in the episodes of a round."""

    round: int
    episodes: int = 0
    """Number of episodes that have ended."""
    decisions: int = 0
    waits: int = 0
    first_steps: dict[str, dict[int, int]] = {}
    """Number of episodes in which a decision was first made in a step, keyed by the decision and the step.

    A decision is an op other than wait, such as `cull`, and also a planting, such as `norm in early`.
    """

    def note(self, event: ev.EnvStepped, known: list[str]) -> None:
        """Count a decision.

        Args:
            event: Step of an env.
            known: Decisions of the env in its episode so far, which the new ones are added to.
        """
        self.decisions += 1
        if event.op == Op.WAIT.label:
            self.waits += 1
            return
        self._note_first(event.op, event.step, known)
        blueprint = event.decision.get("blueprint")
        if event.op == Op.GERMINATE.label and blueprint is not None:
            self._note_first(f"{blueprint.choice}{_IN}{event.target}", event.step, known)

    def _note_first(self, decision: str, step: int, known: list[str]) -> None:
        if decision not in known:
            known.append(decision)
            steps = self.first_steps.setdefault(decision, {})
            steps[step] = steps.get(step, 0) + 1


def start_round(rounds: list[RoundDecisions], number: int) -> None:
    """Append the counts of a new round, and keep those of the first and last `WINDOW_ROUNDS` rounds besides it."""
    rounds.append(RoundDecisions(round=number))
    if len(rounds) > 2 * WINDOW_ROUNDS + 1:
        del rounds[WINDOW_ROUNDS]


def describe_habits(rounds: Sequence[RoundDecisions], rounds_ended: int, num_slots: int) -> list[str]:
    """Return sentences on what the policy does: one on the last rounds, and one on the first ones.

    They are about all episodes of up to `WINDOW_ROUNDS` last rounds that have ended, and of as many first ones, without
    an overlap: of five rounds, two and two. If both are alike, they are one sentence. Percentages are fractions of the
    episodes; that of waits is one of the decisions, and that of a mere blueprint or slot one of the plantings. With
    fewer than `_MIN_PERCENT_TOTAL` of them, counts stand in place of a percentage.

    - A planting (blueprint and slot) is a habit if it occurs in at least half of the episodes. Its step is the first
      one in each episode: "at step 2" if it is always the same; "near step 2", the median, if the middle half of the
      episodes lies within `_SPREAD_STEPS` steps; else the range of the middle half. At most `MAX_HABITS` are named,
      the most frequent ones.
    - If no planting is a habit, "anything" stands for the blueprint and "anywhere" for the slot. A blueprint or a slot
      is named if its fraction of the plantings is at least (1 + 1 / n) / 2, where n is the number of choices: halfway
      between an equal choice and always the same one. A planting counts once per episode.
    - Fossilizing and culling are named like plantings, if they occur in at least half of the episodes.
    - A policy that only waits "never acts".

    Args:
        rounds: Counts of the rounds, as `start_round` keeps them.
        rounds_ended: Number of rounds in which all episodes have ended.
        num_slots: Number of slots of a host.

    Returns:
        Sentences without a full stop; none before the end of the first round.
    """
    span = min(WINDOW_ROUNDS, max(rounds_ended // 2, 1))
    played = [counts for counts in rounds if counts.episodes]
    last = [counts for counts in played if rounds_ended - span < counts.round <= rounds_ended]
    first = [counts for counts in played if counts.round <= span < rounds_ended]
    plantings = (decision for counts in rounds for decision in counts.first_steps if _IN in decision)
    num_blueprints = len({planting.partition(_IN)[0] for planting in plantings})
    length = pluralise(span, "round") if span > 1 else "round"
    windows = {
        f"{which} {length}": _Window(found, num_blueprints, num_slots).describe()
        for which, found in (("last", last), ("first", first))
        if found
    }
    if len(windows) > 1 and len(set(windows.values())) == 1:
        return [f"{' and '.join(reversed(windows))}: {next(iter(windows.values()))}"]
    return [f"{name}: {text}" for name, text in windows.items()]


class _Window:
    """The decisions of some rounds together."""

    def __init__(self, rounds: Sequence[RoundDecisions], num_blueprints: int, num_slots: int) -> None:
        self._num_blueprints, self._num_slots = num_blueprints, num_slots
        self._episodes = sum(counts.episodes for counts in rounds)
        self._decisions = sum(counts.decisions for counts in rounds)
        self._waits = sum(counts.waits for counts in rounds)
        self._steps: dict[str, dict[int, int]] = {}
        """Number of episodes by decision and step, as in `RoundDecisions.first_steps`."""
        for counts in rounds:
            for decision, episodes in counts.first_steps.items():
                total = self._steps.setdefault(decision, {})
                for step, count in episodes.items():
                    total[step] = total.get(step, 0) + count

    def describe(self) -> str:
        """Return what the policy does in these rounds."""
        episodes = pluralise(self._episodes, "episode")
        if not self._steps:
            return f"never acts ({episodes})"
        waits = f"waits {_fraction(self._waits, self._decisions)}"
        return f"{', '.join([*self._plantings(), *self._other_ops(), waits])} ({episodes})"

    def _count(self, decision: str) -> int:
        return sum(self._steps.get(decision, {}).values())

    def _is_habit(self, decision: str) -> bool:
        return self._count(decision) >= _HABIT_FRACTION * self._episodes

    def _plantings(self) -> Iterator[str]:
        """Yield the plantings in words."""
        plantings = [name for name in self._steps if _IN in name]
        habits = sorted(filter(self._is_habit, plantings), key=lambda name: (-self._count(name), name))
        if habits:
            named = sorted(habits[:MAX_HABITS], key=lambda name: (_quantile(self._steps[name], 0.5), name))
            yield f"plants {', '.join(map(self._habit, named))}"
            if len(habits) > MAX_HABITS:
                yield f"{len(habits) - MAX_HABITS} more"
        elif not plantings:
            yield "plants nothing"
        else:
            yield f"plants {self._tendency(plantings)}"

    def _tendency(self, plantings: Sequence[str]) -> str:
        """Return blueprint and slot in words if no planting is a habit."""
        blueprints, slots = dict[str, int](), dict[str, int]()
        for name in plantings:
            blueprint, _, slot = name.partition(_IN)
            blueprints[blueprint] = blueprints.get(blueprint, 0) + self._count(name)
            slots[slot] = slots.get(slot, 0) + self._count(name)
        total = sum(slots.values())
        for counts, choices, text in (
            (blueprints, self._num_blueprints, "{}, anywhere"),
            (slots, self._num_slots, "anything in {}"),
        ):
            name = max(counts, key=lambda name: (counts[name], name))
            if choices > 1 and counts[name] / total >= (1 + 1 / choices) / 2:
                return f"{text.format(strip_control(name))} ({_fraction(counts[name], total, 'plantings')})"
        return f"anything, anywhere ({_fraction(self._count(Op.GERMINATE.label), self._episodes)})"

    def _other_ops(self) -> Iterator[str]:
        for op, verb in ((Op.FOSSILIZE, "fossilizes"), (Op.CULL, "culls")):
            if self._is_habit(op.label):
                yield self._habit(op.label).replace(op.label, verb, 1)

    def _habit(self, decision: str) -> str:
        """Return a decision with its steps and the fraction of the episodes that have it."""
        steps = self._steps[decision]
        low, middle, high = (_quantile(steps, fraction) for fraction in (0.25, 0.5, 0.75))
        if len(steps) == 1:
            when = f"at step {middle}"
        elif high - low <= _SPREAD_STEPS:
            when = f"near step {middle}"
        else:
            when = f"in steps {low} to {high}"
        return f"{strip_control(decision)} {when} ({_fraction(self._count(decision), self._episodes)})"


def _quantile(counts: dict[int, int], fraction: float) -> int:
    """Return a quantile of steps with counts, one of the steps: the lower one of two in the middle."""
    rest = fraction * sum(counts.values())
    for step in sorted(counts):
        rest -= counts[step]
        if rest <= 0:
            return step
    raise ValueError("no steps")


def _fraction(count: int, total: int, things: str = "") -> str:
    """Return a fraction in whole percent, 0 and 100 only if it is exact; of a small number, as a count."""
    if total < _MIN_PERCENT_TOTAL:
        return f"{count} of {total} {things}".rstrip()
    percent = 100 * count / total
    return f"{percent if count in {0, total} else min(max(percent, 1), 99):.0f} %" + f" of {things}" * bool(things)
