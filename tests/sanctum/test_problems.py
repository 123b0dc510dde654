"""A run held by a fault: the screen shows the full reason in the error colour, and the usable keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from esper.common.control import RequestKind
from esper.recordings import events as ev
from esper.sanctum.app import SanctumApp
from esper.sanctum.widgets.footer import Footer
from esper.sanctum.widgets.problems import PauseCausePanel
from tests.factory import example_run
from tests.sanctum.driving import ROOMY, header, live, notices, opened, replay, resize, settle, shown

RUN = example_run()[:-1]
REASON = "env 01 on cpu:0 failed: RuntimeError: " + " ".join(["mat1 and mat2 shapes cannot be multiplied"] * 3)


def paused(cause: str, reason: str = REASON) -> ev.Paused:
    seq, time = RUN[-1].seq + 1, RUN[-1].time
    return ev.Paused(seq=seq, time=time, round=2, step=5, origin="engine", reason=reason, cause=cause)


def in_error(app: SanctumApp) -> str:
    """Text of the panel in the error style, on one line."""
    held = app.screen.query_one(PauseCausePanel)
    style = app.view.palette["error"]
    strips = [held.render_line(y) for y in range(held.size.height)]
    return " ".join(" ".join(segment.text for strip in strips for segment in strip if segment.style == style).split())


async def test_pause_reason_in_wide_characters_is_shown_in_full() -> None:
    reason = "env 01 failed: RuntimeError: 漢字 something with a very long message that goes on " + "容量不足" * 20
    app, _ = live([*RUN, paused("fault", reason)])
    async with opened(app) as pilot:
        for size in ((80, 24), (83, 30), ROOMY):
            await resize(pilot, size)
            assert in_error(app).replace(" ", "") == f"✖ {reason}".replace(" ", ""), size


@pytest.mark.parametrize(
    ("cause", "way", "keys", "no_keys"),
    [
        ("fault", "r restore a checkpoint Q end the run", ["r restore"], ["p resume", "s step", "c check"]),
        ("unsaved", "Q quit, with or without saving", ["c checkpoint", "r restore"], ["p resume", "s step"]),
        ("of tomorrow", "see the reason", ["p resume", "c checkpoint"], []),
        ("recording", "once it can write again Q end the run", ["c checkpoint", "r restore"], ["p resume", "s step"]),
        ("checkpoint", "Q quit, with or without saving p resume the run", ["p resume", "c checkpoint"], []),
    ],
)
async def test_held_run_shows_full_reason_and_usable_keys(
    cause: str, way: str, keys: list[str], no_keys: list[str]
) -> None:
    app, session = live([*RUN, paused(cause)])
    async with opened(app, size=(80, 24)) as pilot:
        await pilot.pause()
        assert "✖ HELD" in header(app)
        assert in_error(app) == f"✖ {REASON}"
        assert shown(app, PauseCausePanel).endswith(way)
        for key in keys:
            assert key in shown(app, Footer)
        for key in no_keys:
            assert key not in shown(app, Footer)

        session.say(ev.Resumed(seq=RUN[-1].seq + 2, time=RUN[-1].time, round=2, step=5, origin="engine"))
        await settle(pilot)
        await pilot.pause()
        assert "● RUNNING" in header(app)
        assert not app.screen.query_one(PauseCausePanel).region


async def test_page_in_a_browser_names_no_keys_of_a_held_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its requests would be refused."""
    monkeypatch.setattr(SanctumApp, "is_web", True)
    app, _ = live([*RUN, paused("fault")])
    async with opened(app, size=(80, 24)) as pilot:
        await pilot.pause()
        assert shown(app, PauseCausePanel) == in_error(app) == f"✖ {REASON}"


async def test_held_run_sends_no_request_that_would_be_refused(tmp_path: Path) -> None:
    app, session = live([*RUN, paused("fault")])
    session.keep(tmp_path, RUN)
    async with opened(app, size=(80, 24)) as pilot:
        await pilot.press("p", "s", "c")
        assert session.asked() == []
        assert "r restore a checkpoint" in " ".join(notices(app))
        await pilot.press("r", "enter")
        assert [request.kind for request in session.asked()] == [RequestKind.RESTORE]
        await settle(pilot)
        assert "✖ HELD restoring…" in header(app)


async def test_very_long_pause_reason_is_truncated() -> None:
    app, _ = live([*RUN, paused("fault", "no such kernel " * 500)])
    async with opened(app, size=(80, 24)) as pilot:
        await pilot.pause()
        assert app.screen.query_one(PauseCausePanel).size.height <= 8
        assert in_error(app).endswith("…")


async def test_replay_of_held_run_shows_reason_without_keys(tmp_path: Path) -> None:
    app, _ = replay([*RUN, paused("fault")], tmp_path, at_end=True)
    async with opened(app, size=(80, 24)) as pilot:
        await pilot.pause()
        assert "REPLAY paused, of a held run" in header(app)
        assert shown(app, PauseCausePanel) == in_error(app) == f"✖ {REASON}"


async def test_replay_at_a_call_that_does_not_return_says_so(tmp_path: Path) -> None:
    place = {"function": "forward", "file": "/home/user/endless.py", "line": 28}
    overdue = ev.CallOverdue(env=3, lane="cpu:0", seconds=10.2, max_seconds=30.0, **place)
    app, _ = replay([*RUN, overdue], tmp_path, at_end=True)
    async with opened(app, size=(80, 24)) as pilot:
        await pilot.pause()
        assert "REPLAY paused, of a stuck call " in header(app)
