"""Every key, live and in replay."""

import asyncio
import re
import signal
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from textual.drivers.headless_driver import HeadlessDriver
from textual.widgets import Input, OptionList, Static

from esper.common.control import RequestKind
from esper.recordings import events as ev
from esper.sanctum.actions.resume import BROWSER_MESSAGE
from esper.sanctum.actions.sharing import NO_SELECTION_MESSAGE
from esper.sanctum.app import SanctumApp
from esper.sanctum.driver import parse_input
from esper.sanctum.keys import KEYS, Availability
from esper.sanctum.screens.checkpoint_picker import CheckpointList, CheckpointPicker
from esper.sanctum.screens.dialogs import ChoiceDialog
from esper.sanctum.screens.env_detail import EnvDetailScreen
from esper.sanctum.screens.help import HelpScreen
from esper.sanctum.screens.overview import OverviewScreen
from esper.sanctum.symbols import SEVERITIES, STAGES
from esper.sanctum.widgets.env_map import EnvMap
from esper.sanctum.widgets.env_table import EnvTable
from esper.sanctum.widgets.footer import Footer
from esper.sanctum.widgets.problems import AnomalyStrip
from esper.sanctum.widgets.timeline import Timeline
from tests.factory import example_run, stamp
from tests.sanctum.driving import (
    SIZE,
    emit,
    has_left,
    header,
    live,
    next_requests,
    notices,
    opened,
    press,
    replay,
    screen_text,
    settle,
    shown,
    tick,
    until,
)
from tests.sanctum.population import population
from tests.sanctum.sessions import FakeSession

RUN = population(envs=8, rounds=12, stop=5)


def kinds(session: FakeSession) -> list[RequestKind]:
    return [request.kind for request in session.asked()]


async def test_pause_step_resume_show_confirmed_state() -> None:
    app, session = live(RUN)
    async with opened(app) as pilot:
        await pilot.press("s")
        assert kinds(session) == []
        assert "need a paused run" in " ".join(notices(app))
        await pilot.press("p")
        assert kinds(session) == [RequestKind.PAUSE]
        await settle(pilot)
        assert "● RUNNING pausing…" in header(app)
        await emit(pilot, session, ev.Paused(round=12, step=6, origin="keyboard"))
        assert "‖ PAUSED round" in header(app)
        assert shown(app, Footer).startswith("p resume s step")
        await pilot.press("s")
        assert kinds(session) == [RequestKind.STEP]
        await settle(pilot)
        assert "PAUSED stepping…" in header(app)
        await emit(
            pilot,
            session,
            ev.PhaseTimed(round=12, step=7, wall=0.1, phases={}),
            ev.Paused(round=12, step=7, origin="keyboard"),
        )
        assert "step 7/25" in header(app)
        assert "ing…" not in header(app)
        await pilot.press("p")
        assert kinds(session) == [RequestKind.RESUME]
        assert "PAUSED" in header(app)
        await emit(pilot, session, ev.Resumed(round=12, step=7, origin="keyboard"))
        assert "● RUNNING round" in header(app)


async def test_restore_requests_the_picked_checkpoint(tmp_path: Path) -> None:
    app, session = live(RUN)
    session.keep(tmp_path, RUN)
    async with opened(app) as pilot:
        await pilot.press("r")
        assert isinstance(app.screen, CheckpointPicker)
        heading, newest, oldest = app.screen.query_one(CheckpointList).text.splitlines()
        assert heading.split() == ["round", "step", "time", "acc", "%", "size", "origin"]
        assert newest.split() == ["▸", "10", "25", "14:13:21", "81.0", "3.3", "MiB", "schedule"]
        assert oldest.split()[:2] == ["5", "25"]
        assert "Discards 1 round 5 steps." in screen_text(app)
        await pilot.press("escape")
        assert kinds(session) == []
        await pilot.press("r", "down", "enter")
        (request,) = session.asked()
        assert request.kind is RequestKind.RESTORE
        assert request.path is not None
        assert request.path.endswith("checkpoints/00005-025")
        assert "restoring…" in header(app)


