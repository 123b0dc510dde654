"""A measure of a run is one number on every screen, and is defined in one place."""

from __future__ import annotations

import json
import math
import os
import re
import statistics
from pathlib import Path

import msgspec
import pytest

from esper.cli.main import main
from esper.recordings import events as ev
from esper.recordings.files.notes import RunNotes
from esper.recordings.history.history import open_history
from esper.recordings.history.measures import MEASURES, Measure
from esper.recordings.history.run_info import read_run_info
from esper.recordings.history.summary import RunSummary
from esper.recordings.history.summary_builder import summarise
from esper.sanctum.app import WorkspaceApp
from esper.sanctum.screens.workspace import WorkspaceScreen
from esper.sanctum.theme import DEFAULT_THEME
from esper.sanctum.widgets.run_details import RunDetails
from esper.sanctum.widgets.run_list import RunList
from esper.studies.sweeps.worker import SweepWorker
from tests.factory import BARE_HOST, FROM_SCRATCH, START, example_run, growth_run
from tests.recordings.files.recordings import fold, recording, write_segment
from tests.sanctum.driving import opened, press, until
from tests.studies.sweeps.fakes import GRID, FakeRuns, make_plan, open_study, write_run

RUN = [
    msgspec.structs.replace(event, episode_return=0.1 * index, parameter_ratio=1 + 0.01 * index)
    if isinstance(event, ev.EpisodeEnded)
    else event
    for index, event in enumerate(example_run(envs=3, rounds=3, steps=4))
]
LAST_END = max(index for index, event in enumerate(RUN) if isinstance(event, ev.EpisodeEnded))


