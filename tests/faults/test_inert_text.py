"""Text of a user or of a recording cannot control the terminal: commands print no control characters and no markup."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from esper.cli.commands import COMMANDS
from esper.cli.main import main
from esper.recordings import events as ev
from esper.recordings.files.recorder import Recorder, write_manifest
from esper.recordings.files.run_directory import RunDirectory
from tests.factory import example_run

HOSTILE = "\x1b]0;title\x07\x1b[31mred\x9b2J[bold]x[/bold]\r\u202e"


def poisoned(event: ev.AnyEvent) -> ev.AnyEvent:
    """Return an event with hostile text in every field of text."""
    replace = msgspec.structs.replace
    match event:
        case ev.RunStarted():
            return replace(
                event,
                **dict.fromkeys(("task", "policy", "run", "score_name"), HOSTILE),
                slot_names=[HOSTILE + str(number) for number in range(len(event.slot_names))],
                lanes=[HOSTILE + lane for lane in event.lanes],
                config={HOSTILE: HOSTILE, "task": HOSTILE},
                versions={HOSTILE: HOSTILE},
            )
        case ev.Logged():
            return replace(event, text=HOSTILE)
        case ev.AnomalyFound():
            return replace(event, rule=HOSTILE, text=HOSTILE, where=HOSTILE)
        case ev.CheckpointSaved():
            return replace(event, path=HOSTILE, origin=HOSTILE)
        case ev.SeedMoved():
            return replace(event, slot=HOSTILE + event.slot, blueprint=HOSTILE)
        case _:
            return event


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    run, other = tmp_path / "telemetry" / "evil", tmp_path / "telemetry" / "evil\x1b[31m"
    recorder = Recorder(RunDirectory.make(run))
    write_manifest(RunDirectory.make(run), {"run": HOSTILE, "config": {}, "versions": {}})
    for event in example_run(2, 2, 6):
        recorder.put(poisoned(event))
    recorder.close()
    assert recorder.failure is None
    shutil.copytree(run, other)
    return run, other


def test_text_of_a_recording_is_printed_without_control_characters(
    runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(runs[0].parent)  # which `export` writes to
    run, other = map(str, runs)
    commands = (
        ["show", run],
        ["show", other + "x"],
        ["runs", "--telemetry-dir", str(runs[0].parent)],
        ["compare", run, other],
        ["replay", run, "--no-tui"],
        ["replay", run, "--no-tui", "--at", "event:20"],
        ["replay", run, "--no-tui", "--against", other],
        ["replay", run, "--narrate", "all"],
        ["checkpoints", run],
        ["checkpoints", other],
        ["export", other, "--to", "csv"],
        ["query", "select * from runs, anomalies", "--telemetry-dir", str(runs[0].parent)],
        ["query", HOSTILE, "--telemetry-dir", str(runs[0].parent), "--csv"],
        ["show", other, "--json"],
        ["runs", "--telemetry-dir", str(runs[0].parent), "--json"],
        ["attach", other],
        ["mcp", "--telemetry-dir", other + "x"],
        ["demo", other],
        ["serve", "--host", HOSTILE],
        ["grow", "--task", HOSTILE, "--telemetry-dir", other],
        ["schema"],
        ["schema", HOSTILE],
        ["completion", HOSTILE],
        ["harvest", other, "--to", other + "x"],
        ["whatif", other, "--round", "1"],
        ["evaluate", "--checkpoint", other],
        ["config", "--task", HOSTILE],
        ["config", "--policy", HOSTILE],
        ["devices", "--devices", HOSTILE],
        ["sweep", other + "x"],
        ["--resume", other],
        [HOSTILE],
        ["--" + HOSTILE],
    )
    assert {command[0] for command in commands} >= {*COMMANDS}
    for command in commands:
        with suppress(SystemExit):
            main(command)
        captured = capsys.readouterr()
        text = captured.out + captured.err
        assert text
        assert [letter for letter in text if not letter.isprintable() and letter != "\n"] == [], command
        if command[0] in {"show", "runs", "compare"} and "x" not in command[-1][-1:]:
            assert "[bold]x[/bold]" in text  # not read as markup