async def test_checkpoints_are_chosen_with_the_mouse_and_scroll(tmp_path: Path) -> None:
    """More checkpoints than the dialog has rows: the keys of all lists move the cursor, a double click chooses."""
    saved = next(event for event in RUN if isinstance(event, ev.CheckpointSaved))
    many = [msgspec.structs.replace(saved, round=number, path=f"checkpoints/{number:05d}") for number in range(1, 31)]
    app, session = live(stamp([*RUN[:2], *many]))
    session.keep(tmp_path, many)
    async with opened(app) as pilot:
        await pilot.press("r")
        table = app.screen.query_one(CheckpointList)
        await pilot.press("pagedown")
        assert table.selected == "checkpoints/00016"
        assert "later checkpoints kept" in screen_text(app)
        await pilot.press("end")
        assert table.text.splitlines()[-1].split()[:2] == ["▸", "1"]
        await pilot.click(CheckpointList, offset=(5, 3))
        assert table.selected == "checkpoints/00013"
        await pilot.click(CheckpointList, offset=(5, 3), times=2)
        (request,) = session.asked()
        assert request.path is not None
        assert request.path.endswith("checkpoints/00013")


async def test_restore_lists_each_existing_checkpoint_once(tmp_path: Path) -> None:
    app, session = live(RUN)
    oldest, newest = session.keep(tmp_path, RUN)
    saved = [event for event in RUN if isinstance(event, ev.CheckpointSaved)]
    session.say(msgspec.structs.replace(saved[-1], seq=RUN[-1].seq + 1, origin="keyboard"))
    oldest.rmdir()  # as when old checkpoints are deleted
    async with opened(app) as pilot:
        await pilot.press("r")
        rows = app.screen.query_one(CheckpointList).text.splitlines()[1:]
        assert [row.split()[-1] for row in rows] == ["keyboard"]
        await pilot.press("escape")
        newest.rmdir()
        await pilot.press("r")
        assert isinstance(app.screen, OverviewScreen)
        assert "No checkpoint yet" in " ".join(notices(app))


async def test_refused_restore_is_notified() -> None:
    app, session = live(RUN)
    async with opened(app) as pilot:
        assert app.source.requests is not None
        app.source.requests.ask(RequestKind.RESTORE, "gone")
        session.say(ev.Logged(severity="error", text="gone is not a checkpoint"))
        await settle(pilot)
        await until(pilot, lambda: "gone is not a checkpoint" in " ".join(notices(app)))


@pytest.mark.parametrize(
    ("keys", "kind"),
    [
        (("c",), RequestKind.STOP),
        (("enter",), RequestKind.STOP),
        (("w",), RequestKind.ABANDON),
        (("down", "enter"), RequestKind.ABANDON),
        (("ctrl+c",), RequestKind.STOP),
    ],
)
async def test_quit_waits_until_the_run_has_ended(keys: tuple[str, ...], kind: RequestKind) -> None:
    app, session = live(RUN)
    async with opened(app) as pilot:
        await pilot.press("q", *keys)
        assert kinds(session) == [kind]
        assert "quitting…" in header(app)
        tick(app)
        assert not has_left(app)
        session.emit(ev.RunEnded(outcome="stopped", reason="asked to"))
        tick(app)
        assert has_left(app)


async def test_quit_exits_when_the_engine_is_gone() -> None:
    app, session = live(RUN)
    async with opened(app) as pilot:
        await pilot.press("q", "w")
        session.is_engine_alive = False
        tick(app)
        assert has_left(app)


async def test_quit_dialog_can_be_cancelled() -> None:
    app, session = live(RUN)
    async with opened(app) as pilot:
        for key in ("q", "ctrl+c", "ctrl+q"):
            await pilot.press(key)
            assert isinstance(app.screen, ChoiceDialog), key
            await pilot.press("escape")
            assert isinstance(app.screen, OverviewScreen)
            assert kinds(session) == []
            assert not has_left(app)


