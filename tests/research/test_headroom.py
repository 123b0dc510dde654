"""`research/headroom.py` makes its tables from the file of a family, and continues after an interruption."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("sklearn")

from research import context_gain, headroom

OWN_FAMILY = """
import esper
from esper.tasks import load_task

task = esper.Family("own", [load_task("digits")], {"learning_rate": esper.Setting([0.05, 0.001])})
"""


@pytest.mark.slow
def test_tables_are_made_from_a_file_and_finished_episodes_are_not_played_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own_family.py").write_text(OWN_FAMILY)
    monkeypatch.chdir(tmp_path)
    command = [
        *("headroom.py", "--task", "own_family.py", "--contexts", "8", "--steps", "8"),
        *("--blueprints", "norm", "--devices", "cpu:0", "--seed", "1", "2"),
    ]
    monkeypatch.setattr(sys, "argv", command)
    monkeypatch.setattr(headroom, "RENTS", (0.002,))
    monkeypatch.setattr(context_gain, "PENALTIES", (1.0,))
    headroom.main()
    first = capsys.readouterr()
    headroom.main()
    second = capsys.readouterr()
    assert first.out == second.out
    assert first.err.count("order 1, context 7") == 2
    assert "context" not in second.err
    for title in ("8 contexts of random seed 1", "8 contexts of random seed 2", "all contexts"):
        assert title in first.out
    assert first.out.count("what is visible at step 0") == 6  # two rents in each of three parts
