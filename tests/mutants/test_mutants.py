"""Mutants of a tiny package are found or survive, and are recognised in another state of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("coverage", reason="the group dev is not installed")

from tests.mutants.__main__ import main
from tests.mutants.changes import changes_of

SOURCE = """\
def sign(number: int, zero: int) -> str:
    text = "negative" if number < zero else "other"
    return text
"""
TEST = """\
from tiny import numbers

def test_sign():
    assert numbers.sign(-2, 0) == "negative"
    assert numbers.sign(2, 0) == "other"
"""


def write_tree(tree: Path, source: str) -> Path:
    for path, text in {"src/tiny/numbers.py": source, "tests/test_numbers.py": TEST}.items():
        (tree / path).parent.mkdir(parents=True)
        (tree / path).write_text(text)
    return tree


def verdicts(results: Path) -> dict[tuple[str, str], str]:
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    return {(row["key"][2], row["key"][3]): row["verdict"] for row in rows}


@pytest.mark.slow  # pytest starts five times
def test_mutants_are_found_or_survive_and_can_be_repeated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = write_tree(tmp_path / "before", SOURCE)
    main(["--tree", str(tree), "--number", "2", "--save", str(tmp_path / "before.jsonl")])
    assert verdicts(tmp_path / "before.jsonl") == {
        ("<", "<="): "survived",  # no test calls sign(0, 0)
        ("return text", "return None"): "found",
    }
    assert "tests/test_numbers.py::test_sign" in capsys.readouterr().out

    moved = write_tree(tmp_path / "after", "\n\n" + SOURCE.replace("return text", "return str(text)"))
    repeat = ["--from", str(tmp_path / "before.jsonl"), "--save", str(tmp_path / "after.jsonl")]
    main(["--tree", str(moved), *repeat])
    assert verdicts(tmp_path / "after.jsonl") == {
        ("<", "<="): "survived",
        ("return text", "return None"): "gone",
    }
    assert "2 mutants: 0 found, 1 survived, 0 no test covers it, 1 gone" in capsys.readouterr().out


def test_changes_keep_the_line_numbers() -> None:
    source = "def f(a, b):\n    return not (\n        a is not\n        b\n    )  # why\n"
    changed = {change.apply(source.encode()).decode() for change in changes_of("f.py", source)}
    assert changed == {
        "def f(a, b):\n    return None\n\n\n  # why\n",
        "def f(a, b):\n    return not (\n        a is\n        b\n    )  # why\n",
    }
