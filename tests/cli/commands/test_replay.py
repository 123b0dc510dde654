"""The `replay` command without the dashboard."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from esper.cli.main import main
from esper.recordings import events as ev
from tests.factory import example_run
from tests.recordings.files.recordings import recording, write_segment
from tests.runs import LiveRun

RUN = example_run()


def test_replay_against_reports_the_divergence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = next(i for i, event in enumerate(RUN) if isinstance(event, ev.EnvStepped) and event.step == 3)
    step = RUN[index]
    other = [*RUN[:index], msgspec.structs.replace(step, loss=2.5), *RUN[index + 1 :]]
    write_segment(tmp_path / "a", 1, recording(RUN))
    write_segment(tmp_path / "b", 1, recording(other))

    assert main(["replay", "a", "--against", "b", "--no-tui", "--telemetry-dir", str(tmp_path)]) == 0

    first_line = capsys.readouterr().out.splitlines()[0]
    assert first_line == "a and b diverge at round 1 step 3, env 00: loss 2 vs 2.5 (first value: a)"


def test_replay_against_run_of_same_seed_finds_no_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (LiveRun(tmp_path / name, rounds=1) for name in ("one", "two"))
    for run in (first, second):
        run.start().finish()

    assert main(["replay", str(first.run.directory), "--against", str(second.run.directory), "--no-tui"]) == 0

    assert "are equal until one of them ends" in capsys.readouterr().out.splitlines()[0]


def test_replay_against_missing_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_segment(tmp_path / "a", 1, recording(RUN))

    assert main(["replay", "a", "--against", "c", "--no-tui", "--telemetry-dir", str(tmp_path)]) == 2

    assert "'c' is neither a file nor a run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("address", "refused"), [("view=foo", "unknown view 'foo'; "), ("env=99", "env 99 not found in ")]
)
def test_replay_without_dashboard_refuses_an_invalid_address(
    address: str, refused: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_segment(tmp_path / "run", 1, recording(example_run()))
    assert main(["replay", f"run#{address}", "--no-tui", "--telemetry-dir", str(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert refused in printed.err


def test_replay_narrate_prints_history_from_a_moment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_segment(tmp_path / "a", 1, recording(RUN))

    assert main(["replay", "a", "--narrate", "all", "--telemetry-dir", str(tmp_path)]) == 0
    whole = capsys.readouterr()
    assert main(["replay", "a", "--narrate", "all", "--at", "2:1", "--telemetry-dir", str(tmp_path)]) == 0
    later = capsys.readouterr()

    assert whole.err == later.err == ""
    lines = whole.out.splitlines()
    assert lines[0].startswith("run digits_impaired-20261121-015300: ppo on digits_impaired, 4 envs")
    assert lines[-1] == "run done"
    planted = [line for line in lines if " planted, at round " in line]
    assert len(planted) == 8
    assert later.out.splitlines() == lines[lines.index(planted[4]) :]


def test_replay_of_unended_run_reports_a_crash(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    half = [event for event in RUN if not isinstance(event, ev.RunEnded)]
    write_segment(tmp_path / "a", 1, recording(half))
    where = ["--no-tui", "--telemetry-dir", str(tmp_path)]

    assert main(["replay", "a", *where]) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith(": crashed")
    assert main(["replay", "a", "--at", "50%", *where]) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith(": running")
