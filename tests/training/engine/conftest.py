"""A run that tests compare others with, and a directory with the own tasks of a test."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from esper.recordings import events as ev
from tests.runs import LiveRun, computed, recorded, task_file


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[ev.AnyEvent]:
    """Events that an uninterrupted run computes."""
    live = LiveRun.finished(tmp_path_factory.mktemp("whole"))
    return computed(recorded(live.run.directory))


@pytest.fixture
def directory(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory, with the tasks in `TASK` of the test's module; see `task_reference`."""
    file = task_file(tmp_path)
    file.write_text(request.module.TASK)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop(file.stem, None)
