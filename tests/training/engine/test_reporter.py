"""Tests of the reporter: from measurements through events to the state that the dashboard reads."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from esper.common.control import RequestKind
from esper.common.domain import Stage
from esper.networks.seeds.network import GrowingNetwork
from esper.recordings import events as ev
from esper.training.envs.env import Env
from esper.training.envs.epoch_result import EpochResult
from esper.training.lanes.pool import EnvPool
from tests.runs import LiveRun

ENVS, STEPS = 2, 22


class Reading(NamedTuple):
    """Measurements of one env in one step, and the size of its network at that time."""

    measured: EpochResult
    parameters: int


class Watched(NamedTuple):
    """A finished run and its measurements."""

    live: LiveRun
    readings: dict[int, list[Reading]]

    def stepped(self, env: int) -> list[ev.EnvStepped]:
        return [event for event in self.live.events if isinstance(event, ev.EnvStepped) and event.env == env]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    """Play one round in which the heuristic grows seeds."""
    readings: dict[int, list[Reading]] = {env: [] for env in range(ENVS)}
    take = Env.unpack_results

    def watch(env: Env, trained: list[float], validated: list[float]) -> EpochResult:
        measured = take(env, trained, validated)
        size = sum(parameter.numel() for parameter in env.network.parameters())
        readings[env.index].append(Reading(measured, size))
        return measured

    options = {"policy": "heuristic", "envs": ENVS, "rounds": 1, "steps": STEPS}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Env, "unpack_results", watch)
        live = LiveRun.finished(tmp_path_factory.mktemp("watched"), **options)
    return Watched(live, readings)


def told(value: float | None, digits: int = 5) -> float | None:
    """Round a value to the significant digits that events have."""
    return None if value is None else float(f"{value:.{digits}g}")


def test_step_event_has_the_measurements_of_its_env(watched: Watched) -> None:
    host = watched.live.run.pool.envs[0].network.host_parameter_count
    for env, readings in watched.readings.items():
        events = watched.stepped(env)
        assert len(events) == len(readings) == STEPS
        for event, (measured, parameters) in zip(events, readings, strict=True):
            assert (event.train_loss, event.loss) == (told(measured.train_loss), told(measured.loss))
            assert (event.train_score, event.score) == (told(measured.train_score), told(measured.score))
            assert (event.grad_norm, event.parameter_ratio) == (told(measured.grad_norm, 4), told(parameters / host))
            assert host + sum(slot.parameters for slot in event.slots) == parameters


def test_slot_reading_has_the_measurements_of_its_seed(watched: Watched) -> None:
    dependences = norms = 0
    for env, readings in watched.readings.items():
        for event, (measured, _) in zip(watched.stepped(env), readings, strict=True):
            for index, slot in enumerate(event.slots):
                if slot.stage in ("culled", "embargoed", "dormant"):  # the measurements were removed with the seed
                    assert (slot.dependence, slot.dependence_se) == (None, None)
                    continue
                if index in measured.dependences:
                    dependences += 1
                    dependence, error = measured.dependences[index]
                    assert (slot.dependence, slot.dependence_se) == (told(dependence), told(error, 4))
                norms += index in measured.slot_grad_norms
                assert slot.grad_norm == told(measured.slot_grad_norms.get(index), 4)
    assert dependences > 5
    assert norms > dependences  # seeds in training have a gradient, and contribute nothing


def test_missing_measurements_are_omitted(watched: Watched) -> None:
    for event in watched.stepped(0):
        assert event.value is None  # the heuristic has no critic
        assert event.op_probability is None
        assert event.op_probabilities == {}
        assert all(chosen.probability is None for chosen in event.decision.values())
        assert event.loss_scale is None
        for slot in event.slots:
            if slot.stage == "dormant":
                assert slot == ev.SlotReading(stage="dormant")
            if slot.stage in ("germinated", "training"):
                assert slot.alpha is None
                assert slot.dependence is None


def test_step_event_names_the_decision(watched: Watched) -> None:
    heads = {"wait": set(), "advance": {"slot"}, "fossilize": {"slot"}}
    heads["germinate"] = {"slot", "blueprint", "style", "tempo", "alpha_target"}
    for event in watched.stepped(0):
        assert set(event.decision) == heads[event.op]
    planted = next(event for event in watched.stepped(0) if event.op == "germinate")
    assert {head: chosen.choice for head, chosen in planted.decision.items()} == {
        "slot": "early",
        "blueprint": "depthwise",
        "style": "linear_add",
        "tempo": "3",
        "alpha_target": "1.0",
    }


def test_step_event_has_legal_op_and_choice_probabilities(tmp_path: Path) -> None:
    live = LiveRun.finished(tmp_path, policy="ppo", envs=2, rounds=1)
    steps = [event for event in live.events if isinstance(event, ev.EnvStepped)]
    assert {frozenset(event.op_probabilities) for event in steps} >= {frozenset({"wait", "germinate"})}
    for event in steps:
        assert sum(event.op_probabilities.values()) == pytest.approx(1, abs=1e-3)
        assert event.op_probabilities[event.op] == pytest.approx(event.op_probability, abs=1e-4)
    chosen = [choice for event in steps for choice in event.decision.values()]
    assert chosen
    assert all(choice.probability is not None and 0 < choice.probability <= 1 for choice in chosen)
    assert any(choice.probability < 0.9 for choice in chosen if choice.probability)


def test_reward_parts_sum_to_the_reward(watched: Watched) -> None:
    ended = {event.env: event for event in watched.live.events if isinstance(event, ev.EpisodeEnded)}
    for env in range(ENVS):
        events = watched.stepped(env)
        assert all(event.reward == sum(event.reward_parts.values()) for event in events)
        assert {*events[-1].reward_parts} == {"score", "rent", "op", "dependence"}
        total = math.fsum(event.reward for event in events)
        assert watched.live.state.envs[env].scores == [event.score for event in events]
        assert watched.live.state.envs[env].returns == [ended[env].episode_return]
        assert ended[env].episode_return == pytest.approx(total, abs=STEPS * 3 * 5e-6)  # each part has five decimals
        assert ended[env].score == events[-1].score
        assert ended[env].best_score == max(event.score for event in events)
        assert ended[env].parameter_ratio == events[-1].parameter_ratio


def test_transitions_agree_with_slot_readings(watched: Watched) -> None:
    """Applied in order, the transitions lead from an empty slot to the stage in each step's event."""
    stages = {(env, slot): "dormant" for env in range(ENVS) for slot in ("early", "mid", "late")}
    shown: list[ev.EnvStepped] = []
    moved = 0
    for event in watched.live.events:
        if isinstance(event, ev.SeedMoved):
            moved += 1
            assert stages[event.env, event.slot] == event.before
            stages[event.env, event.slot] = event.after
        elif isinstance(event, ev.EnvStepped):
            shown.append(event)
        elif isinstance(event, ev.PhaseTimed):  # the moves of a step follow it
            for step in shown[-ENVS:]:
                assert [slot.stage for slot in step.slots] == [
                    stages[step.env, name] for name in ("early", "mid", "late")
                ]
    assert moved > 10


