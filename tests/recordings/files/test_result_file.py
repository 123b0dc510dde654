"""Files of results after a kill."""

from __future__ import annotations

from pathlib import Path

import pytest

from esper.recordings.files.result_file import remove_partial_line

LONG = b"x" * 10_000
"""Longer than several of the blocks that are read."""


@pytest.mark.parametrize(
    ("content", "whole"),
    [
        (b"", b""),
        (b"1\n", b"1\n"),
        (b"1\n2", b"1\n"),
        (b"1\n" + LONG, b"1\n"),
        (LONG + b"\n" + LONG, LONG + b"\n"),
        (LONG, b""),
    ],
)
def test_only_what_follows_the_last_end_of_a_line_is_removed(content: bytes, whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(content)
    remove_partial_line(path)
    assert path.read_bytes() == whole
