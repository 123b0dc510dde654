from __future__ import annotations

import random
import re
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from esper.domain import Severity
from esper.history.history import open_history
from esper.history.log_index import BLOCK_LINES, LogIndex
from esper.history.log_search import LOG_CATEGORIES, LogFilter, LogRow, LogSearch
from esper.history.run_log import RunLog
from esper.history.unread_log import UnreadLog
from esper.recording.segments import list_segments
from esper.telemetry import events as ev
from esper.telemetry.codec import encode_json
from esper.telemetry.log_lines import LogLine
from esper.telemetry.sentences import UNLOGGED_EVENTS
from esper.telemetry.state import Keyframe
from tests.factory import example_run, stamp
from tests.recording.recordings import fold, lines, recording, write_segment


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


def index_of(all_lines: list[LogLine]) -> LogIndex:
    index = LogIndex()
    index.extend(all_lines)
    return index


def rows(search: LogSearch) -> list[LogRow]:
    return [search.row(number) for number in range(len(search))]


def found(index: LogIndex, log_filter: LogFilter, opened: set[int] | None = None) -> list[str]:
    search = LogSearch(index, log_filter, opened or set())
    while not search.is_done:
        search.advance(1.0)
    assert search.num_lines == sum(row.num_lines for row in rows(search) if not row.in_group)
    return [row.text for row in rows(search)]


def test_every_logged_event_type_has_one_category() -> None:
    logged = {kind.__name__ for kind in get_args(ev.AnyEvent) if kind not in UNLOGGED_EVENTS}
    categorised = [kind for kinds in LOG_CATEGORIES.values() for kind in kinds]
    assert sorted(categorised) == sorted(logged)


def test_index_returns_all_lines_in_few_bytes() -> None:
    expected = messages(4 * BLOCK_LINES + 5)
    index = index_of(expected)
    assert [index.line(number) for number in range(len(index))] == expected
    assert index.num_bytes < 32 * len(index)
    assert [index.count_until(seq) for seq in (0, 1, BLOCK_LINES, BLOCK_LINES + 1, 10**6)] == [
        0, 1, BLOCK_LINES, BLOCK_LINES + 1, len(expected),
    ]  # fmt: skip


@pytest.mark.parametrize("seq", [0, 3, BLOCK_LINES, BLOCK_LINES + 1, 2 * BLOCK_LINES + 9])
def test_index_drops_undone_lines(seq: int) -> None:
    expected = messages(2 * BLOCK_LINES + 20)
    index = index_of(expected)
    index.truncate_after(seq)
    assert [index.line(number) for number in range(len(index))] == expected[:seq]
    assert index.last_seq == seq
    index.extend(expected)
    assert [index.line(number) for number in range(len(index))] == expected


def test_history_indexes_the_lines_of_all_events(tmp_path: Path) -> None:
    run = example_run()
    write_segment(tmp_path, 1, recording(run))
    history = open_history(tmp_path)
    assert [history.log.line(number) for number in range(len(history.log))] == fold(run).log


def test_history_drops_lines_of_undone_events(tmp_path: Path) -> None:
    run = stamp([*example_run()[:30], *(ev.Logged(severity="info", text=f"undone {i}") for i in range(9))])
    restored = fold(run[:20])
    again = stamp([ev.Logged(severity="info", text="after the restore")], first=21)
    write_segment(tmp_path, 1, recording(run))
    write_segment(tmp_path, 2, recording(again, restored))
    history = open_history(tmp_path)
    texts = [history.log.line(number).text for number in range(len(history.log))]
    assert texts == [line.text for line in fold(again, restored).log]
    assert texts[-1] == "after the restore"


def test_history_of_an_excerpt_has_the_lines_before_it(tmp_path: Path) -> None:
    run = example_run()
    path = tmp_path / "excerpt.jsonl"
    path.write_bytes(recording(run[60:], fold(run[:60])))
    history = open_history(path)
    assert [history.log.line(number).seq for number in range(len(history.log))] == [line.seq for line in fold(run).log]


