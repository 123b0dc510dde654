"""Random sequences of faults. `python -m tests.faults.random_faults --minutes 60` plays as many as fit into an hour."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.programs import ProgramServer
from tests.faults.random_faults import FAULTS, Sequence, program_server

PLANNED = 2
"""Number of faults that a sequence plays before the drawn ones, so that all sequences together play every fault."""


@pytest.fixture(scope="module")
def surroundings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults") / "surroundings"


@pytest.fixture(scope="module")
def server(surroundings: Path) -> Iterator[ProgramServer]:
    with program_server(surroundings) as server:
        yield server


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(len(FAULTS) // PLANNED))
def test_random_faults_break_no_promise(seed: int, tmp_path: Path, server: ProgramServer, surroundings: Path) -> None:
    sequence = Sequence(seed, tmp_path, server, surroundings, FAULTS[seed * PLANNED :][:PLANNED])
    try:
        sequence.play()
    except BaseException:
        print("; ".join(sequence.story))  # pytest shows it with the failure
        raise
