from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec
import pytest

from esper.common.configuration.config import AnomalyConfig, Config, TrainingConfig
from esper.common.domain import Rule
from esper.recordings import events as ev
from esper.recordings.health.detector import AnomalyDetector, AnomalyEvent
from esper.recordings.health.rules import CHECKS, RULES
from esper.recordings.health.rules.lanes import (
    MEMORY_GROWTH_ROUNDS,
    STRAGGLING_STEPS,
    check_stale,
    predict_full_round,
)
from esper.recordings.health.rules.registry import rule as register_rule
from esper.recordings.health.thresholds import Thresholds
from esper.recordings.state.health_stats import MemoryHealth
from esper.recordings.state.state import Keyframe, RunState
from tests.factory import device_sampled, env_stepped, growth_run, policy_updated, run_started, stamp

LIMITS = AnomalyConfig()
SLOT = ev.SlotReading(stage="training", blueprint="conv_small", grad_norm=math.nan)


def inspect(*events: ev.AnyEvent) -> list[AnomalyEvent]:
    """Return what a new detector finds in the last event."""
    detector = AnomalyDetector()
    said: list[AnomalyEvent] = []
    for event in events:
        said = detector.check(event)
    return said


def update(**heads: ev.HeadReading) -> ev.PolicyUpdated:
    return policy_updated(heads=heads)


@pytest.mark.parametrize(
    ("event", "rule", "severity", "where"),
    [
        (env_stepped(env=7, train_loss=math.nan), "non-finite loss", "error", "env 7"),
        (env_stepped(env=7, loss=math.inf), "non-finite loss", "error", "env 7"),
        (env_stepped(env=7, score=math.nan), "non-finite score", "error", "env 7"),
        (env_stepped(env=7, train_score=math.nan), "non-finite score", "error", "env 7"),
        (env_stepped(env=7, grad_norm=-math.inf), "non-finite gradient", "error", "env 7"),
        (env_stepped(env=7, slots=[SLOT]), "non-finite gradient", "error", "env 7"),
        (policy_updated(policy_loss=math.nan, heads={}), "non-finite update", "error", "policy loss"),
        (policy_updated(value_loss=math.inf, heads={}), "non-finite update", "error", "value loss"),
        (policy_updated(grad_norm=math.nan, heads={}), "non-finite update", "error", "gradient of the policy"),
        (policy_updated(kl=0.11, heads={}), "KL spike", "warning", "policy"),
        (policy_updated(kl=math.nan, heads={}), "KL spike", "error", "policy"),
        (update(op=ev.HeadReading(grad_norm=math.nan, entropy=0.5)), "non-finite head", "error", "head op"),
        (update(op=ev.HeadReading(grad_norm=math.inf)), "non-finite head", "error", "head op"),
        (update(op=ev.HeadReading(entropy=0.5)), "dead head", "warning", "head op"),
        (update(op=ev.HeadReading(grad_norm=0.0, entropy=0.5)), "dead head", "warning", "head op"),
        (update(op=ev.HeadReading(grad_norm=0.1, entropy=0.04)), "entropy collapse", "warning", "head op"),
        (update(op=ev.HeadReading(grad_norm=0.1, entropy=math.nan)), "entropy collapse", "warning", "head op"),
        (device_sampled("cuda:1", used=91, total=100), "memory nearly full", "warning", "cuda:1"),
    ],
)
def test_rules_find_their_anomaly(event: ev.AnyEvent, rule: str, severity: str, where: str) -> None:
    [found] = inspect(event)
    assert isinstance(found, ev.AnomalyFound)

    assert (found.rule, found.severity, found.where) == (rule, severity, where)
    assert RULES[found.rule].event is type(event)
    assert found.text
    assert found.env == getattr(event, "env", None)


