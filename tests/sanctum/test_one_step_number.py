"""One step has one number: the header, the log, an address and `--at` lead to the step in which an event happened."""

from __future__ import annotations

from pathlib import Path

import pytest

from esper.recordings import events as ev
from esper.recordings.files.runs import find_demo
from esper.recordings.history.address import find_moment, parse_moment
from esper.recordings.history.history import History, open_history
from esper.sanctum.view import GoToMoment
from tests.factory import example_run, stamp
from tests.recordings.files.recordings import recording, write_segment
from tests.sanctum.driving import SIZE, header, notices, opened, press, replay, replay_of, settle


def steps_of_anomalies(history: History) -> list[tuple[ev.AnomalyFound, int, int]]:
    """Return each anomaly of a recording with the round and the step of the event that caused it."""
    found: list[tuple[ev.AnomalyFound, int, int]] = []
    round_ = step = 0
    for event in history.events():
        if isinstance(event, ev.EnvStepped | ev.GovernorRolledBack):
            round_, step = event.round, event.step
        elif isinstance(event, ev.AnomalyFound):
            found.append((event, round_, step))
    return found


@pytest.fixture(scope="module")
def demo() -> History:
    return open_history(find_demo(faults=True))


@pytest.mark.slow
async def test_every_way_to_an_anomaly_of_the_demo_shows_its_step(demo: History) -> None:
    anomalies = steps_of_anomalies(demo)
    assert anomalies
    app, _ = replay_of(demo)
    async with app.run_test(size=SIZE) as pilot:
        for number, (found, round_, step) in enumerate(anomalies, start=1):
            moment = find_moment(f"anomaly:{number}", demo)
            assert moment is not None
            state = demo.state_at(moment.position)
            assert (state.round, state.step, moment.env) == (round_, step, found.env)

            app.post_message(GoToMoment(found.seq, env=found.env, screen="policy"))  # as the dialog and the log do
            await settle(pilot)
            assert f"round {round_}/" in header(app)
            assert f"step {step}/" in header(app)
            assert "partway" not in header(app)
            if found.env is not None:
                assert app.view.selected_env == found.env
                stepped = app.source.state.envs[found.env].stepped
                assert stepped is not None
                assert (stepped.round, stepped.step) == (round_, step)
            await pilot.press("Y")
            address = notices(app)[-1].partition("#")[2]
            global_step = (round_ - 1) * 25 + step
            assert address.startswith(f"step={global_step}&")
            assert parse_moment(f"step:{global_step}", demo) == moment.position


async def test_next_mark_visits_each_anomaly_at_its_step_and_env(demo: History) -> None:
    app, _ = replay_of(demo)
    wanted = [(found.env, round_, step) for found, round_, step in steps_of_anomalies(demo) if found.env is not None]
    async with opened(app) as pilot:
        visited: list[tuple[int, int, int]] = []
        while not notices(app):  # "No mark after this moment."
            await pilot.press("n")
            state = app.source.state
            visited.append((app.view.selected_env, state.round, state.step))
        assert [stop for stop in dict.fromkeys(wanted) if stop not in visited] == []
        last = visited[-1]
        await pilot.press("N")
        assert (app.view.selected_env, app.source.state.round, app.source.state.step) != last


async def test_event_within_a_step_is_shown_as_partway(tmp_path: Path) -> None:
    run = example_run()
    app, playback = replay(run, tmp_path)
    ends = playback.history.steps
    async with app.run_test(size=SIZE) as pilot:
        await press(pilot, "g", *f"event:{ends[3] + 1}", "enter")
        assert "step 5/5, partway" in header(app)
        await press(pilot, "right")
        assert "step 5/5" in header(app)
        assert "partway" not in header(app)
        assert playback.history.step_end(ends[3]) == ends[3]
        assert playback.history.step_end(ends[3] + 1) == ends[4]


def test_event_after_the_last_step_stays_in_its_round(demo: History) -> None:
    for start in demo.rounds[1:]:
        assert demo.step_end(start) == start


def test_event_of_an_excerpt_and_of_a_damaged_recording_is_found_by_its_number(tmp_path: Path) -> None:
    run = [event for event in stamp(example_run(), first=501) if event.seq not in {510, 540, 541}]
    history = open_history(write_segment(tmp_path, 1, recording(run)))
    for position, event in enumerate(run, start=1):
        assert history.position_of_event(event.seq) == position
    assert history.state_at(history.position_of_event(541)).seq == 539
    assert history.position_of_event(1) == 0
    assert history.position_of_event(10**6) == history.length
