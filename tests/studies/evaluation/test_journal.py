"""Journals: parts survive a kill, random seeds are used once, damage is named."""

from __future__ import annotations

import errno
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from esper.common.configuration.config import ConfigError
from esper.common.system import disk
from esper.common.system.process import package_digest
from esper.studies.evaluation.journal import FIRST_SEED, EvaluationKey, open_journal
from esper.training.engine import trained_policy

KEY = EvaluationKey(task="digits", episodes=2, checkpoints=["a"], code={}, package="p", torch="2.15.0", devices=["cpu"])


def never() -> float:
    raise AssertionError("a stored part was computed again")


def test_part_is_computed_once_and_kept(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, KEY, None)
    assert journal.is_new
    assert (journal.recall("one", float, lambda: 0.1), journal.recall("one", float, never)) == (0.1, 0.1)
    assert math.isnan(journal.recall("nan", float, lambda: math.nan))
    again = open_journal(tmp_path, KEY, None)
    assert (again.is_new, again.seed) == (False, journal.seed)
    assert again.recall("one", float, never) == 0.1
    assert math.isnan(again.recall("nan", float, never))
    assert again.has("nan")
    assert not again.has("two")


def test_line_that_a_kill_cut_off_is_computed_again(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, KEY, None)
    journal.recall("one", float, lambda: 0.1)
    journal.recall("two", float, lambda: 0.2)
    whole = journal.path.read_bytes()
    for size in range(whole.index(b'"two"'), len(whole)):
        journal.path.write_bytes(whole[:size])
        again = open_journal(tmp_path, KEY, None)
        assert again.recall("one", float, never) == 0.1
        assert again.recall("two", float, lambda: 0.2) == 0.2
        assert journal.path.read_bytes() == whole


def test_kill_while_a_journal_is_created_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill_disk(path: Path, content: bytes) -> None:
        path.write_bytes(content[:20])
        raise OSError(errno.ENOSPC, "No space left on device")

    journal = open_journal(tmp_path, KEY, None)
    with monkeypatch.context() as patched:
        patched.setattr(disk, "write_synced", fill_disk)
        with pytest.raises(OSError, match="No space"):
            journal.recall("one", float, lambda: 0.1)
    again = open_journal(tmp_path, KEY, None)
    assert (again.is_new, again.seed) == (True, FIRST_SEED)
    assert again.recall("one", float, lambda: 0.2) == 0.2
    assert open_journal(tmp_path, KEY, None).recall("one", float, never) == 0.2


def test_unfinished_evaluation_continues_and_a_finished_one_is_followed_by_the_next_seed(tmp_path: Path) -> None:
    def run(key: EvaluationKey = KEY, seed: int | None = None, *, finish: bool = True) -> int:
        journal = open_journal(tmp_path, key, seed)
        journal.recall("one", float, lambda: 0.1)
        if finish:
            journal.finish()
        return journal.seed

    other = msgspec.structs.replace(KEY, episodes=3)
    assert run(finish=False) == FIRST_SEED
    assert run(other) == FIRST_SEED + 1  # it continues no evaluation of another key
    assert run() == FIRST_SEED
    assert run() == FIRST_SEED + 2
    assert run(seed=7) == 7
    assert run() == FIRST_SEED + 3


def test_begun_evaluation_keeps_its_seed_from_others(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, KEY, None)
    journal.begin()
    assert open_journal(tmp_path, msgspec.structs.replace(KEY, episodes=3), None).seed == FIRST_SEED + 1
    again = open_journal(tmp_path, KEY, None)
    assert (again.is_new, again.seed) == (True, FIRST_SEED)
    assert again.recall("one", float, lambda: 0.1) == 0.1
    assert open_journal(tmp_path, KEY, None).recall("one", float, never) == 0.1


def test_journal_that_was_not_begun_uses_no_seed(tmp_path: Path) -> None:
    open_journal(tmp_path / "deep" / "er", KEY, 5)
    assert not list(tmp_path.iterdir())


def test_part_added_after_the_end_makes_the_evaluation_unfinished(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, KEY, 5)
    journal.recall("one", float, lambda: 0.1)
    journal.finish()
    again = open_journal(tmp_path, KEY, 5)
    assert again.is_finished
    again.recall("two", float, lambda: 0.2)
    assert not open_journal(tmp_path, KEY, 5).is_finished
    again.finish()
    assert open_journal(tmp_path, KEY, 5).is_finished


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (b"{\n", r"is damaged in line 2; delete it"),
        (b'{"part":"one","value":"text"}\n', r"has a damaged part 'one'; delete it"),
    ],
)
def test_damage_is_named(tmp_path: Path, line: bytes, sentence: str) -> None:
    journal = open_journal(tmp_path, KEY, 5)
    journal.recall("zero", float, lambda: 0.0)
    header = journal.path.read_bytes().splitlines(keepends=True)[0]
    journal.path.write_bytes(header + line)
    with pytest.raises(ConfigError, match=sentence):
        open_journal(tmp_path, KEY, 5).recall("one", float, never)


def test_file_that_is_no_journal_is_named(tmp_path: Path) -> None:
    (tmp_path / "seed-1.jsonl").write_bytes(b"\x00" * 100)
    with pytest.raises(ConfigError, match=r"seed-1\.jsonl is not the journal of an evaluation, or is damaged"):
        open_journal(tmp_path, KEY, None)


@pytest.mark.parametrize("change", [{"package": "q"}, {"torch": "2.14.1"}, {"devices": ["NVIDIA H100"]}])
def test_results_of_another_machine_or_version_are_kept_apart(tmp_path: Path, change: dict[str, Any]) -> None:
    journal = open_journal(tmp_path, KEY, 5)
    journal.recall("one", float, lambda: 0.1)
    other = open_journal(tmp_path, msgspec.structs.replace(KEY, **change), 5)
    assert other.is_new
    assert not open_journal(tmp_path, KEY, 5).is_new


def test_digest_of_the_package_covers_the_trained_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    read = Path.read_bytes
    assert package_digest() == package_digest()
    before = package_digest.__wrapped__()
    policy = trained_policy.SHIPPED.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(
            Path, "read_bytes", lambda path: policy + b" " if path == trained_policy.SHIPPED else read(path)
        )
        assert package_digest.__wrapped__() != before
