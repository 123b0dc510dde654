"""A network that is harvested from a checkpoint is the one that the run trained."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch

from esper.common.control import RequestKind
from esper.common.domain import Stage
from esper.common.score_scale import PERCENT
from esper.networks.seeds.network import call_model
from esper.recordings import events as ev
from esper.studies.harvest.checkpoint import _best_env, harvest_checkpoint
from tests.runs import LiveRun


def test_harvest_of_a_blending_seed_equals_the_live_network(tmp_path: Path) -> None:
    """An alpha below 1 is nowhere but in the lifecycle state."""
    live = LiveRun(tmp_path, task="digits", envs=2, steps=6, policy="plan", plan="1:conv_light@early").start_paused(4)
    live.control.put(RequestKind.CHECKPOINT, "test")
    path = Path(live.wait_for(ev.CheckpointSaved).path)
    network = live.run.pool.envs[1].network

    grown = harvest_checkpoint(path, env=1)

    (seed,) = grown.structure.seeds
    assert network.slots[0].stage is Stage.BLENDING
    assert 0.0 < seed.alpha == network.slots[0].alpha < 1.0
    with torch.no_grad():
        expected = network.eval()(grown.sample, network.alphas())
        assert torch.equal(call_model(grown.model.eval(), grown.sample), expected)
    assert (grown.structure.provenance.round, grown.structure.provenance.step) == (1, 4)
    live.control.put(RequestKind.ABANDON, "test")
    live.finish()


def test_best_env_is_the_first_with_the_best_finite_last_score() -> None:
    def episodes(*scores: list[float]) -> list[dict[str, Any]]:
        return [{"host_width": 1.0, "view": {"scores": of_env}} for of_env in scores]

    assert _best_env(episodes([0.9, 0.5], [math.nan], [0.1, 0.7], [0.7], [math.inf], []), PERCENT) == 2
    assert _best_env(episodes([math.nan], []), PERCENT) == 0
    wide, host = episodes([0.9], [0.1])
    assert _best_env([wide | {"host_width": 2.0}, host], PERCENT) == 1
    assert _best_env([wide | {"host_width": 2.0}], PERCENT) is None
