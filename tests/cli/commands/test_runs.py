"""The `runs` command: states, best accuracy, order and format of its table."""

from __future__ import annotations

import json
import os
import re
import statistics
import time
from pathlib import Path
from typing import Any

import pytest

from esper.cli.main import main
from esper.common.formatting import format_bytes
from esper.recordings import events as ev
from esper.recordings.files.notes import NOTES_FILE, RunNotes, write_notes
from esper.recordings.files.run_directory import RunDirectory
from esper.recordings.files.run_lock import LOCK_FILE, RunLock
from esper.recordings.files.segments import compress_segment
from tests.factory import example_run, stamp
from tests.recordings.files.recordings import fold, recording, write_segment

RUN = example_run()
BEST = max(event.score for event in RUN if isinstance(event, ev.EnvStepped | ev.EpisodeEnded))


def ending(last: ev.AnyEvent | None, until: int = 60) -> bytes:
    """Return a recording of the first events of a run and one more event."""
    run = RUN[:until]
    return recording([*run, *stamp([last], first=until + 1, start=run[-1].time)] if last else run)


def make(folder: Path, name: str, content: bytes, *, age: float = 0.0, lock: bool = True) -> Path:
    directory = folder / name
    path = write_segment(directory, 1, content)
    if lock:
        RunLock(RunDirectory(directory)).release()
    written = time.time() - age
    os.utime(path, (written, written))
    return directory


def listed(folder: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    assert main(["runs", str(folder), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("last", "state"),
    [
        (ev.RunEnded(outcome="done"), "done"),
        (ev.RunEnded(outcome="stopped"), "stopped"),
        (ev.RunEnded(outcome="failed", reason="disk"), "failed"),
        (ev.Paused(round=1, step=3, origin="keyboard"), "crashed"),
        (None, "crashed"),
    ],
)
def test_run_state_without_a_writer(
    tmp_path: Path, last: ev.AnyEvent | None, state: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path, "a", ending(last))

    assert [run["state"] for run in listed(tmp_path, capsys)] == [state]


@pytest.mark.parametrize(
    ("last", "age", "state", "health"),
    [
        (ev.Paused(round=1, step=3, origin="keyboard"), 9000.0, "paused", "paused"),
        (ev.Paused(round=1, step=3, origin="engine", reason="no kernel", cause="fault"), 9000.0, "held", "held"),
        (None, 0.0, "running", "running"),
        (None, 9000.0, "silent", "silent for 2h30m"),
    ],
)
def test_run_state_with_a_live_process(
    tmp_path: Path, last: ev.AnyEvent | None, age: float, state: str, health: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = RunLock(RunDirectory(make(tmp_path, "a", ending(last), age=age)))
    assert [run["state"] for run in listed(tmp_path, capsys)] == ["starting"]
    lock.mark_started()
    assert [(run["state"], run["health"]) for run in listed(tmp_path, capsys)] == [(state, health)]
    assert main(["runs", str(tmp_path)]) == 0
    assert f"  {health}  " in capsys.readouterr().out
    lock.release()
    assert [run["state"] for run in listed(tmp_path, capsys)] == ["crashed"]


def test_run_state_without_lock_depends_on_last_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path, "new", ending(None), lock=False)
    make(tmp_path, "old", ending(None), age=9000, lock=False)

    assert [(run["run"], run["state"]) for run in listed(tmp_path, capsys)] == [("new", "running"), ("old", "crashed")]


def test_runs_reads_only_the_last_segment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = make(tmp_path, "a", b"this would be damage\n" * 100)
    compress_segment(write_segment(directory, 2, recording(RUN[50:], fold(RUN[:50]))))
    (directory / "checkpoints").mkdir()
    (directory / "checkpoints" / "tensors").write_bytes(bytes(5000))

    [run] = listed(tmp_path, capsys)

    assert (run["state"], run["task"], run["policy"]) == ("done", "digits_impaired", "ppo")
    assert (run["round"], run["rounds"], run["measures"]["best"]) == (2, 2, BEST)
    assert run["bytes"] == sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def test_runs_falls_back_from_torn_to_previous_segment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = make(tmp_path, "a", ending(None))
    write_segment(directory, 2, b'{"type":"Keyfr')

    [run] = listed(tmp_path, capsys)

    assert (run["round"], run["state"]) == (fold(RUN[:60]).round, "crashed")


def test_runs_table_lists_newest_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path, "older", recording(RUN), age=7300)
    make(tmp_path, "newer", ending(None), age=130)
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "run.json").write_text("{}")
    (tmp_path / "begun" / LOCK_FILE).touch()
    os.utime(tmp_path / "begun" / "run.json", (0, 0))

    assert main(["runs", str(tmp_path)]) == 0

    headings, *lines = capsys.readouterr().out.splitlines()
    results = ["last", "mean ret", "×host", "best env", "anomalies", "planted"]
    assert re.split(r"  +", headings) == ["run", "state", "task", "policy", "round", *results, "size", "written"]
    cells = [re.split(r"  +", line) for line in lines]
    assert [row[0] for row in cells] == ["newer", "older", "begun"]
    assert cells[1][:5] == ["older", "done", "digits_impaired", "ppo", "2/2"]
    assert cells[1][6:11] == ["+0.600", "1.40", f"{BEST:.1%}", "2", "8"]
    assert re.fullmatch(r"\d+\.\d KiB", cells[1][11])
    assert cells[1][12] == "2 h ago"
    assert cells[0][1] == "crashed"
    assert cells[0][-1] == "2 min ago"
    assert cells[2][1:6] == ["crashed", "–", "–", "–", "–"]