def test_filters_by_severity_env_category_and_text() -> None:
    index = index_of([*messages(40), *planted(2, first=41)])
    assert found(index, LogFilter(min_severity="warning")) == [f"Message {seq}" for seq in (7, 14, 21, 28, 35)]
    assert found(index, LogFilter(env=3)) == ["Message 7", "Message 35"]
    assert found(index, LogFilter(category="seeds", env=0)) == ["env 00 early norm planted"]
    assert found(index, LogFilter(text="mESSAGE 3")) == [f"Message {seq}" for seq in (3, *range(30, 40))]


def test_newest_lines_are_found_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esper.history.log_search.CHUNK_LINES", 10)
    search = LogSearch(index_of(messages(100)), LogFilter(text="message"), set())
    search.advance(0.0)
    newest_first = rows(search)
    assert 10 <= len(newest_first) < 20
    assert newest_first[-1].text == "Message 100"
    assert not search.is_done
    while not search.is_done:
        search.advance(0.0)
    assert [row.line.seq for row in rows(search)] == list(range(1, 101))


def test_equal_lines_of_a_step_are_one_row() -> None:
    other = messages(1, first=4)
    index = index_of([*planted(3), *[_at(line, 1) for line in other], *planted(2, first=5), *planted(1, 7, step=2)])
    assert found(index, LogFilter()) == ["5 seeds planted", "Message 4", "env 00 early norm planted"]
    opened = found(index, LogFilter(), {1})
    assert opened[:2] == ["5 seeds planted", "env 00 early norm planted"]
    assert opened[6:] == ["Message 4", "env 00 early norm planted"]
    assert len(found(index, LogFilter(text="planted"))) == 6


def test_group_grows_with_its_step_and_keeps_its_place() -> None:
    index = index_of([*messages(3), *planted(3, first=4, step=9)])
    search = LogSearch(index, LogFilter(), set())
    search.advance(1.0)
    search.toggle(len(search) - 1)
    assert [row.text for row in rows(search)][3:] == [
        "3 seeds planted", *(f"env {env:02d} early norm planted" for env in range(3)),
    ]  # fmt: skip
    index.extend(planted(5, first=4, step=9))
    search.advance(1.0)
    assert [row.text for row in rows(search)][3] == "5 seeds planted"
    assert len(search) == 9
    assert search.find(4, is_group=True) == 3
    assert search.find(4) == 4
    assert search.find(2) == 1
    search.toggle(3)
    assert len(search) == 4
    assert search.num_lines == 8


def test_few_equal_lines_are_not_grouped() -> None:
    mixed = [*planted(1), _at(messages(1, first=2)[0], 1), *planted(1, first=3)]
    assert found(index_of(mixed), LogFilter()) == [
        "env 00 early norm planted",
        "Message 2",
        "env 00 early norm planted",
    ]


def test_anomalies_are_grouped_by_rule_and_severity() -> None:
    severities: list[tuple[str, Severity]] = [("r", "warning"), ("r", "error"), ("other", "warning")]
    found_events = [
        ev.AnomalyFound(rule=rule, severity=severity, where=f"env {env}", env=env, value=1.0, text=f"env {env} is bad")
        for rule, severity in severities
        for env in range(3)
    ]
    state = fold(stamp([*example_run()[:1], *found_events]))
    texts = found(index_of(state.log[1:]), LogFilter())
    assert texts == ["3 envs: r", "3 envs: r", "3 envs: other"]


def test_search_starts_again_after_lines_were_dropped() -> None:
    index = index_of(messages(50))
    search = LogSearch(index, LogFilter(), set())
    search.advance(1.0)
    index.truncate_after(10)
    index.extend(messages(5, first=21))
    search.advance(1.0)
    assert [row.line.seq for row in rows(search)] == [*range(1, 11), *range(21, 26)]


def test_recording_with_old_log_lines_is_readable(tmp_path: Path) -> None:
    run = example_run()
    keyframe = encode_json(Keyframe.from_state(fold(run[:60])))
    old = re.sub(rb',"group":"[^"]*","step":\d+', b"", keyframe)
    assert len(old) < len(keyframe)
    path = tmp_path / "old.jsonl"
    path.write_bytes(old + b"\n" + lines(run[60:]))
    assert [line.seq for line in open_history(path).state_at(0).log] == [line.seq for line in fold(run[:60]).log]