@pytest.mark.parametrize(
    "event",
    [
        env_stepped(),
        env_stepped(loss=1.7e308, train_loss=1.7e308),  # finite, though their sum is not
        env_stepped(slots=[ev.SlotReading(stage="dormant")]),
        policy_updated(kl=LIMITS.kl, heads={}),
        update(op=ev.HeadReading()),  # forced: it had no choices, so it has nothing to learn
        update(op=ev.HeadReading(grad_norm=0.0)),
        update(op=ev.HeadReading(grad_norm=LIMITS.dead_gradient, entropy=LIMITS.entropy)),
        device_sampled(used=90, total=100),
        device_sampled(used=None, total=100),
        device_sampled(used=90, total=None),
        ev.Logged(severity="error", text="no rule checks this"),
    ],
)
def test_rules_ignore_values_within_limits(event: ev.AnyEvent) -> None:
    assert inspect(event) == []


def test_anomaly_text_gives_what_where_when_and_value() -> None:
    cases = {
        "env 07: the gradient of the conv_small in early is NaN at round 2 step 3": env_stepped(
            env=7, round=2, step=3, slots=[SLOT]
        ),
        "head op received no gradient in round 1, although it had choices": update(op=ev.HeadReading(entropy=0.5)),
        "cuda:1: 95% of its memory is in use, more than 90%": device_sampled("cuda:1", used=95, total=100),
    }
    for text, event in cases.items():
        [found] = inspect(run_started(), event)
        assert isinstance(found, ev.AnomalyFound)
        assert found.text == text


def test_rule_of_a_non_finite_score_does_not_depend_on_its_name() -> None:
    start = msgspec.structs.replace(run_started(), score_name="gradient loss")
    [found] = inspect(start, env_stepped(env=7, score=math.nan))
    assert isinstance(found, ev.AnomalyFound)
    assert found.rule == "non-finite score"
    assert found.text == "env 07: the validation gradient loss is NaN at round 1 step 1"


def course(*changes: Mapping[str, object], env: int = 0, round: int = 1) -> list[ev.AnyEvent]:
    """Return steps of an env, next to those of an env that stays at 90 %."""
    steps: list[ev.AnyEvent] = []
    for step, change in enumerate(changes, 1):
        steps += [env_stepped(9, round, step, score=0.9), env_stepped(env, round, step, **change)]
    return steps


def memories(*held: int, used: int = 0) -> list[ev.AnyEvent]:
    """Return one sample per round of a GPU with 1000 bytes."""
    rounds: list[ev.AnyEvent] = []
    for round_, size in enumerate(held, 1):
        sample = device_sampled("cuda:0", allocated=1, reserved=size, used=used, total=1000)
        rounds += [env_stepped(round=round_), sample]
    return rounds


def explosion(*norms: float, env: int = 0) -> list[ev.AnyEvent]:
    """Return steps of an env with an ordinary gradient, then with these norms."""
    return course(*[{}] * 3, *({"grad_norm": norm} for norm in norms), env=env)


def guessing(*losses: float) -> list[ev.AnyEvent]:
    """Return the start of a run with two classes, whose chance loss is ln 2, and steps of an env with losses."""
    start = msgspec.structs.replace(run_started(10), chance_loss=math.log(2))
    changes = course(*({"train_loss": loss} for loss in losses))
    return [start, *(e for e in changes if isinstance(e, ev.EnvStepped) and e.env == 0)]


def dead(steps: int) -> list[ev.AnyEvent]:
    """Return steps of a seed without a gradient, after one with."""
    norms = [0.1, *[0.0] * steps]
    seeds = [ev.SlotReading(stage="training", blueprint="norm", age=age, grad_norm=n) for age, n in enumerate(norms, 1)]
    return course(*({"slots": [seed]} for seed in seeds))


def rounds(*stalled: int, envs: int = 8) -> list[ev.AnyEvent]:
    """Return rounds in which so many envs have a bad start and stop there, and the others improve."""
    run: list[ev.AnyEvent] = []
    for round_, count in enumerate(stalled, 1):
        run.append(ev.RoundStarted(round=round_))
        for env in range(envs):
            steps = [0.3, *[0.2] * LIMITS.stalled_steps] if env < count else [0.5] * LIMITS.stalled_steps + [0.9]
            run += [env_stepped(env, round_, step, score=value) for step, value in enumerate(steps, 1)]
            run.append(
                ev.EpisodeEnded(
                    round=round_, env=env, score=steps[-1], best_score=max(steps), episode_return=0.0,
                    parameter_ratio=1.0, fossilized=0, culled=0,
                )
            )  # fmt: skip
    return [*run, ev.RoundStarted(round=len(stalled) + 1)]


