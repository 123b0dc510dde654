"""`benchmarks/headroom.py` makes its tables from the file of a family, and continues after an interruption."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "headroom.py"
OWN_FAMILY = """
import esper
from esper.tasks import load_task

task = esper.Family("own", [load_task("digits")], {"learning_rate": esper.Setting([0.05, 0.001])})
"""


@pytest.mark.slow
def test_tables_are_made_from_a_file_and_finished_episodes_are_not_played_again(tmp_path: Path) -> None:
    (tmp_path / "own_family.py").write_text(OWN_FAMILY)
    command = [
        *(sys.executable, str(BENCHMARK), "--task", "own_family.py", "--contexts", "8", "--steps", "8"),
        *("--blueprints", "norm", "--rents", "0.002", "--devices", "cpu:0", "--seed", "1", "2"),
    ]
    first, second = (
        subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True) for _ in range(2)
    )
    assert first.stdout == second.stdout
    assert first.stderr.count("order 1, context 7") == 2
    assert "context" not in second.stderr
    for title in ("8 contexts of random seed 1", "8 contexts of random seed 2", "all contexts"):
        assert title in first.stdout
    assert first.stdout.count("what is visible at step 0") == 6  # two rents in each of three parts
