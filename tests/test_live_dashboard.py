"""The dashboard over a real engine: what the keys ask for is what the engine does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from textual.pilot import Pilot

from esper.config import resolve
from esper.engine.checkpoint import read_checkpoint
from esper.launch import EngineThread
from esper.sanctum.app import SanctumApp
from esper.sanctum.source import LiveSource
from tests.runs import tiny

PATIENCE = 60.0
"""Seconds: far more than anything takes; what never comes fails the test."""


async def until(pilot: Pilot[None], condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await pilot.pause(0.05)


async def test_pause_holds_checkpoint_writes_and_resume_goes_on(tmp_path: Path) -> None:
    engine = EngineThread(resolve(None, tiny(tmp_path, envs=2, rounds=500, checkpoint_every=0)), None)
    source = LiveSource(engine)
    app = SanctumApp(source, theme="sanctum-dark")
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: source.state.steps_done >= 2)

        await pilot.press("p")
        await until(pilot, lambda: source.state.status == "paused")
        held, events = source.state.steps_done, source.state.seq

        await pilot.press("c")
        await until(pilot, lambda: len(source.state.checkpoints) == 1)
        assert source.state.steps_done == held
        assert source.state.seq == events + 2  # the request, the checkpoint and nothing else came in the pause
        saved = source.state.checkpoints[0]
        checkpoint = read_checkpoint(Path(saved.path))
        assert checkpoint.round * 4 + checkpoint.step == held

        await pilot.press("s")
        await until(pilot, lambda: source.state.steps_done == held + 1 and source.state.status == "paused")

        await pilot.press("p")
        await until(pilot, lambda: source.state.status == "running" and source.state.steps_done >= held + 3)

        await pilot.press("r")
        await pilot.press("enter")
        restored = f"from {saved.path}"
        await until(pilot, lambda: any(line.kind == "Resumed" and restored in line.text for line in source.state.log))

        await pilot.press("q", "w")
        await until(pilot, lambda: source.state.status == "stopped")
    engine.join()
    assert engine.crash is None
