"""The sentences about the habits of a policy: exact counts, and what they name."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.recordings import events as ev
from esper.recordings.state.habits import WINDOW_ROUNDS, RoundDecisions, describe_habits
from esper.recordings.state.state import Keyframe, RunState, fold
from tests.factory import env_stepped, growth_run, run_started, stamp

Planting = tuple[int, str, str]
"""Step, blueprint and slot."""
OPS = ("wait", "germinate", "fossilize", "cull")


def acted(round_: int, env: int, step: int, op: str, blueprint: str = "norm", slot: str = "mid") -> ev.EnvStepped:
    decision = {"blueprint": ev.HeadChoice(choice=blueprint)} if op == "germinate" else {}
    return env_stepped(env, round_, step, op=op, target=None if op == "wait" else slot, decision=decision)


def ended(round_: int, env: int) -> ev.EpisodeEnded:
    return ev.EpisodeEnded(
        round=round_,
        env=env,
        score=0.5,
        best_score=0.5,
        episode_return=0.1,
        parameter_ratio=1.0,
        fossilized=0,
        culled=0,
    )


def played(rounds: Sequence[Sequence[Sequence[Planting]]], *, steps: int = 20, after: str = "") -> RunState:
    """Return the state after rounds in which each env makes some plantings, and `after`, the op of its last step."""
    envs = max(map(len, rounds))
    events: list[ev.AnyEvent] = [run_started(envs, len(rounds), steps)]
    for round_, episodes in enumerate(rounds, 1):
        events.append(ev.RoundStarted(round=round_))
        for env, plantings in enumerate(episodes):
            at = {step: (blueprint, slot) for step, blueprint, slot in plantings}
            for step in range(1, steps + 1):
                op = after if after and step == steps else "germinate" if step in at else "wait"
                events.append(acted(round_, env, step, op, *at.get(step, ())))
        events += [ended(round_, env) for env in range(len(episodes))]
    return fold(RunState(), stamp(events))


PLAN = [[[(2, "norm", "mid"), (5, "attention", "late")]] * 4]
SPREAD = [[[(2 + 3 * env, "norm", "mid")] for env in range(4)]]
PAIRS = [("norm", "early"), ("attention", "mid"), ("depthwise", "late"), ("conv_small", "mid")]
ANYTHING = [[[(3, *pair)] for pair in PAIRS]]
MANY = [[[(2 * step, "norm", f"slot {step}") for step in range(1, 6)]]]
MID = [[[(3 + env, blueprint, "mid")] for env, (blueprint, _) in enumerate(PAIRS)]]
NORM = [[[(3, "norm", slot)] for slot in ("early", "mid", "late", "deep")]]
CHANGED = [*ANYTHING, *[[[(2 + env % 2, "norm", "mid")] for env in range(4)]] * 2]


@pytest.mark.parametrize(
    ("state", "sentences"),
    [
        (
            played(PLAN * 4, after="fossilize"),
            [
                "first 2 rounds and last 2 rounds: plants norm in mid at step 2 (8 of 8), attention in late at step 5 "
                "(8 of 8), fossilizes at step 20 (8 of 8), waits 85 % (8 episodes)"
            ],
        ),
        (played([[[]]]), ["last round: never acts (1 episode)"]),
        (
            played([[[]]], after="cull"),
            ["last round: plants nothing, culls at step 20 (1 of 1), waits 95 % (1 episode)"],
        ),
        (
            played([[[(3, "norm", "mid"), (9, "norm", "mid")]]]),  # only the first one in an episode gives the step
            ["last round: plants norm in mid at step 3 (1 of 1), waits 90 % (1 episode)"],
        ),
        (played(SPREAD), ["last round: plants norm in mid in steps 2 to 8 (4 of 4), waits 95 % (4 episodes)"]),
        (played(ANYTHING), ["last round: plants anything, anywhere (4 of 4), waits 95 % (4 episodes)"]),
        (played(MID), ["last round: plants anything in mid (4 of 4 plantings), waits 95 % (4 episodes)"]),
        (
            played(NORM + ANYTHING[:1]),
            [
                "last round: plants anything, anywhere (4 of 4), waits 95 % (4 episodes)",
                "first round: plants norm, anywhere (4 of 4 plantings), waits 95 % (4 episodes)",
            ],
        ),
        (
            played(MANY),
            [
                "last round: plants norm in slot 1 at step 2 (1 of 1), norm in slot 2 at step 4 (1 of 1), "
                "norm in slot 3 at step 6 (1 of 1), 2 more, waits 75 % (1 episode)"
            ],
        ),
        (
            played(CHANGED),  # of three rounds, the sentences are about one and one
            [
                "last round: plants norm in mid near step 2 (4 of 4), waits 95 % (4 episodes)",
                "first round: plants anything, anywhere (4 of 4), waits 95 % (4 episodes)",
            ],
        ),
        (played([*SPREAD, []]), ["last round: plants norm in mid in steps 2 to 8 (4 of 4), waits 95 % (4 episodes)"]),
        (fold(RunState(), stamp([run_started(), ev.RoundStarted(round=1)])), []),
        (fold(RunState(), growth_run()), []),
    ],
)
def test_sentences_name_what_most_episodes_share(state: RunState, sentences: list[str]) -> None:
    assert state.habits == sentences


def test_percentages_are_100_only_if_exact() -> None:
    first = RoundDecisions(round=1, episodes=300, decisions=3000, waits=2999, first_steps={"norm in mid": {1: 299}})
    assert describe_habits([first], 1, 3) == [
        "last round: plants norm in mid at step 1 (99 %), waits 99 % (300 episodes)"
    ]


@given(st.data())
def test_counts_equal_a_count_over_the_events(data: st.DataObject) -> None:
    envs, steps = 2, 6
    rounds = data.draw(st.integers(1, 2 * WINDOW_ROUNDS + 4), "rounds")
    cut = data.draw(st.integers(0, rounds * steps), "step of the keyframe")
    choice = st.tuples(st.sampled_from(OPS), st.sampled_from(["norm", "attention"]), st.sampled_from(["early", "mid"]))
    events: list[ev.AnyEvent] = [run_started(envs, rounds, steps)]
    expected = dict[int, RoundDecisions]()
    for round_ in range(1, rounds + 1):
        events.append(ev.RoundStarted(round=round_))
        chosen = data.draw(st.lists(choice, min_size=envs * steps, max_size=envs * steps), f"round {round_}")
        places = [(env, step) for step in range(1, steps + 1) for env in range(envs)]
        firsts = dict[tuple[int, str], int]()
        for (env, step), (op, blueprint, slot) in zip(places, chosen, strict=True):
            events.append(acted(round_, env, step, op, blueprint, slot))
            planting = [f"{blueprint} in {slot}"] if op == "germinate" else []
            for decision in [op, *planting] if op != "wait" else []:
                firsts.setdefault((env, decision), step)
        events += [ended(round_, env) for env in range(envs)]
        counts = {decision: dict[int, int]() for _, decision in firsts}
        for (_, decision), step in firsts.items():
            counts[decision][step] = counts[decision].get(step, 0) + 1
        waits = sum(op == "wait" for op, _, _ in chosen)
        expected[round_] = RoundDecisions(
            round=round_, episodes=envs, decisions=envs * steps, waits=waits, first_steps=counts
        )
    stamped = stamp(events)
    position = min(cut * envs + 1, len(stamped))
    state = fold(RunState(), stamped[:position])
    state = fold(RunState(), [Keyframe.from_state(state, stamped[0].time), *stamped[position:]])  # as after a restart
    kept = [*range(1, rounds + 1)]
    kept = kept if rounds <= 2 * WINDOW_ROUNDS + 1 else [*kept[:WINDOW_ROUNDS], *kept[-WINDOW_ROUNDS - 1 :]]
    assert state.decisions == [expected[number] for number in kept]