HELD = {
    None: ["checkpoint and quit", "quit without a checkpoint", "cancel: the run stays paused"],
    "unsaved": ["checkpoint and quit", "quit without a checkpoint", "cancel: the run stays held"],
    "fault": ["quit", "cancel: the run stays held"],
}


@pytest.mark.parametrize("cause", HELD)
async def test_quit_dialog_offers_possible_actions(cause: str | None) -> None:
    held = ev.Paused(seq=len(RUN) + 1, time=1e3, round=1, step=1, origin="engine", reason="a fault", cause=cause)
    app, session = live([*RUN, held])
    async with opened(app) as pilot:
        await pilot.press("q")
        answers = [str(option.prompt)[5:] for option in app.screen.query_one(OptionList).options]
        assert answers == HELD[cause]
        if cause == "fault":
            await pilot.press("c")  # not offered
            assert kinds(session) == []
        await pilot.press("ctrl+c")
        assert kinds(session) == [RequestKind.ABANDON if cause == "fault" else RequestKind.STOP]


async def test_quit_before_first_step_skips_the_dialog() -> None:
    app, session = live([])
    async with opened(app) as pilot:
        assert "○ STARTING" in header(app)
        assert "starting: loading torch…" in screen_text(app)
        await until(pilot, lambda: re.search(r"loading torch… [1-9] s", screen_text(app)) is not None)
        await pilot.press("q")
        assert kinds(session) == [RequestKind.ABANDON]
        tick(app)  # the import of torch, which nothing can interrupt, goes on
        assert has_left(app)
        assert not notices(app)


async def test_requests_are_acknowledged_at_once_before_the_run_has_started() -> None:
    app, session = live([], typed="p")
    async with opened(app, "s", "c", "r") as pilot:
        await until(pilot, lambda: "STARTING pausing… stepping… checkpointing…" in header(app))
        assert kinds(session) == [RequestKind.PAUSE, RequestKind.STEP, RequestKind.CHECKPOINT]
        assert notices(app) == [
            "The run will pause when it has started.",
            "The run will train one step when it has started.",
            "The run will write a checkpoint when it has started.",
            "The run is starting. Press r again when it has started.",
        ]
        await emit(pilot, session, *RUN[:200], ev.Paused(round=1, step=1, origin="keyboard"))
        assert "PAUSED stepping… checkpointing…" in header(app)


async def test_request_during_a_long_step_is_acknowledged_at_once() -> None:
    app, session = live([*RUN, *(ev.PhaseTimed(round=12, step=6, wall=30.0, phases={}) for _ in range(60))])
    async with opened(app, "p"):
        assert "RUNNING pausing…" in header(app)
        assert notices(app) == ["The run will pause after this step."]
        assert kinds(session) == [RequestKind.PAUSE]


async def test_call_that_does_not_return_is_the_status_of_the_run() -> None:
    app, session = live(RUN)
    async with opened(app, size=(80, 24)) as pilot:
        place = {"function": "forward", "file": "/home/user/endless.py", "line": 28}
        await emit(pilot, session, ev.CallOverdue(env=3, lane="cpu:0", seconds=10.2, max_seconds=30.0, **place))
        assert "▲ STUCK env 03 in forward (endless.py, line 28)" in header(app)
        await pilot.press("q")
        question = str(app.screen.query_one("#question", Static).render())
        assert "Your code has not returned: env 03 in forward (endless.py, line 28)." in question
        assert "A stop ends the run once the call has taken 30 s, with its last" in question
        await pilot.press("c")
        assert kinds(session) == [RequestKind.STOP]
        assert notices(app) == [
            "The run will end once the call returns or has taken 30 s; a signal to its process ends it at once."
        ]
        assert "▲ STUCK ends at 30 s: env 03 in forward" in header(app)
        await emit(pilot, session, ev.CallEnded(env=3, seconds=12.0))
        assert "● RUNNING checkpointing, then quit" in header(app)


