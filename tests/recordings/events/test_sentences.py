"""Sentences that describe events."""

from __future__ import annotations

import pytest

from esper.recordings.events.sentences import describe_event, format_lanes
from tests.factory import run_started


def round_robin(envs: int, lanes: int) -> list[str]:
    return [f"cpu:{env % lanes}" for env in range(envs)]


@pytest.mark.parametrize(
    ("lanes", "sentence"),
    [
        (round_robin(16, 2), "16 envs on cpu:0 ×8, cpu:1 ×8"),
        (["cpu:0"], "1 env on cpu:0 ×1"),
        (round_robin(3, 2), "3 envs on cpu:0 ×2, cpu:1 ×1"),
        (["cuda:1", "cpu:0", "cuda:1"], "3 envs on cuda:1 ×2, cpu:0 ×1"),
        (round_robin(64, 16), "64 envs on 16 lanes, cpu:0 to cpu:15, ×4"),
        (round_robin(20, 16), "20 envs on 16 lanes, cpu:0 to cpu:15, ×1 to ×2"),
    ],
)
def test_env_assignment_is_counted_by_lane(lanes: list[str], sentence: str) -> None:
    assert format_lanes(lanes) == sentence


def test_run_start_sentence_gives_the_env_assignment() -> None:
    started = run_started(envs=5)
    severity, text = describe_event(started) or ("", "")
    assert severity == "info"
    assert text == f"run {started.run}: ppo on digits_impaired, 5 envs on cpu:0 ×3, cpu:1 ×2"