SEED = ev.SlotReading(stage="training", blueprint="norm", age=9, grad_norm=0.1)
SLOW = [
    device_sampled(f"cpu:{lane}", envs=2, busy=busy, allocated=None)
    for _ in range(STRAGGLING_STEPS)
    for lane, busy in enumerate((0.5, 0.9))
]
EVEN = [device_sampled(lane, busy=0.5, allocated=None) for lane in ("cpu:0", "cpu:1") for _ in range(10)]

CASES = {
    "non-finite gradient": (course({"grad_norm": math.nan}), course({}, {})[-1:]),
    "exploding gradient": (explosion(9.0, 9.0, 9.0), [env_stepped(0, 1, 7)]),
    "loss above chance": (guessing(*[0.75] * LIMITS.chance_steps), [env_stepped(0, 1, 9, train_loss=0.5)]),
    "dead seed": (dead(LIMITS.dead_seed_steps), [env_stepped(0, 1, 9, slots=[SEED])]),
    "repeated skips": (course(*[{"skipped_batches": 2}] * LIMITS.skipped_steps), [env_stepped(0, 1, 9)]),
    "stalled env": (rounds(2, 2, 3), [*rounds(2, 2, 3, 0)[-1:]]),
    "KL spike": ([policy_updated(kl=0.2, heads={})], [policy_updated(2, kl=0.01, heads={})]),
    "dead head": ([update(op=ev.HeadReading(entropy=0.5))], [update(op=ev.HeadReading(entropy=0.5, grad_norm=0.1))]),
    "entropy collapse": (
        [update(op=ev.HeadReading(grad_norm=0.1, entropy=0.01))],
        [update(op=ev.HeadReading(grad_norm=0.1, entropy=0.5))],
    ),
    "loss scales diverge": (
        [device_sampled(scale_min=1.0, scale_max=128.0)],
        [device_sampled(scale_min=2.0, scale_max=128.0)],
    ),
    "loss scale below 1": (
        [device_sampled(scale_min=0.5, scale_max=16.0)],
        [device_sampled(scale_min=1.0, scale_max=16.0)],
    ),
    "memory nearly full": ([device_sampled(used=91, total=100)], [device_sampled(used=72, total=100)]),
    "memory grows": (memories(100, 110, 120, 130, 140, 150, 150), memories(*[100] * 8)[-2:]),
    "straggling lane": (SLOW, [device_sampled("cpu:1", busy=0.1, allocated=None) for _ in range(10)]),
}


@pytest.mark.parametrize("rule", CASES)
def test_anomaly_begins_once_and_ends_on_recovery(rule: str) -> None:
    detector = AnomalyDetector()
    breaks, mends = CASES[rule]
    said = [finding for event in breaks for finding in detector.check(event)]
    assert [(type(one), one.rule) for one in said] == [(ev.AnomalyFound, rule)]
    assert detector.check(breaks[-1]) == []  # already active
    said = [finding for event in mends for finding in detector.check(event)]
    assert [(type(one), one.rule) for one in said] == [(ev.AnomalyEnded, rule)]


def test_every_rule_has_one_check() -> None:
    assert set(RULES) == set(Rule)
    assert [rule for rule, info in RULES.items() if info.event is None] == [Rule.STALE_TELEMETRY, Rule.CRASHED_RUN]
    with pytest.raises(ValueError, match="'KL spike' already has a check"):
        register_rule(ev.PolicyUpdated, {Rule.KL_SPIKE: "another check"})(lambda event, context: ())


