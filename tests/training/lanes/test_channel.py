"""Tests of the channel: messages of any size, in both directions at the same time."""

from __future__ import annotations

import os
from contextlib import ExitStack
from multiprocessing import Pipe

import pytest

from esper.training.lanes.channel import FILES, Channel, open_message_file

LARGE = 3_000_000
"""More bytes than the buffer of a pipe holds."""


def test_no_message_waits_for_its_receiver() -> None:
    """A main process and a worker that both send large messages before they receive any."""
    with ExitStack() as opened:
        left, right = map(opened.enter_context, Pipe())
        files = [opened.enter_context(open_message_file()).fileno() for _ in range(FILES)]
        main, worker = Channel(left, files, owns_files=True), Channel(right, files, owns_files=False)
        main.send("settings")
        main.send(bytes([0]) * LARGE)
        assert worker.receive() == "settings"
        main.send(bytes([1]) * LARGE)
        for turn in range(2, 12):
            assert worker.receive() == bytes([turn - 2]) * LARGE
            worker.send(("done", turn - 2, bytes(LARGE // turn)))
            assert main.receive() == ("done", turn - 2, bytes(LARGE // turn))
            main.send(bytes([turn]) * LARGE)


def test_memory_of_a_huge_message_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esper.training.lanes.channel.MAX_KEPT_BYTES", LARGE)
    with ExitStack() as opened:
        left, right = map(opened.enter_context, Pipe())
        file = opened.enter_context(open_message_file())
        main, worker = (Channel(end, [file.fileno()], owns_files=end is left) for end in (left, right))
        for size in (LARGE // 2, 2 * LARGE):
            main.send(bytes(size))
            assert worker.receive() == bytes(size)
            assert bool(os.fstat(file.fileno()).st_size) == (size < LARGE)
            worker.send("done")
            assert main.receive() == "done"


def test_receiver_learns_that_the_other_process_has_ended() -> None:
    with open_message_file() as file:
        left, right = Pipe()
        left.close()
        with pytest.raises((EOFError, OSError)):
            Channel(right, [file.fileno()] * FILES, owns_files=False).receive()
        right.close()