async def test_attached_dashboard_is_not_said_to_load_torch() -> None:
    app, _ = live([])
    app.source.attached = True
    async with opened(app):
        assert "reading the recording…" in header(app)
        assert "reading the recording…" in shown(app, EnvTable)


@pytest.mark.parametrize(("outcome", "says"), [("done", "✓ DONE"), ("failed", "✖ FAILED the lane cpu:0 died")])
async def test_ended_run_stays_on_screen_until_quit(outcome: str, says: str) -> None:
    app, session = live(RUN)
    async with opened(app) as pilot:
        session.emit(ev.RunEnded(outcome=outcome, reason="the lane cpu:0 died" if outcome == "failed" else None))
        session.is_engine_alive, session.directory = False, Path("run")
        tick(app)
        await pilot.pause()
        assert says in header(app)
        assert not has_left(app)
        footer = app.screen.query_one(Footer).text
        assert "quit" in footer
        assert not any(name in footer for name in ("pause", "checkpoint", "restore"))
        await pilot.press("p")
        assert kinds(session) == []
        assert "has ended" in " ".join(notices(app))
        await pilot.press("q")
        assert has_left(app)


async def test_engine_death_without_message_is_a_crash() -> None:
    app, session = live(RUN)
    async with opened(app) as pilot:
        session.is_engine_alive, session.directory = False, Path("run")
        tick(app)
        await pilot.pause()
        assert "✖ CRASHED round" in header(app)
        assert shown(app, AnomalyStrip).startswith("✖ 4 the run crashed: its process")


@pytest.mark.parametrize(
    ("attribute", "value"), [("is_engine_alive", False), ("fatal_error", "there is no device cuda:7")]
)
async def test_failed_setup_ends_the_app(attribute: str, value: object) -> None:
    app, session = live([])
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        assert session.started
        assert not has_left(app)
        setattr(session, attribute, value)
        tick(app)
        assert has_left(app)


async def test_first_signal_stops_second_signal_abandons() -> None:
    app, session = live(RUN)
    async with opened(app) as pilot:
        signal.raise_signal(signal.SIGTERM)
        requests = await next_requests(pilot, session)
        assert [(r.kind, r.origin) for r in requests] == [(RequestKind.STOP, "signal")]
        assert not has_left(app)
        signal.raise_signal(signal.SIGTERM)
        await until(pilot, lambda: has_left(app))
        assert kinds(session) == [RequestKind.ABANDON]


async def test_leaving_restores_signal_handlers_without_a_default_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """A closing terminal sends several SIGHUPs. The default action would end the run before its last checkpoint."""
    handled: list[int] = []
    before = signal.signal(signal.SIGHUP, lambda number, _: handled.append(number))
    install = signal.signal

    def install_and_raise(number: int, handler: Any) -> Any:
        previous = install(number, handler)
        assert handler is not signal.SIG_DFL or number != signal.SIGHUP
        if number == signal.SIGHUP:
            signal.raise_signal(number)
        return previous

    try:
        app, session = live(RUN)
        async with opened(app):
            monkeypatch.setattr(signal, "signal", install_and_raise)
        monkeypatch.undo()
        assert handled == [signal.SIGHUP]
        assert kinds(session) == []
    finally:
        install(signal.SIGHUP, before)


async def test_cursor_keys_move_the_selected_env() -> None:
    app, _ = live(population(envs=64, rounds=2, stop=2))
    async with opened(app, size=(80, 24)) as pilot:
        table = app.screen.query_one(EnvTable)
        page = table.size.height - 3
        await pilot.press("O", "home")  # by env, descending: the initial order has the worst envs first
        moves = [("down", 1), ("j", 2), ("up", 1), ("k", 0), ("k", 0), ("pagedown", page), ("end", 63), ("j", 63)]
        moves += [("pageup", 63 - page), ("home", 0)]
        for key, index in moves:
            await pilot.press(key)
            env = 63 - index
            assert app.view.selected_env == env, key
            assert f"▸{env:02d}" in table.text
            assert table.text.splitlines()[-1].startswith("med")


