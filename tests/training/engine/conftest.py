"""A run that tests compare others with."""

from __future__ import annotations

import pytest

from esper.recordings import events as ev
from tests.runs import LiveRun, computed, recorded


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[ev.AnyEvent]:
    """Events that an uninterrupted run computes."""
    live = LiveRun.finished(tmp_path_factory.mktemp("whole"))
    return computed(recorded(live.run.directory))
