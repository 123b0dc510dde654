"""A population on two GPUs, where there are none: what is computed where, and when the host waits."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from esper.engine.governor import LastGood
from esper.growth.stages import Stage
from tests.engine.populations import digits, population, script
from tests.engine.pretended_gpus import pretended_gpus

GPUS = ("cuda:0", "cuda:1")
STEPS = 12


@pytest.mark.parametrize(
    ("amp", "scaler", "counterfactual"),
    [
        pytest.param("bf16", "env", "ablation", marks=pytest.mark.slow),
        ("fp16", "env", "shapley"),
        pytest.param("fp16", "device", "ablation", marks=pytest.mark.slow),
        pytest.param("off", "env", "shapley", marks=pytest.mark.slow),
    ],
)
def test_an_episode_stays_on_its_device_and_the_host_waits_once_in_a_step(
    amp: str, scaler: str, counterfactual: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    digits()  # read before there are tensors without numbers
    options = {"amp": amp, "scaler": scaler, "counterfactual": counterfactual, "steps": STEPS}
    with (
        pretended_gpus(monkeypatch) as waits,
        population(3, GPUS, lambda task: replace(task, samples_per_epoch=2 * task.batch_size), **options) as pool,
    ):
        kept = [LastGood(env) for env in pool.envs]
        pool.reset(0)
        stages = set[Stage]()
        for step in range(STEPS):
            actions = [script(env.index, step, env.network.slots) for env in pool.envs]
            waits.clear()
            pool.step(actions, 0, step)
            assert waits == Counter(event=len(GPUS))
            stages |= {slot.stage for env in pool.envs for slot in env.network.slots}
            for good in kept:
                good.keep()
            pool.tick()
        assert stages >= {Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.FOSSILIZED}
        for good in kept:
            good.give_back()
        pool.test()
        assert waits == Counter(event=2 * len(GPUS))
        for env in pool.envs:
            assert {parameter.device.index for parameter in env.network.parameters()} == {env.index % 2}