async def test_enter_opens_env_and_escape_returns() -> None:
    app, _ = live(RUN)
    async with opened(app, "j", "enter") as pilot:
        assert isinstance(app.screen, EnvDetailScreen)
        assert "env 01 on cpu:1" in screen_text(app)
        await pilot.press("j")
        assert "env 02 on cpu:0" in screen_text(app)
        await pilot.press("up", "up", "up")
        assert "env 00 on cpu:0" in screen_text(app)
        await pilot.press("escape")
        assert isinstance(app.screen, OverviewScreen)
        assert app.view.selected_env == 0


async def test_mouse_selects_and_opens_envs_and_presses_keys() -> None:
    app, session = live(RUN)
    async with opened(app) as pilot:
        rows = app.screen.query_one(EnvTable).text.splitlines()[4:6]
        first, second = (int(row.split()[0].strip("▼▲✖")) for row in rows)
        await pilot.click(EnvTable, offset=(10, 5))
        assert app.view.selected_env == first
        await pilot.click(Footer, offset=(2, 0))
        assert kinds(session) == [RequestKind.PAUSE]
        await pilot.double_click(EnvTable, offset=(10, 6))
        await pilot.pause()
        assert isinstance(app.screen, EnvDetailScreen)
        assert app.view.selected_env == second


async def test_help_lists_every_key_and_symbol() -> None:
    app, _ = live(RUN)
    async with opened(app) as pilot:
        await pilot.press("f1")
        await pilot.pause()
        assert isinstance(app.screen, HelpScreen)
        text = " ".join(app.screen.page("").plain.split())
        for key in KEYS:
            if key.when not in {Availability.REPLAY, Availability.SEARCH}:
                assert key.description in text
        for symbol in (*STAGES.values(), *SEVERITIES.values()):
            assert f"{symbol.glyph} " in text
            assert symbol.meaning in text
        await pilot.press("escape")
        assert isinstance(app.screen, OverviewScreen)


async def test_theme_key_cycles_through_themes() -> None:
    app, _ = live(RUN)
    async with opened(app) as pilot:
        names = [app.theme]
        for _ in range(4):
            await pilot.press("t")
            names.append(app.theme)
            await pilot.pause()
            style = next(iter(app.screen.query_one(EnvTable).render_line(3))).style
            assert style is not None
            assert style.bgcolor == app.palettes[app.theme].styles["normal"].bgcolor
        assert names == [*app.palettes, names[0]]


async def test_command_palette_lists_actions_and_themes() -> None:
    app, session = live(RUN)
    async with opened(app) as pilot:
        commands = {command.title: command for command in app.get_system_commands(app.screen)}
        assert {"Pause (p)", "Checkpoint (c)", "Restore (r)", "Quit (q)", "Theme high-contrast"} <= set(commands)
        assert "Play (space)" not in commands
        await pilot.press("ctrl+p", *"checkp", "down", "enter")
        assert [request.kind for request in await next_requests(pilot, session)] == [RequestKind.CHECKPOINT]


async def test_footer_shows_the_keys_of_the_env_map_while_it_is_displayed(tmp_path: Path) -> None:
    app, _ = replay(RUN, tmp_path)
    async with opened(app, size=(200, 60)) as pilot:
        assert "→ step" in shown(app, Footer)
        assert "o sort" in shown(app, Footer)
        await pilot.press("w")
        footer = shown(app, Footer)
        assert all(key in footer for key in ("↵ env", "o metric", "/ filter", "⇧→ round", "q quit"))
        assert "o sort" not in footer
        assert "→ step" not in footer  # the map moves its selection with this key
        await pilot.press("w")
        assert "o sort" in shown(app, Footer)