def _at(line: LogLine, step: int) -> LogLine:
    return LogLine(**{**{field: getattr(line, field) for field in line.__struct_fields__}, "step": step})


def write_three_segments(folder: Path) -> list[ev.AnyEvent]:
    run = example_run(rounds=6)
    parts = [0, len(run) // 3, 2 * len(run) // 3, len(run)]
    for number, (start, stop) in enumerate(pairwise(parts), start=1):
        write_segment(folder, number, recording(run[start:stop], fold(run[:start])))
    return run


def test_indexes_are_filled_in_several_threads_at_once() -> None:
    # Compression releases the interpreter lock, so threads that share a compressor write each other's data.
    random_lines = [
        msgspec.structs.replace(line, text=random.Random(line.seq).randbytes(400).hex()) for line in messages(4096)
    ]
    indexes = [LogIndex() for _ in range(4)]
    threads = [threading.Thread(target=index.extend, args=(random_lines,)) for index in indexes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index in indexes:
        assert [index.line(number) for number in range(len(index))] == random_lines


def log_rows(log: RunLog) -> list[int]:
    return [log.row(number).line.seq for number in range(len(log))]


def test_unread_segments_are_searched_before_the_history_reads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("esper.recording.segments.READ_CHUNK_BYTES", 4096)
    run = write_three_segments(tmp_path)
    expected = [line.seq for line in fold(run).log if "policy update" in line.text]
    history = open_history(tmp_path, 0.0)
    length = history.length
    log = RunLog()
    log.set_filter(text="policy update")
    log.update(history, (), 1.0)
    while not log.num_lines:  # a thread reads the last two segments
        history.poll(0.0)
        log.update(history, (), 1.0)
    assert history.length == length  # reading waits for the first line
    while len(log_rows(log)) < 3:
        log.update(history, (), 1.0)
    history.poll(0.0)
    assert log_rows(log)[-1] == expected[-1]
    fractions: list[float] = []
    while not history.is_fully_read:
        history.poll(0.0)
        log.update(history, (), 1.0)
        fractions.append(log.fraction_searched)
        found = log_rows(log)
        assert found == sorted(set(found))  # no line is found twice
    assert fractions[-1] == 1
    assert log_rows(log) == expected
    log.close()


def test_closing_a_search_lets_the_history_read_on(tmp_path: Path) -> None:
    write_three_segments(tmp_path)
    history, log = open_history(tmp_path, 0.0), RunLog()
    log.set_filter(text="no line has this text")
    log.update(history, (), 1.0)
    log.close()
    history.poll()
    assert history.is_fully_read


def test_lines_of_unread_segments_that_were_undone_are_left_out(tmp_path: Path) -> None:
    run = write_three_segments(tmp_path)
    restored = fold(run[: len(run) // 2])
    again = stamp([ev.Logged(severity="info", text="after the restore")], first=restored.seq + 1)
    write_segment(tmp_path, 4, recording(again, restored))
    unread = UnreadLog(list_segments(tmp_path)[1:])
    while len(unread.indexes) < 3:
        time.sleep(0.01)
    seqs = [index.line(number).seq for _, index in sorted(unread.indexes.items()) for number in range(len(index))]
    assert seqs == [line.seq for line in fold(again, restored).log if line.seq > len(run) // 3]


def test_rows_of_what_was_read_are_dropped_within_a_step() -> None:
    index = index_of([*messages(4), *planted(5, first=5, step=2), *planted(4, first=10, step=3)])
    search = LogSearch(index, LogFilter(), set())
    search.advance(1.0)
    search.drop_until(6)
    search.advance(1.0)
    assert [row.text for row in rows(search)] == ["3 seeds planted", "4 seeds planted"]
    assert search.is_done
    search.drop_until(13)
    search.advance(1.0)
    assert rows(search) == []
    assert search.num_lines == 0
