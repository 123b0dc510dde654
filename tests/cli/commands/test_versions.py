"""Messages about damaged recordings and recordings of other versions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from esper.cli.main import main
from esper.recordings.events import SCHEMA_VERSION
from tests.factory import example_run
from tests.recordings.files.recordings import recording, write_segment

RUN = example_run()


def replay(run: Path) -> int:
    return main(["replay", str(run), "--no-tui"])


def test_newer_recording_is_shown_with_a_notice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_segment(tmp_path / "old", 1, recording(RUN))
    content = recording(RUN).replace(b'"op":"wait"', b'"op":"wait","mood":"good"')
    write_segment(tmp_path / "new", 1, content + b'{"type":"SlotSang","seq":900,"time":1,"song":"la"}\n' * 9)

    assert replay(tmp_path / "old") == 0
    summary = capsys.readouterr().out
    assert replay(tmp_path / "new") == 0

    printed = capsys.readouterr()
    assert printed.out == summary
    assert printed.err.splitlines() == [
        "esper-sanctum: fields of EnvStepped that a newer version wrote were skipped: mood",
        "esper-sanctum: events of the unknown type SlotSang were skipped; a newer version wrote them",
    ]


def test_schema_is_printed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0

    printed = capsys.readouterr()
    schema = json.loads(printed.out)
    assert printed.err == ""
    assert f"schema {SCHEMA_VERSION}" in schema["title"]
    assert schema["$defs"]["NotFinite"]["enum"] == ["NaN", "Infinity", "-Infinity"]
    assert {"$ref": "#/$defs/NotFinite"} in schema["$defs"]["EnvStepped"]["properties"]["loss"]["anyOf"]