async def test_command_palette_lists_actions_of_the_screen() -> None:
    app, _ = live(RUN)
    async with opened(app) as pilot:
        assert not app.screen.query_one(EnvMap).display
        await pilot.press("ctrl+p", *"map", "down", "enter")
        await until(pilot, lambda: app.screen.query_one(EnvMap).display)
        await press(pilot, "6", "f")
        commands = {command.title for command in app.get_system_commands(app.screen)}
        assert {"Search (/)", "Kind (f)", "Severity (v)"} <= commands
        assert "Map (w)" not in commands
        assert [
            command.help for command in app.get_system_commands(app.screen) if command.title == "Clear filter (Esc)"
        ] == ["show all lines"]


async def test_replay_refuses_control_keys(tmp_path: Path) -> None:
    app, _ = replay(example_run(), tmp_path)
    async with opened(app) as pilot:
        for key in "pscr":
            app.clear_notifications()
            await pilot.press(key)
            assert "cannot be controlled" in " ".join(notices(app)), key
            assert isinstance(app.screen, OverviewScreen)


async def test_replay_keys_move_by_step_and_round(tmp_path: Path) -> None:
    app, playback = replay(example_run(rounds=3), tmp_path)
    async with opened(app) as pilot:
        assert "❚❚ REPLAY paused" in header(app)
        assert "left" not in header(app)
        seen: list[tuple[int, int]] = []
        for key in (
            "right",
            "right",
            "left",
            "shift+right",
            "right",
            "shift+right",
            "shift+left",
            "right_curly_bracket",
            "left_curly_bracket",
        ):
            await pilot.press(key)
            seen.append((app.source.state.round, app.source.state.step))
        assert seen == [(1, 1), (1, 2), (1, 1), (1, 5), (2, 1), (2, 5), (1, 5), (3, 5), (0, 0)]
        assert not playback.playing
        assert "digits_impaired-20261121-015300 ppo" in header(app)  # the first event has the configuration
        await pilot.press("right_curly_bracket")
        assert "round 3/3" in header(app)


async def test_replay_speed_keys_change_the_speed(tmp_path: Path) -> None:
    app, playback = replay(example_run(rounds=60), tmp_path)
    async with opened(app) as pilot:
        await pilot.press("space")
        assert playback.playing
        await pilot.press("greater_than_sign", "full_stop", "less_than_sign")
        assert playback.speed == 2.0
        await pilot.press("space")
        assert not playback.playing
        assert "❚❚ 2×" in shown(app, Timeline)
        await pilot.press(*["comma"] * 12)
        assert playback.speed == 0.1
        await pilot.press(*["full_stop"] * 12)
        assert "❚❚ max" in shown(app, Timeline)
        await pilot.press(*["comma"] * 7, "right_curly_bracket", "space")
        assert playback.position < playback.length  # it has restarted
        assert playback.playing


async def test_end_is_that_of_the_recording_and_then_of_the_list(tmp_path: Path) -> None:
    app, playback = replay(example_run(envs=8), tmp_path)
    async with app.run_test(size=SIZE) as pilot:
        for screen in ("1", "6", "7"):
            await press(pilot, screen, "left_curly_bracket", "right", "end")
            assert (app.view.selected_env, playback.position) == (0, playback.length)
        await pilot.press("1", "end")
        assert (app.view.selected_env, playback.position) == (7, playback.length)
        await pilot.press("home")
        assert (app.view.selected_env, playback.position) == (0, playback.length)
        app.screen.query_one(Timeline).focus()
        await pilot.press("home")
        assert playback.position == 1
        await pilot.press("slash", "8", "end", "backspace")
        assert playback.position == 1  # in an input, the key moves the cursor
        assert app.screen.query_one(Input).value == ""


async def test_tick_of_an_app_that_has_exited_reads_nothing(tmp_path: Path) -> None:
    """Its screens have lost their panels, which an update would need."""
    app, _ = replay(example_run(), tmp_path)
    async with app.run_test(size=SIZE):
        pass
    app.source.tick = lambda seconds: pytest.fail("the source was read")
    tick(app)