# Compared with the network itself


def evaluate(network: GrowingNetwork, x: Tensor, y: Tensor, alphas: list[float]) -> tuple[Tensor, float]:
    """Return the hits per sample and the mean loss of a plain forward pass."""
    network.eval()
    with torch.no_grad():
        logits = network(x, alphas)
    return (logits.argmax(dim=1) == y).double(), F.cross_entropy(logits, y).item()


def test_loss_and_accuracy_are_of_the_validation_split(tmp_path: Path) -> None:
    live = LiveRun.finished(tmp_path, policy="static", rounds=1, steps=3, envs=1)
    (env,) = live.run.pool.envs
    hits, loss = evaluate(env.network, env.splits.validation[0], env.splits.validation[1], env.network.alphas())
    stepped = live.state.envs[0].stepped
    assert stepped is not None
    assert stepped.score == pytest.approx(hits.mean().item(), rel=1e-4)
    assert stepped.loss == pytest.approx(loss, rel=1e-4)


def test_dependence_is_the_loss_without_the_seed(watched: Watched) -> None:
    checked = 0
    for env in watched.live.run.pool.envs:
        x, y = env.splits.validation[0], env.splits.validation[1]
        before, last = watched.stepped(env.index)[-2:]
        alphas = env.network.alphas()
        for index, (slot, past) in enumerate(zip(last.slots, before.slots, strict=True)):
            if past.stage not in (Stage.PROBATIONARY.label, Stage.FOSSILIZED.label) or slot.dependence is None:
                continue  # its alpha may have moved since it was measured
            with_it, _ = evaluate(env.network, x, y, alphas)
            without, _ = evaluate(env.network, x, y, [0.0 if i == index else alpha for i, alpha in enumerate(alphas)])
            gain = with_it - without
            assert slot.dependence == pytest.approx(gain.mean().item(), rel=1e-4)
            assert slot.dependence_se == pytest.approx(gain.std(correction=0).item() / math.sqrt(len(y)), rel=1e-3)
            checked += 1
    assert checked > 0