def test_check_of_a_new_event_type_keeps_policy_anomalies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CHECKS, ev.PhaseTimed, [lambda event, context: ()])
    detector = AnomalyDetector()
    assert detector.check(policy_updated(kl=0.2, heads={}))
    assert detector.check(ev.PhaseTimed(round=1, step=1, wall=1.0, phases={})) == []
    assert detector.check(policy_updated(kl=0.2, heads={})) == []  # still the same anomaly


def findings(detector: AnomalyDetector, *events: ev.AnyEvent) -> list[tuple[str, str, int | None]]:
    """Return type, subject and env of what a detector finds in the events."""
    return [(type(found).__name__, found.where, found.env) for event in events for found in detector.check(event)]


def test_same_rule_in_many_envs_is_one_anomaly() -> None:
    """The cause is the same, so a person needs one alarm, which names each env."""
    detector = AnomalyDetector()
    first, second = (env_stepped(env, grad_norm=math.nan) for env in (2, 5))
    healthy = [env_stepped(env, step=2) for env in (2, 5)]
    run = [first, second, first, *healthy, second]
    assert findings(detector, *run) == [
        ("AnomalyFound", "env 2", 2),
        ("AnomalyJoined", "env 2", 5),
        ("AnomalyLeft", "env 2", 2),
        ("AnomalyEnded", "env 2", 2),
        ("AnomalyFound", "env 5", 5),
    ]
    rolled_back = [ev.GovernorRolledBack(round=1, step=3, env=env, reason="", value=1.0) for env in (2, 5)]
    assert [kind for kind, *_ in findings(detector, *rolled_back)] == ["AnomalyFound"] * 2  # each is reported


def test_active_anomaly_ends_below_a_lower_threshold() -> None:
    """Values around a threshold would begin and end an anomaly again and again."""
    detector = AnomalyDetector()
    fractions = (85, 91, 89, 73, 91, 71, 89)
    said = [findings(detector, device_sampled(used=used, total=100)) for used in fractions]
    assert [kind for found in said for kind, *_ in found] == ["AnomalyFound", "AnomalyEnded"]
    assert [bool(found) for found in said] == [False, True, False, False, False, True, False]


def test_thresholds_are_those_of_the_configuration() -> None:
    config = Config(anomalies=AnomalyConfig(kl=0.5, explosion_steps=1), training=TrainingConfig(host_clip=20.0))
    started = msgspec.structs.replace(run_started(), config=msgspec.to_builtins(config))
    thresholds = Thresholds.from_config(config)
    assert Thresholds.from_recording(started) == thresholds
    assert Thresholds.from_recording(None) == Thresholds.from_recording(run_started()) == Thresholds()
    later = msgspec.structs.replace(started, config={"anomalies": {"kl": 0.5, "unknown": 1}})
    assert Thresholds.from_recording(later).limits == AnomalyConfig(kl=0.5)
    other = msgspec.structs.replace(started, config={"anomalies": {"kl": -1}})
    assert Thresholds.from_recording(other).limits == AnomalyConfig()
    detector = AnomalyDetector(thresholds)
    assert findings(detector, policy_updated(kl=0.4, heads={}), *explosion(19.0, 21.0)) == [
        ("AnomalyFound", "env 0", 0)
    ]


@pytest.mark.parametrize("blended", [True, False])
def test_gradient_explodes_only_if_the_seed_is_blended(blended: bool) -> None:
    def step(norm: float, alpha: float | None) -> dict[str, object]:
        return {"slots": [ev.SlotReading(stage="training", blueprint="norm", age=9, alpha=alpha, grad_norm=norm)]}

    alpha = 0.5 if blended else None
    run = course(*[step(0.1, None)] * 4, *[step(9.0, alpha)] * 4)
    assert bool(findings(AnomalyDetector(), *run)) == blended


def test_rollback_anomaly_lasts_until_the_next_episode() -> None:
    detector = AnomalyDetector()
    back = ev.GovernorRolledBack(round=1, step=3, env=0, reason="the loss is NaN", value=float("nan"))
    [found] = detector.check(back)
    assert isinstance(found, ev.AnomalyFound)
    assert found.text == "env 00: rolled back at round 1 step 3: the loss is NaN"
    assert detector.check(env_stepped(round=1, step=4)) == []
    detector.check(ev.RoundStarted(round=2))
    assert len(detector.check(back)) == 1