def test_run_from_the_future_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path, "ahead", recording(RUN), age=-7300)
    make(tmp_path, "newer", recording(RUN), age=130)
    assert main(["runs", str(tmp_path)]) == 0
    output, errors = capsys.readouterr()
    assert re.search(r"ahead .* in the future\n", output)
    assert "the clock was set back: ahead may be older than runs that are listed below" in errors


def test_runs_skips_a_symlink_loop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loop = make(tmp_path, "run", recording(RUN)) / "loop"
    loop.symlink_to(loop)

    assert main(["runs", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:2] == ["run", "done"]


def test_runs_lists_others_despite_an_unreadable_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path, "diary", b"dear diary\n" * 100)
    make(tmp_path, "run", recording(RUN), age=60)

    assert main(["runs", str(tmp_path)]) == 0

    printed = capsys.readouterr()
    assert [line.split()[:2] for line in printed.out.splitlines()[1:]] == [["diary", "unreadable"], ["run", "done"]]
    assert "diary is unreadable: " in printed.err
    assert "is not a recording" in printed.err


def test_runs_in_empty_directory_suggests_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["runs"]) == 0
    assert capsys.readouterr().out == (
        "no runs in telemetry; train one with `esper-sanctum` or replay one with `esper-sanctum demo`\n"
    )
    assert main(["runs", "--json"]) == 0
    assert capsys.readouterr().out == "[]\n"
    assert main(["runs", "nowhere"]) == 2
    assert capsys.readouterr().err == "esper-sanctum: directory nowhere not found\n"


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0.0 KiB"), (1023, "1.0 KiB"), (2**20, "1.0 MiB"), (3 * 2**29, "1.5 GiB"), (2**41, "2048.0 GiB")],
)
def test_sizes_are_formatted_in_suitable_units(count: int, text: str) -> None:
    assert format_bytes(count) == text


def test_runs_of_another_directory_by_argument_or_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path, "one", ending(None))

    assert main(["runs", "--json", str(tmp_path)]) == 0
    by_argument = json.loads(capsys.readouterr().out)
    assert main(["runs", "--json", "--telemetry-dir", str(tmp_path)]) == 0
    by_option = json.loads(capsys.readouterr().out)

    assert [info["run"] for info in by_option] == [info["run"] for info in by_argument] == ["one"]
    assert main(["runs", str(tmp_path), "--telemetry-dir", str(tmp_path)]) == 2
    assert "the directory is given twice" in capsys.readouterr().err


