"""Episodes of every kind of run are reproduced exactly, and their changes do not depend on lanes (slow)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from esper.common.control import RequestKind
from esper.recordings import events as ev
from esper.recordings.checkpoints.catalog import list_checkpoints
from esper.recordings.effects.change import UNCHANGED, WITHOUT_GROWTH, Change, without_decision
from esper.recordings.history.excerpt import write_excerpt
from esper.recordings.history.history import open_history
from esper.recordings.state.series import decision_of
from tests.runs import LiveRun, only_run
from tests.studies.simulation.runs import episodes, record, simulate, write_task

pytestmark = pytest.mark.slow
LANES = ("cpu:0", "cpu:1")


def assert_exact(run: Path, *rounds: int, task: str | None = None, lanes: bool = False) -> None:
    """Assert that all episodes of some rounds are reproduced. With `lanes`, two lanes must give the results of one."""
    found = episodes(run, *rounds)
    one = {(result.round, result.env, result.change.key): result for result in simulate(found, task=task)}
    assert {str(result.reproduction).partition(",")[0] for result in one.values()} == {"reproduced exactly"}
    last = found[-1]
    decided = [step for step in last.steps if step.op != "wait"][:3]
    changes = [without_decision(last, step.step) for step in decided]
    itself = [Change(decisions={step.step: decision_of(step)}) for step in decided]
    results = simulate([last], *changes, *itself, task=task)
    assert all(result.trajectory == results[0].trajectory for result in results if result.change in itself)
    if lanes:
        assert simulate([last], *changes, *itself, task=task, lanes=LANES) == results


@pytest.mark.parametrize(
    "options",
    [
        {"policy": "heuristic", "steps": 20},
        {"policy": "full", "devices": LANES},
        {"policy": "ppo", "reward": "sparse", "devices": LANES},
        {"policy": "ppo", "ppo": {"horizon": "continuing", "gamma": 0.9, "hidden": 16, "envs-per-host": 2}},
        {"policy": "plan", "plan": "1:depthwise@early 3:conv_light@mid,tempo=5,style=linear_gate"},
        {"policy": "pretrained", "counterfactual": "shapley"},
        {"counterfactual": "off", "slots": ("mid", "early")},
        {"task": "digits_family", "policy": "ppo", "devices": LANES},
        {"task": "digits_impaired+recall", "context_seed": 7},
        {"amp": "fp16", "rounds": 3},
        {"amp": "bf16"},
        {"policy": "full", "training": {"host-learning-rate": 60.0, "host-clip": 1000.0}, "amp": "fp16", "rounds": 3},
    ],
    ids=lambda options: "-".join(str(value) for value in options.values())[:40],
)
def test_episodes_of_a_run_are_reproduced(tmp_path: Path, options: dict[str, Any]) -> None:
    rounds = range(1, options.get("rounds", 2) + 1)
    assert_exact(record(tmp_path, envs=3, **options), *rounds, lanes=options.get("task") == "digits_family")


@pytest.mark.parametrize("amp", ["off", "fp16"])
def test_episodes_of_an_own_network_are_reproduced(tmp_path: Path, amp: str) -> None:
    task = write_task(tmp_path, f"own_{amp}", nan=0.04)
    run = record(tmp_path, task=task, amp=amp, training={}, envs=4, devices=LANES)
    assert_exact(run, 1, 2, task=task, lanes=amp == "fp16")


def test_live_resumed_and_restored_runs_and_excerpts_are_reproduced(tmp_path: Path) -> None:
    options = {"policy": "random", "amp": "fp16", "steps": 8, "rounds": 3}
    live = LiveRun(tmp_path, **options).start_paused(11)  # in the second round
    run = live.run.directory
    assert_exact(run, 2)
    live.control.put(RequestKind.CHECKPOINT, "test")
    saved = live.wait_for(ev.CheckpointSaved)
    for _ in range(3):
        live.control.put(RequestKind.STEP, "test")
        live.wait_for(ev.Paused)
    live.control.put(RequestKind.RESTORE, "test", saved.path)
    live.control.put(RequestKind.STOP, "test")
    live.finish()
    LiveRun(tmp_path, resume=list_checkpoints(run)[-1], **options).start().finish()
    assert_exact(run, 2, 3)
    history = open_history(run)
    excerpt = write_excerpt(history, history.rounds[2] + 1, tmp_path)
    kept = open_history(excerpt)
    assert_exact(excerpt, *(kept.state_at(start + 1).round for start in kept.rounds))


def test_episodes_of_two_ranks_are_reproduced(tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "esper"]
    options = "--no-tui --envs 5 --rounds 2 --steps 6 --training.samples-per-epoch 256 --amp fp16 --devices cpu:0 cpu:1"
    subprocess.run(
        [*launcher, *options.split()],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=300,
    )
    run = only_run(tmp_path)
    assert_exact(run, 2)
    found = episodes(run, 2)
    references = [simulate(found, WITHOUT_GROWTH, lanes=lanes)[1::2] for lanes in (LANES[:1], LANES)]
    assert len(references[0]) == 5
    assert [one.trajectory for one in references[0]] == [one.trajectory for one in references[1]]


def test_repeated_change_does_not_depend_on_lanes(tmp_path: Path) -> None:
    found = episodes(record(tmp_path), 1)
    changes = [without_decision(found[0], step.step) for step in found[0].steps if step.op != "wait"][:3]
    one, two = (simulate(found[:1], *changes, repeat=2, lanes=lanes) for lanes in (("cpu:0",), LANES))
    assert one == two
    assert [result.change for result in one] == [UNCHANGED, *changes]
