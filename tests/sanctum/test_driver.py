"""Output to a terminal that reads slowly, not at all, or has been closed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

import pytest

from esper.sanctum import driver
from esper.sanctum.driver import OutputThread

PATIENCE = 60.0


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    for each in (reading, writing):
        with suppress(OSError):  # a test may have closed it
            os.close(each)


def read(descriptor: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += os.read(descriptor, size - len(data))
    return data


def test_driver_writes_output_in_full_and_in_order(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    output = OutputThread(writing, "utf-8")
    pieces = [f"⠿{number} " for number in range(1000)]
    for piece in pieces:
        output.write(piece)
    output.drain(PATIENCE)
    wanted = "".join(pieces).encode()
    assert read(reading, len(wanted)) == wanted
    assert not output.consume_dropped()
    assert not output.closed


def test_driver_skips_frozen_terminal_and_redraws_later(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "MAX_PENDING_CHARS", 1000)
    reading, writing = pipe
    output = OutputThread(writing, "ascii")
    first = "a" * (1 << 20)  # larger than the buffer of a pipe
    output.write(first)
    read(reading, 1)  # the writer has started
    for number in range(100):
        output.write(f"<{number:98}>")
    output.drain(0.0)  # returns at once
    assert not output.consume_dropped()  # a redraw now would be dropped too

    assert read(reading, len(first) - 1) == first[1:].encode()
    output.drain(PATIENCE)
    assert os.read(reading, 1 << 16) == b"".join(f"<{number:98}>".encode() for number in range(90, 100))
    assert output.consume_dropped()
    assert not output.consume_dropped()


def test_driver_detects_a_closed_terminal_at_once(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    os.close(reading)
    output = OutputThread(writing, "utf-8")
    output.write("discarded")
    output.drain(PATIENCE)
    assert output.closed
    output.write("nor this")
    output.drain(PATIENCE)
    assert not output.consume_dropped()


def test_driver_redraws_after_another_program_has_written(pipe: tuple[int, int]) -> None:
    output = OutputThread(pipe[1], "utf-8")
    output.mark_dropped()
    output.drain(PATIENCE)
    assert output.consume_dropped()
    assert not output.consume_dropped()