def test_directory_that_vanishes_while_it_is_listed_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make(tmp_path, "run", ending(None))
    partial = run / "checkpoints" / "round-00001-step-0001.partial"
    partial.mkdir(parents=True)
    scandir = os.scandir

    def remove_first(path: str | Path) -> object:
        if Path(path) == partial:
            partial.rmdir()
        return scandir(path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", remove_first)
        [found] = listed(tmp_path, capsys)

    assert not partial.exists()
    assert found["bytes"] == sum(path.stat().st_size for path in run.rglob("*") if path.is_file())


def test_json_has_the_notes_the_configuration_and_the_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = fold(RUN)
    run = make(tmp_path, "a", recording(RUN))
    write_notes(run, RunNotes(name="low entropy", tags=("x", "y"), note="first", study="s", trial=0))
    (make(tmp_path, "b", recording(RUN[:1]), age=60) / NOTES_FILE).write_text("{")

    found, begun = listed(tmp_path, capsys)

    scores = [final.median for final in state.scores_by_round]
    assert found.items() >= {
        "name": "low entropy", "tags": ["x", "y"], "note": "first", "study": "s", "trial": 0,
        "seed": 0, "config": {"envs": 4, "rounds": 2, "steps": 5}, "score_name": "accuracy", "envs": 4, "steps": 5,
        "scores": scores,
    }.items()  # fmt: skip
    assert found["measures"].items() >= {
        "score": scores[-1], "duration": RUN[-1].time - RUN[0].time,
        "anomalies": sum(anomaly.count for anomaly in state.anomalies.values()),
        "return": statistics.fmean(env.returns[-1] for env in state.envs),
        "parameters": statistics.fmean(env.latest.parameter_ratio for env in state.envs if env.latest),
    }.items()  # fmt: skip
    assert "archived" not in found
    assert not {"name", "tags", "study", "scores"} & begun.keys()
    assert not {"score", "best", "smoothed", "return", "parameters"} & begun["measures"].keys()
    assert (begun["state"], begun["measures"]["anomalies"]) == ("crashed", 0)
    assert "notes.json is damaged" in str(begun["problem"])


def test_table_is_filtered_sorted_and_shows_notes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for age, name in enumerate("abc"):
        make(tmp_path, name, ending(None, until=20 + 20 * age), age=100 * age)
    write_notes(tmp_path / "a", RunNotes(name="first", tags=("x", "y")))
    write_notes(tmp_path / "b", RunNotes(archived=True, study="s", trial=0))

    def table(*options: str) -> tuple[list[list[str]], list[str]]:
        assert main(["runs", str(tmp_path), *options]) == 0
        lines = capsys.readouterr().out.splitlines()
        return [re.split(r"  +", line) for line in lines if "  " in line], [line for line in lines if "  " not in line]

    rows, messages = table()
    assert rows[0] == [
        "run", "name", "state", "task", "policy", "round", "last", "mean ret", "×host", "best env", "anomalies",
        "planted", "size", "written", "tags",
    ]  # fmt: skip
    assert (rows[1][:3], rows[1][-1], rows[2][0]) == (["a", "first", "crashed"], "x y", "c")
    assert messages == ["not listed: 1 archived run (`esper-sanctum runs --filter archived`)"]
    rows, messages = table("--filter", "archived")
    assert (rows[0][-1], rows[1][0], rows[1][-1], messages) == ("study", "b", "s 0", [])
    assert [row[0] for row in table("--sort", "best")[0][1:]] == ["c", "a"]
    assert table("--filter", "tag:z") == ([], [
        f"no run in {tmp_path} matches the filter 'tag:z'; list all with `esper-sanctum runs`",
        "not listed: 1 archived run (`esper-sanctum runs --filter archived`)",
    ])  # fmt: skip
    assert main(["runs", str(tmp_path), "--json", "--filter", "tag:x"]) == 0
    assert [info["run"] for info in json.loads(capsys.readouterr().out)] == ["a"]
    assert main(["runs", str(tmp_path), "--filter", "bst>3"]) == 2
    assert capsys.readouterr().err == "esper-sanctum: --filter: unknown key 'bst'; did you mean best?\n"
    assert main(["runs", str(tmp_path), "--sort", "bst"]) == 2
    assert capsys.readouterr().err == "esper-sanctum: --sort: unknown sort key 'bst'; did you mean best?\n"