async def test_ctrl_c_in_a_browser_does_not_close_the_dashboard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, _ = replay(example_run(), tmp_path)
    async with opened(app) as pilot:
        monkeypatch.setattr(SanctumApp, "is_web", True)
        await pilot.press("ctrl+c")
        assert not has_left(app)
        assert notices(app) == [NO_SELECTION_MESSAGE]
        monkeypatch.setattr(type(app.screen), "get_selected_text", lambda _: "env 03")
        await pilot.press("ctrl+c")
        assert app.clipboard == "env 03"
        await pilot.press("q")
        assert has_left(app)


async def test_ctrl_z_suspends_unless_the_run_trains_in_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suspended: list[None] = []
    monkeypatch.setattr("esper.sanctum.actions.run.ResilientDriver", HeadlessDriver)
    monkeypatch.setattr(HeadlessDriver, "suspend", lambda _: suspended.append(None), raising=False)
    app, session = live(RUN)
    async with opened(app) as pilot:
        await pilot.press("ctrl+z")
        assert "the run trains in this process. p pauses it" in notices(app)[-1]
        assert suspended == []
        await emit(pilot, session, ev.RunEnded(outcome="done"))
        await pilot.press("ctrl+z")
        assert len(suspended) == 1
    app, _ = replay(RUN, tmp_path)
    async with opened(app) as pilot:
        await pilot.press("ctrl+z")
        assert len(suspended) == 2


async def send_at_once(app: SanctumApp, text: str, switches: int = 0) -> None:
    """Send keys as a terminal does after fast typing.

    Args:
        switches: Number of times that other tasks run between two keys; 0: none is handled before all have come.
    """
    for message in parse_input(text):
        app.post_message(message)
        for _ in range(switches):
            await asyncio.sleep(0)


@pytest.mark.parametrize("keys", ["/", "g", "6/", "7/", "C/", "?/", "\x10"])
async def test_keys_in_one_burst_with_the_key_that_opens_an_input_reach_it(keys: str, tmp_path: Path) -> None:
    text = "qr >6 /z+s7"  # most of these are commands
    app, playback = replay(example_run(), tmp_path, at_end=True)
    async with opened(app, size=(80, 24)) as pilot:
        at, version = playback.position, app.view.charts_on(app.screen).version
        for switches in (0, 1, 2, 5):
            await send_at_once(app, f"{keys}{text}\x7f\x1b[DQ", switches)  # the last two characters change places
            await until(pilot, lambda: isinstance(app.focused, Input) and "Q" in app.focused.value)
            assert isinstance(app.focused, Input)
            assert app.focused.value == f"{text[:-2]}Q{text[-2]}"
            await press(pilot, "escape", "1")
            assert not isinstance(app.focused, Input)
            assert (playback.position, has_left(app), playback.playing) == (at, False, False)
            assert app.view.charts_on(app.screen).version == version


async def test_keys_after_a_pasted_text_are_handled_after_it(tmp_path: Path) -> None:
    app, playback = replay(RUN, tmp_path)
    playback.speed = 0.01  # so that it stays in the round
    async with opened(app) as pilot:
        await send_at_once(app, "g\x1b[200~round:\x1b[201~3\r ")
        await until(pilot, lambda: app.source.state.round == 3 and playback.playing)  # Space came after the dialog
        assert len(app.screen_stack) == 1


async def test_playback_does_not_skip_the_time_of_a_suspension(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esper.sanctum.app.MAX_FRAME_S", 0.05)
    elapsed: list[float] = []
    app, _ = replay(RUN, tmp_path)
    async with opened(app):
        monkeypatch.setattr(app.source, "tick", lambda seconds: bool(elapsed.append(seconds)))
        time.sleep(0.1)  # as if the process were stopped
        tick(app)
        assert elapsed == [0.05]


async def test_browser_only_shows_a_live_run(monkeypatch: pytest.MonkeyPatch) -> None:
    app, session = live(RUN)
    async with opened(app) as pilot:
        monkeypatch.setattr(SanctumApp, "is_web", True)
        for key in ("p", "s", "c", "r", "Q"):
            await pilot.press(key)
            assert notices(app) == [BROWSER_MESSAGE]  # one, however often
        assert kinds(session) == []