@pytest.mark.parametrize(
    "events",
    [
        course({}, {}, *[{"grad_norm": 9.0}] * 3),  # too few norms for a median
        explosion(9.0, 9.0, 0.8, 9.0, 9.0),  # never for three consecutive steps
        explosion(*[0.99] * 5),
        guessing(*[0.75] * (LIMITS.chance_steps - 1)),
        guessing(*[0.7] * LIMITS.chance_steps),  # a network that has learned nothing yet
        guessing(*(0.9 - 0.01 * step for step in range(LIMITS.chance_steps + 3))),  # it began high, and learns slowly
        [run_started(10), *memories(100, 110, 120, 130, 140, 150, 160, used=800)],  # full in round 27
        dead(LIMITS.dead_seed_steps - 1),
        rounds(2, 2),
        rounds(2, 1, 2),
        rounds(1, 1, 1, envs=4),  # a single env
        course(*[{"skipped_batches": 2}, {}] * 4),  # skips, but not in consecutive steps
        memories(100, 110, 120, 130, 140, 140, 150),  # not in every round
        memories(*(10_000 + i for i in range(7))),  # allocator noise
        EVEN,
    ],
)
def test_rules_ignore_lookalikes(events: list[ev.AnyEvent]) -> None:
    detector = AnomalyDetector()
    assert [finding for event in events for finding in detector.check(event)] == []


def test_chance_is_that_of_the_structure_of_the_env() -> None:
    """A loss of 0.75 is above the chance loss of two classes, and below that of three."""
    structures = [
        ev.StructureInfo(name=f"of_{classes}", slots=1, host_parameters=9, chance_loss=math.log(classes))
        for classes in (2, 3)
    ]
    start = msgspec.structs.replace(run_started(10), chance_loss=math.log(3), structures=structures)
    contexts = [ev.EpisodeStarted(round=1, env=env, structure=f"of_{env}") for env in (2, 3)]
    steps = [env_stepped(env, 1, step, train_loss=0.75) for step in range(1, LIMITS.chance_steps + 1) for env in (2, 3)]
    found = findings(AnomalyDetector(), start, *contexts, *steps)
    assert found == [("AnomalyFound", "env 2", 2)]


@pytest.mark.parametrize("kind", ["task", "family", "growth"])
def test_stalled_envs_are_compared_with_those_of_their_structure(kind: str) -> None:
    """The hosts of a hard task stop at a low accuracy, as bad candidates of a growth do, and nothing is wrong."""
    run = rounds(3, 3, 3)
    if kind == "growth":
        run.insert(0, msgspec.structs.replace(run_started(8), search=ev.SearchInfo(trials=8, objective="score")))
    if kind == "family":
        names = ["hard"] * 3 + ["easy"] * 5
        contexts = [ev.EpisodeStarted(round=1, env=env, structure=name) for env, name in enumerate(names)]
        run = [run[0], *contexts, *run[1:]]
    assert bool(findings(AnomalyDetector(), *run)) == (kind == "task")


def test_growth_has_no_anomaly_but_its_rollback() -> None:
    """Its envs are idle once their trials were pruned, failed or ended early."""
    found = findings(AnomalyDetector(), *growth_run(envs=16, trials=64))
    assert [where for _, where, _ in found] == ["env 2"]


@pytest.mark.parametrize("scale", [0.25, 0.0, math.nan])
def test_exhausted_loss_scale_is_an_anomaly(scale: float) -> None:
    (found,) = AnomalyDetector().check(device_sampled(scale_min=scale, scale_max=scale))
    assert isinstance(found, ev.AnomalyFound)
    assert (found.rule, found.threshold) == ("loss scale below 1", 1.0)


