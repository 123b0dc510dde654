from __future__ import annotations

import math
from pathlib import Path
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from esper.common.domain import Severity
from esper.recordings import events as ev
from esper.recordings.events.sentences import UNLOGGED_EVENTS
from esper.recordings.history.history import History, open_history
from esper.recordings.history.log_database import LOG_CATEGORIES, MAX_SEQ, MIN_SEQ, LogDatabase, LogFilter
from esper.recordings.history.run_log import LogRow, RunLog
from esper.recordings.state.log_lines import LogLine
from tests.factory import example_run, stamp
from tests.recordings.files.recordings import fold, recording, write_segment


def messages(count: int, first: int = 1) -> list[LogLine]:
    """Return lines with rising event numbers, five a step; every seventh is a warning about an env."""
    return [
        LogLine(
            seq=seq,
            time=float(seq),
            severity="warning" if seq % 7 == 0 else "info",
            kind="Logged",
            text=f"Message {seq}",
            env=seq % 4 if seq % 7 == 0 else None,
            step=seq // 5,
        )
        for seq in range(first, first + count)
    ]


def planted(count: int, first: int = 1, step: int = 1) -> list[LogLine]:
    return [
        LogLine(
            seq=first + i, time=0.0, severity="info", kind="SeedMoved", text=f"env {i:02d} early norm planted", env=i,
            group="seeds planted", step=step,
        )
        for i in range(count)
    ]  # fmt: skip


def database_of(all_lines: list[LogLine]) -> LogDatabase:
    log = LogDatabase()
    log.extend(all_lines)
    return log


def stored(log: LogDatabase) -> list[LogLine]:
    """Return all lines. Every line contains a space."""
    return [log.line(seq) for seq, _, _ in log.groups(LogFilter(text=" "), MIN_SEQ, MAX_SEQ)]


def search(source: History | list[LogLine], log: RunLog | None = None, **conditions: Any) -> RunLog:
    """Search a history, or the newest lines of a live run without a history."""
    log = RunLog() if log is None else log
    if conditions:
        log.set_filter(**conditions)
    log.update(*((source, ()) if isinstance(source, History) else (None, source)), math.inf)
    return log


def rows(log: RunLog) -> list[LogRow]:
    found = [log.row(number) for number in range(len(log))]
    assert log.num_lines == sum(row.num_lines for row in found if not row.in_group)
    return found


def texts(log: RunLog) -> list[str]:
    return [row.text for row in rows(log)]


def seqs(log: RunLog) -> list[int]:
    return [row.line.seq for row in rows(log)]


def test_every_logged_event_type_has_one_category() -> None:
    logged = {kind.__name__ for kind in get_args(ev.AnyEvent) if kind not in UNLOGGED_EVENTS}
    categorised = [kind for kinds in LOG_CATEGORIES.values() for kind in kinds]
    assert sorted(categorised) == sorted(logged)


@pytest.mark.parametrize("seq", [0, 3, 39, 40])
def test_log_drops_undone_lines(seq: int) -> None:
    expected = messages(40)
    log = database_of(expected)
    log.truncate_after(seq)
    assert stored(log) == expected[:seq]
    assert log.last_seq == seq
    log.extend(expected[seq:])
    assert stored(log) == expected


def test_log_keeps_unread_lines_if_read_ones_are_undone() -> None:
    expected = messages(40)
    log = database_of(expected[:20])
    log.add_unread(messages(5, first=18) + expected[30:])
    log.truncate_after(10)
    assert stored(log) == expected[:10] + expected[20:22] + expected[30:]
    log.drop_unread()
    assert stored(log) == expected[:10]


def test_history_stores_the_lines_of_all_events(tmp_path: Path) -> None:
    run = example_run()
    write_segment(tmp_path, 1, recording(run))
    assert stored(open_history(tmp_path).log) == fold(run).log


