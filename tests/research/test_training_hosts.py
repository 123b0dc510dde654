"""Candidates of a search meet the same hosts, those of the training run."""

from __future__ import annotations

from contextlib import closing

from research.training_hosts import TrainingHosts

from esper.common.configuration.config import Config
from esper.networks.tasks.prepare import prepare_task
from esper.training.policy.baselines import StaticAgent


def test_candidates_meet_the_same_host_and_another_one_each_time() -> None:
    prepared = prepare_task(Config(task="digits_family", steps=2))
    with closing(TrainingHosts(prepared, prepared.config, ["cpu:0"], lambda _: None)) as hosts:
        returns = [hosts.play([StaticAgent(), StaticAgent(), StaticAgent()], host) for host in range(3)]
    assert all(len(set(of_host)) == 1 for of_host in returns)
    assert len({of_host[0] for of_host in returns}) == 3