@pytest.mark.parametrize("length", [1, len(RUN) // 3, LAST_END - 1, LAST_END, LAST_END + 1, len(RUN)])
@pytest.mark.parametrize("segments", [1, 2])
def test_list_and_summary_have_the_same_numbers(length: int, segments: int, tmp_path: Path) -> None:
    """Some lengths end among the ends of a round's episodes."""
    cut = length if segments == 1 else length // 2
    for number, (start, stop) in enumerate([(0, cut), (cut, length)][:segments], 1):
        path = write_segment(tmp_path / "run", number, recording(RUN[start:stop], fold(RUN[:start])))
        os.utime(path, (START, START))
    info = read_run_info(tmp_path / "run", START, START)
    summary = summarise(open_history(tmp_path / "run"), START)
    assert summary is not None
    finished, seeds = summary.finished, summary.seeds.values()
    medians = [results.score.median for results in finished]
    by_events = {
        "best": summary.best.score if summary.best else None,
        "smoothed": statistics.fmean(medians[-5:]) if medians else None,
        "anomalies": sum(summary.anomalies.values()),
        "planted": sum(found.planted for found in seeds),
        "fossilized": sum(found.fossilized for found in seeds),
        "culled": sum(found.culled for found in seeds),
        "duration": summary.duration,
    }
    for name, measure in MEASURES.items():
        if measure.of_round is not None:
            by_events[name] = measure.of_round(finished[-1]) if finished else None
        if measure.is_listed:
            assert measure.of(info) == measure.of(summary), name
            assert measure.of(info) == (None if by_events[name] is None else pytest.approx(by_events[name])), name


def summary_of(directory: Path, events: list[ev.AnyEvent]) -> RunSummary:
    """Record a run, check that its list and its summary have the same numbers, and return the summary."""
    os.utime(write_segment(directory, 1, recording(events)), (START, START))
    summary = summarise(open_history(directory), START)
    assert summary is not None
    listed = {name: value for name, value in summary.measures.items() if MEASURES[name].is_listed}
    assert read_run_info(directory, START, START).measures == listed
    return summary


def test_measures_of_growth_are_those_of_its_answer(tmp_path: Path) -> None:
    """Each of its last rounds also trains a network that is only compared, and other candidates."""
    events = growth_run(envs=3, trials=6)
    (chosen,) = (event.candidate for event in events if isinstance(event, ev.SearchEnded))
    assert chosen not in (None, BARE_HOST, FROM_SCRATCH)
    ended = [event for event in events if isinstance(event, ev.TrialEnded) and event.candidate == chosen]
    fresh = [event for event in ended if event.fresh is not None]
    best = max(ended, key=lambda event: event.score or 0.0)

    summary = summary_of(tmp_path / "run", events)

    assert summary.measures["score"] == pytest.approx(statistics.fmean(event.score or 0.0 for event in fresh))
    assert summary.measures["return"] == pytest.approx(statistics.fmean(event.net_return or 0.0 for event in fresh))
    assert summary.measures["parameters"] == best.parameter_ratio
    assert summary.measures["best"] == best.score
    assert "smoothed" not in summary.measures
    found = summary.best
    assert found is not None
    assert (found.score, found.env, found.round, found.step) == (best.score, best.env, best.round, best.best_step)


def test_measures_of_growth_without_answer_are_those_of_the_best_candidate(tmp_path: Path) -> None:
    events = growth_run(envs=3, trials=6, fresh=0)
    done = [event for event in events if isinstance(event, ev.TrialEnded) and event.outcome == "done"]
    best = max(done, key=lambda event: event.net_return or 0.0)
    measures = summary_of(tmp_path / "run", events).measures
    assert [measures[name] for name in ("score", "best", "return", "parameters")] == [
        best.score, best.score, best.net_return, best.parameter_ratio
    ]  # fmt: skip

    begun = summary_of(tmp_path / "begun", growth_run(envs=3, trials=6, stop=1))
    assert not {"score", "best", "return", "parameters"} & begun.measures.keys()
    failed = summary_of(tmp_path / "failed", [*events, ev.SearchEnded(seq=events[-1].seq + 1, answer="none")])
    assert not {"score", "best", "return", "parameters"} & failed.measures.keys()


def test_tables_say_that_numbers_of_a_growth_are_those_of_a_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, events in (("growth", growth_run(envs=3, trials=6)), ("run", RUN)):
        write_segment(tmp_path / name, 1, recording(events))
    growth = str(tmp_path / "growth")
    assert main(["show", growth]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"\nbest network: accuracy +86.0%\n", shown)
    assert "last round" not in shown
    assert main(["compare", growth, str(tmp_path / "run")]) == 0
    assert re.search(r"\nbest network: return; last round: mean return +\+0.307\s", capsys.readouterr().out)


@pytest.mark.parametrize("envs", [4, 5])
def test_finished_rounds_of_growth_include_those_with_idle_envs(envs: int, tmp_path: Path) -> None:
    """With 5 envs, the rounds after the trials have 5, 5 and 2 trainings."""
    events = growth_run(envs=envs, trials=2 * envs)
    rounds = [event.round for event in events if isinstance(event, ev.RoundStarted)]

    summary = summary_of(tmp_path / "run", events)

    assert [finished.round for finished in summary.finished] == rounds
    assert summary.measures["finished_rounds"] == len(rounds) == fold(events).rounds_ended
    assert fold(events).last_return == pytest.approx(summary.finished[-1].episode_return)
    last_end = max(event.seq for event in events if isinstance(event, ev.EpisodeEnded))
    before = fold([event for event in events if event.seq < last_end])
    assert before.rounds_ended == len(rounds) - 1


DOUBLED = Measure(
    key="doubled",
    name="doubled return",
    short="doubled",
    definition="twice the mean return of the last finished round",
    unit="return",
    limits=(-math.inf, math.inf),
    column_priority=2,
    of_round=lambda finished: 2 * finished.episode_return,
)


@pytest.fixture
def telemetry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """Two runs that the cache has without the measure `doubled`, which is then added to the table."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    (tmp_path / "telemetry").mkdir()
    for name, values in (("low", [0.2, 0.4]), ("high", [0.2, 0.9])):
        (tmp_path / "telemetry" / name).mkdir()
        write_run(tmp_path / "telemetry" / name, {"ppo.entropy-coef": 0.0}, RunNotes(), values)
    assert main(["runs", "--json"]) == 0
    assert "doubled" not in capsys.readouterr().out
    monkeypatch.setitem(MEASURES, DOUBLED.key, DOUBLED)
    return tmp_path / "telemetry"


def test_measure_of_the_table_is_in_every_command(telemetry: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def cells(*arguments: str) -> list[list[str]]:
        assert main([*arguments]) == 0
        return [re.split(r"  +", line) for line in capsys.readouterr().out.splitlines()]

    headings, *rows = cells("runs", "--sort", "doubled")
    place = headings.index("doubled")
    assert [(row[0], row[place]) for row in rows] == [("high", "+1.800"), ("low", "+0.800")]
    assert [row[0] for row in cells("runs", "--filter", "doubled<1")[1:]] == ["low"]
    assert ["last round: doubled return", "+1.800"] in cells("show", "high")
    assert ["last round: doubled return", "+0.800", "+1.800"] in cells("compare", "low", "high")
    assert main(["compare", "low", "high", "--group-by", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["results"]["doubled"]["mean"] == pytest.approx(1.3)


def test_measure_of_rounds_is_an_objective_of_sweeps(telemetry: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = open_study(make_plan(telemetry.parent, f'objective = "doubled"\n{GRID}'), telemetry)
    said: list[str] = []
    SweepWorker(study, [("cpu:0",)], said.append, FakeRuns(), poll_s=0.01).run()
    assert any("last 2 rounds: doubled return +1.600; run run-1-1" in sentence for sentence in said)
    assert main(["sweep", "s.toml", "--results"]) == 0
    heading = next(line for line in capsys.readouterr().out.splitlines() if "doubled return" in line)
    assert re.split(r"  +", heading)[2:5] == [
        "last 2 rounds: doubled return", "last 2 rounds: median score", "last 2 rounds: mean return"
    ]  # fmt: skip


async def test_measure_of_the_table_is_in_the_workspace(telemetry: Path) -> None:
    async with opened(WorkspaceApp(telemetry, theme=DEFAULT_THEME), size=(160, 40)) as pilot:
        screen = pilot.app.screen
        assert isinstance(screen, WorkspaceScreen)
        await until(pilot, lambda: screen.workspace.index.is_complete)
        await press(pilot, "o", *"doubled", "enter")
        heading, *rows = screen.query_one(RunList).text.splitlines()
        assert "doubled↓" in heading
        assert ["+1.800" in rows[0], "+0.800" in rows[1]] == [True, True]
        assert re.search(r"doubled +\+1\.800", screen.query_one(RunDetails).text)
        await press(pilot, "slash", *"doubled<1", "enter")
        assert [run.run for run in screen.workspace.listed] == ["low"]
