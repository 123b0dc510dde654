"""The dashboard over a real engine: keys pause, checkpoint, resume, restore and quit."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest
import torch
from textual.widgets import Static
from torch import Tensor

from esper.common.configuration.files import resolve_config
from esper.sanctum.app import SanctumApp
from esper.sanctum.source import LiveSource
from esper.sanctum.widgets.problems import PauseCausePanel
from esper.training.checkpoint.files import read_checkpoint
from esper.training.engine.ending import TRAINED
from esper.training.engine.start_point import RunOptions, StartPoint
from esper.training.engine.thread import EngineThread
from esper.training.envs.env import Env
from tests.runs import tiny
from tests.sanctum.driving import until


async def test_keys_pause_checkpoint_and_resume_a_real_engine(tmp_path: Path) -> None:
    engine = EngineThread(StartPoint(resolve_config(None, tiny(tmp_path, envs=2, rounds=500, checkpoint_every=0))))
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
        assert source.state.seq == events + 2  # during the pause, only the request and the checkpoint were recorded
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
    assert engine.ending == TRAINED


@pytest.mark.slow
async def test_fault_holds_the_run_until_restore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train, failed = Env.train_epoch, threading.Event()

    def broken(env: Env, step: int) -> Tensor:
        if (env.index, step) == (1, 2) and not failed.is_set():
            failed.set()
            raise torch.OutOfMemoryError("Tried to allocate 2.00 TiB.")
        return train(env, step)

    monkeypatch.setattr(Env, "train_epoch", broken)
    engine = EngineThread(
        StartPoint(resolve_config(None, tiny(tmp_path, envs=2, rounds=500))), RunOptions(interactive=True)
    )
    source = LiveSource(engine)
    app = SanctumApp(source, theme="sanctum-dark")
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: source.state.cause == "fault")
        held = app.screen.query_one(PauseCausePanel)
        await until(pilot, lambda: "env 01 on cpu:0 ran out of memory: Tried to allocate 2.00 TiB." in held.text)

        await pilot.press("r", "enter")
        await until(pilot, lambda: source.state.status == "running" and source.state.step > 2)
        assert not held.region
        await pilot.press("q", "w")
        await until(pilot, lambda: source.state.status == "stopped")
    engine.join()
    assert engine.ending == TRAINED


@pytest.mark.slow
async def test_deleted_directory_holds_the_run_until_it_is_ended(tmp_path: Path) -> None:
    engine = EngineThread(
        StartPoint(resolve_config(None, tiny(tmp_path / "runs", rounds=5000))), RunOptions(interactive=True)
    )
    source = LiveSource(engine)
    app = SanctumApp(source, theme="sanctum-dark")
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: source.state.steps_done >= 2)
        while (tmp_path / "runs").exists():  # the run may write a file meanwhile
            shutil.rmtree(tmp_path / "runs", ignore_errors=True)
        await until(pilot, lambda: source.state.cause == "lost")
        held = app.screen.query_one(PauseCausePanel)
        await until(pilot, lambda: "the directory was deleted" in " ".join(held.text.split()))
        await pilot.press("r", "c", "p")
        await pilot.press("Q")
        question = str(app.screen.query_one("#question", Static).render())
        assert question == "The run directory was deleted; nothing can be saved. End the run?"
        await pilot.press("enter")
        await until(pilot, lambda: source.state.status == "failed")
    engine.join()
    assert engine.ending is not None
    assert engine.ending.text.endswith("was deleted; its events and checkpoints are lost; start the run again")
    assert not (tmp_path / "runs").exists()