def test_growing_memory_is_forecast() -> None:
    detector = AnomalyDetector()
    said = [f for event in memories(100, 110, 120, 130, 140, 150, 160, used=900) for f in detector.check(event)]
    [found] = [one for one in said if isinstance(one, ev.AnomalyFound)]
    assert found.value == 0.5
    assert found.text.endswith("at this rate it is full in round 17")  # 100 bytes left at 10 per round, from round 7


def test_growing_memory_names_the_process_that_grows() -> None:
    events = [
        msgspec.structs.replace(event, processes={"main process": 500 + index % 2, "worker of cpu:1": 10 * index})
        if isinstance(event, ev.DeviceSampled)
        else event
        for index, event in enumerate(memories(100, 110, 120, 130, 140, 150, 160, used=800))
    ]
    detector = AnomalyDetector()
    found = [found for event in (run_started(rounds=100), *events) for found in detector.check(event)][-1]
    assert isinstance(found, ev.AnomalyFound)
    assert "in the last 5 rounds, mostly that of the worker of cpu:1; at this rate" in found.text


def test_growing_memory_near_the_last_round_is_one_anomaly() -> None:
    """The memory of the machine changes with other programs, and the forecast with it."""
    detector = AnomalyDetector()
    start = run_started(rounds=18)
    runs = [memories(*range(100, 190, 10), used=used) for used in (900, 870)]  # full in round 17 at first, then in 21
    run = [pair[index // 2 % 2] for index, pair in enumerate(zip(*runs, strict=True))]
    changes = [event for event in (start, *run) for event in detector.check(event)]
    assert [type(event).__name__ for event in changes if event.rule == "memory grows"] == ["AnomalyFound"]


def test_forecast_of_one_of_several_ranks_does_not_end_the_alarm() -> None:
    detector = AnomalyDetector()
    detector.check(run_started(rounds=2))
    run = [
        msgspec.structs.replace(event, device="1/cpu:0") if isinstance(event, ev.DeviceSampled) else event
        for event in memories(100, 110, 120, 130, 140, 150, 160, used=800)
    ]
    assert [found.rule for event in run for found in detector.check(event)] == ["memory grows"]


def test_noisy_memory_gives_no_forecast() -> None:
    # The limit is 3 % of the memory before the last five complete rounds: 3018 of 100,603 bytes.
    for growth, grows in ((603, False), (604, True)):
        state = RunState()
        run = [msgspec.structs.replace(event, total=1_000_000) if isinstance(event, ev.DeviceSampled) else event
               for event in memories(*(100_000 + growth * round_ for round_ in range(8)))]  # fmt: skip
        for event in stamp([run_started(), ev.RoundStarted(round=1), *run]):
            state.apply(event)
        assert (predict_full_round(state.health.memories["cuda:0"], LIMITS.memory_growth) is not None) == grows


def test_full_shared_memory_is_one_anomaly() -> None:
    detector = AnomalyDetector()
    samples = [device_sampled(lane, used=99, total=100) for lane in ("cpu:0", "cpu:1")] * 2
    assert [one.where for event in samples for one in detector.check(event)] == ["cpu:0"]


def test_memory_forecast_is_made_from_the_latest_sample() -> None:
    memory = MemoryHealth()
    for round_ in range(1, MEMORY_GROWTH_ROUNDS + 3):
        for _ in range(50):  # many samples per round
            memory.fold(device_sampled(allocated=100 * round_, used=100 * round_, total=2000), round_)
    memory.fold(device_sampled(allocated=800, used=1900, total=2000), MEMORY_GROWTH_ROUNDS + 3)
    assert predict_full_round(memory, LIMITS.memory_growth) == MEMORY_GROWTH_ROUNDS + 3 + 1


def test_lanes_of_one_cpu_share_one_memory() -> None:
    state = RunState()
    for event in stamp([device_sampled("cpu:0", allocated=5), device_sampled("cpu:1", allocated=7)]):
        state.apply(event)
    assert [memory.peak for memory in state.health.memories.values()] == [5]


def test_run_resumed_on_other_devices_forgets_the_lanes_before() -> None:
    nearly_full = [device_sampled("cuda:0", busy=0.9, used=91, total=100)] * STRAGGLING_STEPS
    before = msgspec.structs.replace(run_started(), lanes=["cuda:0", "cuda:0", "cpu:0", "cpu:1"])
    after = msgspec.structs.replace(run_started(), lanes=["cpu:1"] * 4)
    state, detector = RunState(), AnomalyDetector()
    cpu = [device_sampled("cpu:0", used=50, total=100), device_sampled("cpu:1", used=50, total=100)]
    for event in stamp([before, *cpu, *nearly_full]):
        state.apply(event)
        for finding in detector.check(event):
            state.apply(finding)
    assert [anomaly.found.where for anomaly in state.active_anomalies()] == ["cuda:0"]
    keyframe = Keyframe.from_state(state)
    state, detector = keyframe.decode_state(), AnomalyDetector()
    detector.resume(keyframe.decode_state())
    state.apply(after)
    assert detector.check(after) == []
    assert state.active_anomalies() == []
    assert (list(state.devices), list(state.health.lanes), list(state.health.memories)) == (
        ["cpu:1"],
        ["cpu:1"],
        ["cpu"],
    )
    full, found = device_sampled("cpu:1", used=95, total=100), list[str]()
    for event in [full] * STRAGGLING_STEPS:
        found += [f"{finding.rule}: {finding.where}" for finding in detector.check(event)]
    assert found == ["memory nearly full: cpu:1"]  # of the new memory reporter; no lane is left to compare with
    returned = detector.check(device_sampled("cuda:0", used=91, total=100))
    assert [type(finding) for finding in returned] == [ev.AnomalyFound]


def test_resumed_detector_finds_the_same_anomalies() -> None:
    run: list[ev.AnyEvent] = [run_started(10), ev.RoundStarted(round=1)]
    detector, state = AnomalyDetector(), RunState()
    steps = course(*[{"skipped_batches": 1}] * 2)
    for event in stamp([*run, device_sampled(used=91, total=100), *steps]):
        state.apply(event)
        for finding in detector.check(event):
            state.apply(finding)
    other = AnomalyDetector()
    other.resume(Keyframe.from_state(state).decode_state())
    rest = [*course({"skipped_batches": 1}), device_sampled(used=91, total=100), device_sampled(used=10, total=100)]
    rest = [msgspec.structs.replace(event, step=3) if isinstance(event, ev.EnvStepped) else event for event in rest]
    expected = [detector.check(event) for event in rest]
    assert [other.check(event) for event in rest] == expected
    assert [one.rule for said in expected for one in said] == ["repeated skips", "memory nearly full"]


def test_silent_engine_is_stale_relative_to_its_pace() -> None:
    assert check_stale(None, 1e6, LIMITS) is None  # the run has not started
    assert check_stale(0.1, 4.0, LIMITS) is None
    assert check_stale(2.0, 19.0, LIMITS) is None
    for cadence, age, limit in ((0.1, 4.1, 4.0), (2.0, 20.5, 20.0)):
        found = check_stale(cadence, age, LIMITS)
        assert found is not None
        assert (found.rule, found.value, found.threshold) == ("stale telemetry", age, limit)


def test_run_state_keeps_start_and_end_of_anomalies() -> None:
    state = RunState()
    run = [run_started(1), ev.RoundStarted(round=1), *stamp([])]
    detector = AnomalyDetector()
    events = stamp([*run, device_sampled(used=91, total=100), device_sampled(used=10, total=100)])
    for event in events:
        state.apply(event)
        for finding in detector.check(event):
            state.apply(msgspec.structs.replace(finding, seq=event.seq, time=event.time))
        if event.seq == 3:
            [anomaly] = state.active_anomalies()
            assert (anomaly.found.value, anomaly.found.threshold, anomaly.found.time) == (0.91, 0.9, event.time)
    assert state.active_anomalies() == []
    [anomaly] = state.anomalies.values()
    assert anomaly.ended == events[-1].time
