"""The first events of a run: its start with its settings, and notices about devices, locks and lanes."""

from __future__ import annotations

from typing import Any

import msgspec

from esper.common.configuration.config import Config
from esper.recordings import events as ev
from esper.recordings.files.recorder import write_manifest
from esper.recordings.state.hub import EventHub
from esper.training.engine import reporter
from esper.training.engine.run_files import RunFiles
from esper.training.engine.trained_policy import policy_label
from esper.training.engine.training_state import TrainingState
from esper.training.lanes.device_names import is_auto
from esper.training.lanes.devices import unusable_gpus
from esper.training.lanes.pool import EnvPool


def report_start(files: RunFiles, state: TrainingState, identity: dict[str, Any], defaults: dict[str, Any]) -> None:
    """Write `run.json`, and emit the event of the start of the run and its notices.

    Args:
        identity: Fields for `run.json` from `RunKind.identity`.
        defaults: Slots and settings of the task itself.

    Raises:
        RecordingError: `run.json` cannot be written.
    """
    config, ranks = state.config, state.ranks
    manifest = {"run": files.path.name, "config": msgspec.to_builtins(config), "versions": reporter.versions()}
    lanes = ranks.in_env_order(ranks.all_gather_object(state.pool.lane_by_env))
    ranks.run_on_rank0(lambda: write_manifest(files.own_directory, manifest | identity))
    search = state.director.search
    started = reporter.run_started(
        files.path.name,
        config,
        state.pool,
        state.origin,
        policy="search" if search else policy_label(config.policy),
        lanes=lanes,
        task_defaults=defaults,
        search=search,
    )
    files.hub.emit_global(started)
    _emit_notices(files.hub, state.pool, config, files.lock.warning if files.lock else None)


def _emit_notices(hub: EventHub, pool: EnvPool, config: Config, lock_warning: str | None) -> None:
    unused = unusable_gpus() if is_auto(config.devices) else {}
    warnings = [f"{gpu} is not used: {reason}" for gpu, reason in unused.items()]
    for text in filter(None, [lock_warning, *warnings]):
        hub.emit(ev.Logged(severity="warning", text=text))
    for text in pool.profile.warnings:  # the same in all ranks
        hub.emit_global(ev.Logged(severity="warning", text=text))
    for text in pool.notices:
        hub.emit(ev.Logged(severity="info", text=text))
    for lane in pool.lanes:
        if len(lane.pids) > 1:  # of a GPU that waits for launches
            text = f"{len(lane.pids)} worker processes train the envs of {lane.name}"
            hub.emit(ev.Logged(severity="info", text=text))
