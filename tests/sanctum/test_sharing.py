"""Sharing: an address opens the same view again, an excerpt opens without the run."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from textual.pilot import Pilot

from esper.cli.commands import replay as command
from esper.cli.dashboard import DisplayOptions
from esper.cli.main import main
from esper.recordings import events as ev
from esper.recordings.history.history import open_history
from esper.sanctum.actions import sharing
from esper.sanctum.app import SanctumApp
from esper.sanctum.source import RunSource
from esper.sanctum.theme import DEFAULT_THEME
from tests.factory import example_run
from tests.recordings.files.recordings import recording, write_segment
from tests.sanctum.driving import SIZE, live, notices, opened, press, replay_of, screen_text, settle

RUN = [msgspec.structs.replace(event, time=1e9 + 4 * event.seq) for event in example_run()]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("telemetry").mkdir()
    return write_segment(tmp_path / "telemetry" / "night", 1, recording(RUN)).parent


def open_address(address: str, monkeypatch: pytest.MonkeyPatch) -> SanctumApp:
    """Return the dashboard that `replay ADDRESS` opens."""
    apps: list[SanctumApp] = []

    def show(source: RunSource, _: DisplayOptions, *, env: int, initial_view: str, moment: str | None) -> int:
        apps.append(SanctumApp(source, theme=DEFAULT_THEME, env=env, initial_view=initial_view, moment=moment))
        return 0

    monkeypatch.setattr(command, "show_dashboard", show)
    assert main(["replay", address]) == 0
    return apps[0]


@pytest.mark.parametrize(
    ("keys", "step", "address"),
    [
        ([], 7, "night#step=7&env=0&view=overview"),
        (["j", "j", "2"], 3, "night#step=3&env=2&view=policy"),
        (["j", "enter"], 9, "night#step=9&env=1&view=env"),
    ],
)
async def test_address_opens_the_same_view(
    run: Path, keys: list[str], step: int, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, playback = replay_of(open_history(run))
    async with app.run_test(size=SIZE) as pilot:
        playback.seek(playback.history.steps[step - 1])
        await settle(pilot)
        await press(pilot, *keys)
        expected = screen_text(app)
        await pilot.press("Y")
        assert app.clipboard == address
        assert f"esper-sanctum replay '{address}'" in notices(app)[0]
    again = open_address(address, monkeypatch)
    async with opened(again):
        assert again.view.selected_env == app.view.selected_env
        assert screen_text(again) == expected


def test_address_of_an_anomaly_selects_its_env(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = next(event for event in RUN if isinstance(event, ev.AnomalyFound) and event.env is not None)
    history = open_history(run)
    app = open_address("night#anomaly=1", monkeypatch)
    assert app.view.selected_env == found.env
    assert app.source.state.seq in history.steps
    assert open_address("night#anomaly=1&env=2", monkeypatch).view.selected_env == 2


async def test_address_between_steps_gives_the_event(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app, playback = replay_of(open_history(run))
    async with app.run_test(size=SIZE) as pilot:
        playback.seek(playback.history.steps[3] + 2)
        await pilot.press("Y")
        assert app.clipboard == f"night#event={playback.position}&env=0&view=overview"
    again = open_address(app.clipboard, monkeypatch)
    assert repr(again.source.state) == repr(playback.state)


async def test_live_run_has_an_address(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app, session = live(RUN[:40])
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("Y")
        assert app.clipboard == ""
        session.directory = run
        await settle(pilot)
        await pilot.press("Y")
        assert app.clipboard == "night#event=40&env=0&view=overview"
    assert repr(open_address(app.clipboard, monkeypatch).source.state) == repr(app.source.state)


async def wait_for_excerpt(pilot: Pilot[None]) -> None:
    """Wait for the thread that writes the excerpt."""
    await pilot.app.workers.wait_for_complete()
    await pilot.pause()


async def test_excerpt_opens_with_the_same_screen(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app, playback = replay_of(open_history(run))
    async with app.run_test(size=SIZE) as pilot:
        playback.seek(playback.history.steps[4])
        await settle(pilot)
        await pilot.press("X")
        await wait_for_excerpt(pilot)
        assert [path.name for path in Path.cwd().glob("*.zst")] == ["night-step5.jsonl.zst"]
        assert "To open it: esper-sanctum replay night-step5.jsonl.zst" in notices(app)[0]
    again = open_address("night-step5.jsonl.zst#step=5", monkeypatch)
    assert repr(again.source.state) == repr(playback.state)
    async with opened(again) as pilot:
        await pilot.press("right", "Y")  # an excerpt keeps the step numbers
        assert again.clipboard == "night-step5.jsonl.zst#step=6&env=0&view=overview"


async def test_excerpt_of_live_run_stays_in_the_present(run: Path) -> None:
    app, session = live(RUN)
    session.directory = run
    async with opened(app) as pilot:
        await pilot.press("X")
        await wait_for_excerpt(pilot)
        assert app.source.playback is None
    excerpt = open_history(run.with_name("night-step10.jsonl.zst"))
    assert repr(excerpt.state_at(excerpt.length)) == repr(app.source.state)


async def test_failed_excerpt_reports_the_error(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app, _ = replay_of(open_history(run))

    def fail(*_: object) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sharing, "write_excerpt", fail)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("X")
        await wait_for_excerpt(pilot)
        assert "No space left on device" in notices(app)[0]


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("night#step=99", "step:99 is not in this recording"),
        ("night#env=4", "env 4 not found in night, which has 4 envs, counted from 0"),
        ("night#view=overwiev", "unknown view 'overwiev'; did you mean overview?"),
        ("night#setp=3", "unknown key in 'setp=3' of 'night#setp=3'; did you mean step?"),
        ("day#step=1", "'day' is neither a file nor a run"),
    ],
)
def test_invalid_address_is_refused(run: Path, address: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run.is_dir()
    assert main(["replay", address]) == 2
    message = capsys.readouterr().err
    assert says in message
    assert message.count("\n") == 1


def test_address_conflicts_with_at_and_follow(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", f"{run.name}#step=1", "--at", "round:1", "--no-tui"]) == 2
    assert "already names a moment; remove --at" in capsys.readouterr().err
    assert main(["replay", f"{run.name}#step=1", "--follow"]) == 2
    assert "names a moment; remove --follow" in capsys.readouterr().err
    assert main(["replay", run.name, "--at", "step:1", "--follow"]) == 2
    assert "--follow starts at the end; remove --at" in capsys.readouterr().err


def test_hash_in_an_existing_path_is_not_an_address(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = run.rename(run.with_name("night#2"))
    assert isinstance(RUN[-1], ev.RunEnded)
    assert main(["replay", str(odd), "--no-tui"]) == 0
    assert "done" in capsys.readouterr().out


async def test_web_viewer_cannot_write_files_on_the_server(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(run.parent.parent.rglob("*"))
    app = open_address("night", monkeypatch)
    async with opened(app) as pilot:
        monkeypatch.setattr(SanctumApp, "is_web", True)
        for key in ("S", "X"):
            await pilot.press(key)
            await app.workers.wait_for_complete()
            assert notices(app) == [sharing.BROWSER_MESSAGE]
            app.clear_notifications()
    assert sorted(run.parent.parent.rglob("*")) == before
