"""Writes the curves of a run as an offline run of Weights & Biases, which `wandb sync` uploads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from esper.recordings import events as ev
from esper.recordings.history.curves import Note, RunCurves, hyperparameters
from esper.recordings.history.export import NamedHistory, Track

PROJECT = "esper-sanctum"
STEP = "step"
"""Name of the x axis: steps of the run over all rounds."""


def export_wandb(recordings: Sequence[NamedHistory], out: Path, track: Track, *, per_env: bool) -> None:
    """Write an offline run per recording: the curves, the configuration, and the last values as the summary.

    Args:
        out: Empty directory.
        track: Passes the events on, and shows the progress.
        per_env: Also write the curves of single envs.

    Raises:
        ImportError: wandb is not installed.
        OSError: A file cannot be written.
    """
    wandb: Any = import_module("wandb")  # by name, because it is optional
    settings = wandb.Settings(
        console="off", silent=True, save_code=False, disable_git=True, x_disable_meta=True, x_disable_stats=True
    )
    for name, history in recordings:
        started = history.state_at(history.length).started
        run = wandb.init(
            mode="offline",
            dir=str(out),
            project=PROJECT,
            name=name,
            group=started.task if started else None,
            config=hyperparameters(started.config) if started else None,
            settings=settings,
            reinit="finish_previous",
        )
        run.define_metric(STEP, hidden=True)
        run.define_metric("*", step_metric=STEP)
        _log(run, track(history.events(), name), RunCurves(history.state_at(0), per_env=per_env), wandb.Table)
        run.finish()


def _log(run: Any, events: Iterable[ev.AnyEvent], curves: RunCurves, make_table: Callable[..., Any]) -> None:
    """Log the points of each step together, because W&B counts each call as a row, and all notes as a table."""
    notes: list[list[object]] = []
    pending: dict[str, float] = {}
    step = 0
    for event in events:
        for found in curves.points(event):
            if isinstance(found, Note):
                notes.append([found.step, found.title, found.text])
                continue
            if found.step != step and pending:
                run.log({**pending, STEP: step})
                pending = {}
            step = found.step
            pending[found.curve] = found.value
    if pending:
        run.log({**pending, STEP: step})
    if notes:
        run.log({"notes": make_table(columns=["step", "kind", "text"], data=notes), STEP: step})