# Devices


def test_cpu_lane_reports_process_and_machine_memory(watched: Watched) -> None:
    sampled = [event for event in watched.live.events if isinstance(event, ev.DeviceSampled)]
    assert {event.device for event in sampled} == {"cpu:0"}
    assert len(sampled) == STEPS
    total, resident = psutil.virtual_memory().total, psutil.Process().memory_info().rss
    for event in sampled:
        assert event.envs == ENVS
        assert event.total == total
        assert event.allocated is not None
        assert 0.2 * resident < event.allocated < 5 * resident
        assert event.used is not None
        assert 0 < event.used <= total
        assert event.reserved is None  # a CPU has no caching allocator
        assert event.busy is not None
        assert 0 < event.busy <= 1
    assert watched.live.state.devices["cpu:0"] == sampled[-1]


def test_phases_of_a_step_sum_to_its_time(watched: Watched) -> None:
    timed = [event for event in watched.live.events if isinstance(event, ev.PhaseTimed)]
    assert [(event.round, event.step) for event in timed] == [(1, step) for step in range(1, STEPS + 1)]
    for event in timed:
        assert {"act", "train", "validate", "reward", "other"} <= event.phases.keys()
        assert min(event.phases.values()) >= 0
        assert sum(event.phases.values()) == pytest.approx(event.wall)


def test_gate_refusal_is_reported_as_long_as_it_lasts(tmp_path: Path) -> None:
    """G2 passes once a seed is old enough, which then waits for the policy; most other gates pass at the transition."""
    live = LiveRun(tmp_path, policy="random", envs=4, rounds=1, steps=12, seed=3).start_paused()
    while live.state.step < 11:
        for told, episode in zip(live.state.envs, live.run.trainer.state.episodes, strict=True):
            holding = {slot.name: gate for slot in episode.env.network.slots if (gate := slot.refusing_gate())}
            assert {name: refusal.gate for name, refusal in told.refusals.items()} == {
                name: gate.gate for name, gate in holding.items()
            }
        live.control.put(RequestKind.STEP, "test")
        live.wait_for(ev.Paused)
    live.abandon()
    gates = [event for event in live.events if isinstance(event, ev.GateRefused | ev.GateOpened)]
    assert {event.gate for event in gates if isinstance(event, ev.GateRefused)} >= {"G2", "G3"}
    opened = [event for event in gates if isinstance(event, ev.GateOpened)]
    assert "G2" in {event.gate for event in opened}
    assert all(check.passed for event in opened for check in event.checks)


@pytest.mark.parametrize(
    ("options", "active"),
    [
        pytest.param({"devices": ("cpu:0",)}, {3}, id="one lane"),
        pytest.param({}, {None}, id="lanes that take each other's envs"),
        pytest.param({"amp": "fp16", "scaler": "device"}, {2, 1}, id="lanes that keep their envs"),
    ],
)
def test_lanes_are_compared_only_with_separate_envs(
    options: dict[str, Any], active: set[int | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EnvPool, "_start_workers", lambda *_: None)  # all lanes train in this process
    two = {"devices": ("cpu:0", "cpu:1"), "policy": "static", "rounds": 1, "steps": 1}
    live = LiveRun.finished(tmp_path, **(two | options))
    assert {event.active for event in live.events if isinstance(event, ev.DeviceSampled)} == active
