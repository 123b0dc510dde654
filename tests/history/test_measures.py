"""A measure of a run is one number, whether it is read from the list of runs or from the summary."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from esper.history.history import open_history
from esper.history.measures import LISTED, SMOOTHED_ROUNDS
from esper.history.run_info import read_run_info
from esper.history.summary import summarise
from esper.telemetry import events as ev
from tests.factory import START, example_run
from tests.recording.recordings import fold, recording, write_segment

RUN = [
    msgspec.structs.replace(event, episode_return=0.1 * index, parameter_ratio=1 + 0.01 * index)
    if isinstance(event, ev.EpisodeEnded)
    else event
    for index, event in enumerate(example_run(envs=3, rounds=3, steps=4))
]
LAST_END = max(index for index, event in enumerate(RUN) if isinstance(event, ev.EpisodeEnded))


@pytest.mark.parametrize("length", [1, len(RUN) // 3, LAST_END - 1, LAST_END, LAST_END + 1, len(RUN)])
@pytest.mark.parametrize("segments", [1, 2])
def test_list_and_summary_have_the_same_numbers(length: int, segments: int, tmp_path: Path) -> None:
    """Some lengths end among the ends of a round's episodes."""
    cut = length if segments == 1 else length // 2
    for number, (start, stop) in enumerate([(0, cut), (cut, length)][:segments], 1):
        path = write_segment(tmp_path / "run", number, recording(RUN[start:stop], fold(RUN[:start])))
        os.utime(path, (START, START))
    info = read_run_info(tmp_path / "run", START, START)
    summary = summarise(open_history(tmp_path / "run"), START)
    assert summary is not None
    for name, measure in LISTED.items():
        assert measure.of_info is not None
        if name == "smoothed":
            medians = [finished.score.median for finished in summary.finished][-SMOOTHED_ROUNDS:]
            expected = sum(medians) / len(medians) if medians else None
        else:
            expected = measure.in_summary(summary)
        assert measure.of_info(info) == (None if expected is None else pytest.approx(expected)), name