def test_history_drops_lines_of_undone_events(tmp_path: Path) -> None:
    run = stamp([*example_run()[:30], *(ev.Logged(severity="info", text=f"undone {i}") for i in range(9))])
    restored = fold(run[:20])
    again = stamp([ev.Logged(severity="info", text="after the restore")], first=21)
    write_segment(tmp_path, 1, recording(run))
    write_segment(tmp_path, 2, recording(again, restored))
    history = open_history(tmp_path)
    found = [line.text for line in stored(history.log)]
    assert found == [line.text for line in fold(again, restored).log]
    assert found[-1] == "after the restore"


def test_history_of_an_excerpt_has_the_lines_before_it(tmp_path: Path) -> None:
    run = example_run()
    path = tmp_path / "excerpt.jsonl"
    path.write_bytes(recording(run[60:], fold(run[:60])))
    assert [line.seq for line in stored(open_history(path).log)] == [line.seq for line in fold(run).log]


def test_filters_by_severity_env_category_and_text() -> None:
    lines = [*messages(40), *planted(2, first=41)]
    assert texts(search(lines, min_severity="warning")) == [f"Message {seq}" for seq in (7, 14, 21, 28, 35)]
    assert texts(search(lines, min_severity="error")) == []
    assert texts(search(lines, env=3)) == ["Message 7", "Message 35"]
    assert texts(search(lines, category="seeds", env=0)) == ["env 00 early norm planted"]
    assert texts(search(lines, text="mESSAGE 3")) == [f"Message {seq}" for seq in (3, *range(30, 40))]
    assert texts(search(lines, min_severity="warning", env=3, text="5")) == ["Message 35"]


@pytest.mark.parametrize(
    ("text", "typed"), [("STRASSE", "straße"), ("Größe É", "gröSSe é"), ("50 %_", "%_"), ("a\0Bc", "bC")]
)
def test_text_is_found_in_any_case(text: str, typed: str) -> None:
    line = replace(messages(1)[0], text=text)
    assert texts(search([line, *messages(3, first=2)], text=typed)) == [text]


@pytest.mark.parametrize("env", [-1, 2**16 - 1, 2**70])
def test_line_of_a_damaged_env_is_about_no_env(env: int) -> None:
    lines = [replace(messages(1)[0], env=env)]
    [row] = rows(search(lines))
    assert row.line.env is None
    assert not rows(search(lines, env=env if env < 2**63 else 0))


def test_log_survives_damaged_numbers(tmp_path: Path) -> None:
    first, second, third, *others = messages(6)
    write_segment(tmp_path, 1, recording([]))
    history = open_history(tmp_path)
    log = RunLog()
    for block in (
        [first],
        [replace(second, seq=2**63)],
        [replace(third, step=2**70)],
        [replace(second, seq=10**15)],
        others,
    ):
        history.log.extend(block)
        search(history, log)
    assert seqs(log) == [1, 4, 5, 6, 10**15]


def test_newest_lines_are_found_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esper.recordings.history.log_database.CHUNK_LINES", 10)
    log, lines = RunLog(), messages(100)
    log.set_filter(text="message")
    log.update(None, lines, 0.0)
    assert 10 <= len(log) < 20
    assert seqs(log)[-1] == 100
    assert log.is_waiting
    fractions: list[float] = []
    while log.is_waiting:
        fractions.append(log.fraction_searched)
        log.update(None, lines, 0.0)
    assert fractions == sorted(set(fractions))
    assert log.fraction_searched == 1
    assert seqs(log) == list(range(1, 101))


def test_equal_lines_of_a_step_are_one_row() -> None:
    other = replace(messages(1, first=4)[0], step=1)
    lines = [*planted(3), other, *planted(2, first=5), *planted(1, 7, step=2)]
    log = search(lines)
    assert texts(log) == ["5 seeds planted", "Message 4", "env 00 early norm planted"]
    log.toggle(0)
    opened = texts(log)
    assert opened[:2] == ["5 seeds planted", "env 00 early norm planted"]
    assert opened[6:] == ["Message 4", "env 00 early norm planted"]
    assert [log.find(seq) for seq in (1, 3, 4, 5, 7)] == [1, 3, 6, 4, 7]
    assert len(search(lines, log, text="planted")) == 6


