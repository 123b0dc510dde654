"""Harvest action: writes the grown network of the selected env as ordinary files."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, Protocol

from esper.checkpoint.manifest import CheckpointError, read_manifest
from esper.process import python_command
from esper.recording.runs import safe_run_name
from esper.sanctum.controllers import AppServices
from esper.sanctum.controllers.sharing import TOAST_SECONDS
from esper.sanctum.screens.dialogs import HarvestDialog
from esper.sanctum.source import RunSource
from esper.sanctum.view import ViewState
from esper.telemetry.events import CheckpointSaved

BROWSER_MESSAGE = "Networks cannot be harvested from the browser. On the server: esper-sanctum harvest RUN --to DIR"
"""Notice in place of files, which would be written on the web server, not on the machine of the viewer."""

_PROGRAM = "from esper.cli.main import main; raise SystemExit(main())"
"""The command line, in another process."""


class HarvestServices(AppServices, Protocol):
    """Services of the app that `HarvestActions` uses."""

    @property
    def is_web(self) -> bool:
        """True if the dashboard is shown in a browser."""
        ...

    def copy_to_clipboard(self, text: str) -> None:
        """Copy a text to the clipboard of the terminal."""
        ...

    def run_worker(self, work: Coroutine[Any, Any, None], *, group: str) -> object:
        """Run a coroutine in the background."""
        ...


class HarvestActions:
    """Harvest the selected env from the newest checkpoint at the moment on the screen, in another process.

    Args:
        source: Source of the run.
        view: State that all panels share.
        app: Services of the app.
    """

    def __init__(self, source: RunSource, view: ViewState, app: HarvestServices) -> None:
        self._source = source
        self._view = view
        self._app = app

    def harvest(self) -> None:
        """Ask whether to harvest the selected env, and do it."""
        if self._app.is_web:
            self._app.notify(BROWSER_MESSAGE, severity="warning")
            return
        from esper.sanctum.screens.checkpoint_picker import existing_checkpoints, local_path  # slow to import

        run = self._source.directory
        existing = existing_checkpoints(self._source.state.checkpoints, run)
        if not existing:
            checkpoint = self._view.key_names["run.checkpoint"]
            advice = f" Press {checkpoint} to write one." if self._source.live else ""
            self._app.notify(
                f"There is no checkpoint from before this moment.{advice}", severity="warning", markup=False
            )
            return
        saved = existing[-1]
        path = local_path(saved, run)
        try:
            origin = read_manifest(path).origin
        except CheckpointError as error:
            self._app.notify(str(error), severity="error", markup=False)
            return
        env = self._view.selected_env
        target = self._target(saved, env)
        words = [str(path), "--env", str(env), "--to", str(target)]
        words += ["--task", origin.reference] if origin else []
        command = shlex.join(["esper-sanctum", "harvest", *words])
        if origin and (self._source.attached or not self._source.live):
            # This dashboard was not given the user's code, and runs only code that the user has named.
            self._app.copy_to_clipboard(command)
            message = f"The task is your own code. Command copied, to run in a terminal: {command}"
            self._app.notify(message, timeout=TOAST_SECONDS, markup=False)
            return
        question = (
            f"Harvest env {env:02d} at round {saved.round} step {saved.step}, the newest checkpoint?\n"
            f"Weights, structure, model card and a PyTorch program go to {target}"
        )

        def start(confirmed: bool | None) -> None:
            if confirmed:
                self._app.notify(f"Env {env:02d} is being harvested in another process.")
                self._app.run_worker(self._run(words, target), group="harvest")

        self._app.push_screen(HarvestDialog(question), start)

    def _target(self, saved: CheckpointSaved, env: int) -> Path:
        """Return the directory to write: in that of a live run, else in the working directory."""
        directory, state = self._source.directory, self._source.state
        name = f"env{env:02d}-round{saved.round:03d}-step{saved.step:03d}"
        if self._source.live and directory is not None:
            return directory / "grown" / name
        run = safe_run_name(state.started and state.started.run, "run")
        return Path(f"{run}-{name}")

    async def _run(self, words: Sequence[str], target: Path) -> None:
        command, environment = python_command(_PROGRAM, "harvest", *words)
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:  # an exception in a worker would end the dashboard, and with it the run
            self._notify_failure(str(error))
            return
        output, errors = await process.communicate()
        if process.returncode:
            last = errors.decode(errors="replace").strip().splitlines() or ["no message"]
            self._notify_failure(last[-1].removeprefix("esper-sanctum: "))
        else:
            scores = output.decode(errors="replace").splitlines()[0]
            self._app.notify(f"Harvested to {target}: {scores}", timeout=TOAST_SECONDS, markup=False)

    def _notify_failure(self, reason: str) -> None:
        self._app.notify(f"The harvest failed: {reason}", severity="error", timeout=TOAST_SECONDS, markup=False)
