"""Plugin of pytest for mutants: selects tests, names the test that runs to coverage.py, and reports results."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coverage
import pytest

SELECTED_TESTS = "MUTANTS_SELECTED_TESTS"
"""Environment variable with the path of a JSON list: the tests to run, in their order. Without it, all tests run."""
REPORT = "MUTANTS_REPORT"
"""Environment variable with the path of the report: a line of JSON for each phase of a test."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    listed = os.environ.get(SELECTED_TESTS)
    if listed is not None:
        places = {test: place for place, test in enumerate(json.loads(Path(listed).read_text()))}
        items[:] = sorted((item for item in items if item.nodeid in places), key=lambda item: places[item.nodeid])
    _report(collected=len(items))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    measured = coverage.Coverage.current()  # started by coverage.py itself; None while mutants run
    if measured is not None:
        measured.switch_context(item.nodeid)
    result = yield
    if measured is not None:
        measured.switch_context("")
    return result


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _report(test=report.nodeid, seconds=report.duration, failed=report.failed)


def _report(**values: Any) -> None:
    with Path(os.environ[REPORT]).open("a") as file:
        file.write(json.dumps(values) + "\n")