def test_group_grows_with_its_step_and_keeps_its_place() -> None:
    log = search([*messages(3), *planted(3, first=4, step=9)])
    log.toggle(len(log) - 1)
    assert texts(log)[3:] == ["3 seeds planted", *(f"env {env:02d} early norm planted" for env in range(3))]
    search([*messages(3), *planted(5, first=4, step=9)], log)
    assert texts(log)[3] == "5 seeds planted"
    assert len(log) == 9
    assert log.find(4, is_group=True) == 3
    assert log.find(4) == 4
    assert log.find(2) == 1
    log.toggle(3)
    assert len(log) == 4
    assert log.num_lines == 8


def test_few_equal_lines_are_not_grouped() -> None:
    mixed = [*planted(1), replace(messages(1, first=2)[0], step=1), *planted(1, first=3)]
    assert texts(search(mixed)) == ["env 00 early norm planted", "Message 2", "env 00 early norm planted"]


def test_anomalies_are_grouped_by_rule_and_severity() -> None:
    severities: list[tuple[str, Severity]] = [("r", "warning"), ("r", "error"), ("other", "warning")]
    found_events = [
        ev.AnomalyFound(rule=rule, severity=severity, where=f"env {env}", env=env, value=1.0, text=f"env {env} is bad")
        for rule, severity in severities
        for env in range(3)
    ]
    state = fold(stamp([*example_run()[:1], *found_events]))
    assert texts(search(state.log[1:])) == ["3 envs: r", "3 envs: r", "3 envs: other"]


def test_search_starts_again_after_a_restore_undid_the_newest_lines() -> None:
    log = search(messages(50))
    search([*messages(10), *messages(5, first=21)], log)
    assert seqs(log) == [*range(1, 11), *range(21, 26)]
    search([], log)
    assert seqs(log) == []
    assert not log.is_waiting


def test_search_starts_again_after_read_lines_were_undone(tmp_path: Path) -> None:
    write_segment(tmp_path, 1, recording([]))
    history = open_history(tmp_path)
    history.log.extend(messages(50))
    log = search(history)
    history.log.truncate_after(10)
    history.log.extend(messages(5, first=21))
    search(history, log)
    assert seqs(log) == [*range(1, 11), *range(21, 26)]


def test_group_of_which_the_history_has_read_a_part_is_one_row(tmp_path: Path) -> None:
    write_segment(tmp_path, 1, recording([]))
    history, log, lines = open_history(tmp_path), RunLog(), planted(8)
    history.log.extend(lines[:5])
    log.update(history, lines[:6], math.inf)
    log.update(history, lines, math.inf)
    assert texts(log) == ["8 seeds planted"]


def test_newest_lines_follow_those_that_the_history_has_read(tmp_path: Path) -> None:
    write_segment(tmp_path, 1, recording([]))
    history, log, lines = open_history(tmp_path), RunLog(), messages(60)
    for read, newest in ((0, lines[10:30]), (15, lines[20:40]), (15, lines[25:45]), (42, lines[40:60])):
        history.log.extend(lines[history.log.last_seq : read])
        log.update(history, newest, math.inf)
    assert seqs(log) == list(range(1, 61))


def test_search_continues_as_the_recording_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esper.recordings.files.segments.READ_CHUNK_BYTES", 2048)
    write_segment(tmp_path, 1, recording(example_run(rounds=6)))
    expected = rows(search(open_history(tmp_path), category="seeds"))
    assert any(row.num_lines > 1 for row in expected)
    history, log = open_history(tmp_path, 0.0), RunLog()
    log.set_filter(category="seeds")
    read_until: list[float] = []
    while not history.is_fully_read:
        history.poll(0.0)
        search(history, log)
        assert rows(log) == rows(search(history, category="seeds"))
        read_until.append(log.read_until or math.inf)
    assert read_until == sorted(read_until)
    assert len(set(read_until)) > 3
    assert log.fraction_searched == 1
    assert rows(log) == expected
