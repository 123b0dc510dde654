"""Floods of the user's code: cut, counted, and bounded in memory."""

from __future__ import annotations

import io
import multiprocessing
import sys
import threading
import tracemalloc
from contextlib import redirect_stdout

import pytest

from esper.training.lanes.printed_lines import (
    MAX_CHARACTERS,
    MAX_LINE_CHARACTERS,
    MAX_LINES,
    MAX_UNFINISHED_LINES,
    Printed,
    PrintedLines,
    print_for_worker,
)


def test_long_line_is_cut_with_a_count() -> None:
    with PrintedLines(of_main_thread=True) as lines:
        print("x" * 600, end="")
        print("y" * 600 + "\nnext")
        assert lines.take().for_log() == ["x" * 600 + "y" * 400 + " … 200 more characters", "next"]


def test_flood_of_lines_is_counted_and_the_next_one_is_shorter() -> None:
    with PrintedLines(of_main_thread=True) as lines:
        for kept in (MAX_LINES, MAX_LINES // 10):
            for number in range(MAX_LINES + 11):
                print(number)
            assert lines.take() == ([str(number) for number in range(kept)], MAX_LINES + 11 - kept)
        print("quiet")
        assert lines.take() == (["quiet"], 0)
        print("\n".join(["z" * 5_000] * 3_000))
        found = lines.take()
        assert found.dropped == 3_000 - len(found.lines)
        assert sum(map(len, found.lines)) < MAX_CHARACTERS + MAX_LINE_CHARACTERS + 100


def test_streams_without_an_unfinished_line_take_no_room() -> None:
    with PrintedLines(of_main_thread=True) as lines:
        for _ in range(MAX_UNFINISHED_LINES):
            lines.keep("", object())
        print("two", end=" ")
        print("parts")
        assert lines.take() == (["two parts"], 0)


def test_flood_takes_no_memory() -> None:
    with PrintedLines(of_main_thread=True) as lines:
        text = "x" * 40 + "\n" * 3_000_000 + "y" * 3_000_000
        tracemalloc.start()
        try:
            for _ in range(3):
                sys.stdout.write(text)
                sys.stderr.write(text)
            assert tracemalloc.get_traced_memory()[1] < 200_000
        finally:
            tracemalloc.stop()
        assert lines.take().dropped > 17_000_000


def test_lines_of_a_worker_are_counted_with_those_of_this_process() -> None:
    with PrintedLines(of_main_thread=True) as lines:
        print_for_worker(Printed(["a"] * MAX_LINES, 4_812))
        print("here")
        assert lines.take().for_log()[-1] == "4,813 more lines in this step"
        with redirect_stdout(io.StringIO()) as shown:
            print_for_worker(Printed(["a"], 1))
        assert shown.getvalue() == "a\n1 more line in this step\n"


def test_lines_that_were_not_logged_are_printed() -> None:
    with redirect_stdout(io.StringIO()) as shown:
        with PrintedLines(of_main_thread=True):
            print("downloading\x1b[31m")
        assert sys.stdout is shown
    assert shown.getvalue() == "downloading [31m\n"


@pytest.mark.parametrize("of_main_thread", [False, True])
def test_lines_of_a_forked_child_are_printed(*, of_main_thread: bool, capfd: pytest.CaptureFixture[str]) -> None:
    def fork() -> None:
        process = multiprocessing.get_context("fork").Process(target=print, args=("from the child",))
        process.start()
        process.join()

    with PrintedLines(of_main_thread=of_main_thread) as lines:
        thread = threading.Thread(target=fork)
        thread.start()
        thread.join()
        assert lines.take() == ([], 0)
    assert capfd.readouterr().out == "from the child\n"
