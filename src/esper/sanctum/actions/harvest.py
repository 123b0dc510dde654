"""Harvest action: writes the grown network of the selected env as ordinary files."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Sequence
from pathlib import Path

from esper.common.system.process import python_command
from esper.recordings.checkpoints.manifest import CheckpointError, read_manifest
from esper.recordings.events import CheckpointSaved
from esper.recordings.files.runs import safe_run_name
from esper.sanctum.actions.base import BaseApp
from esper.sanctum.keys import bindings_of
from esper.sanctum.screens.checkpoint_picker import existing_checkpoints, local_path
from esper.sanctum.screens.dialogs import Choice, ChoiceDialog
from esper.sanctum.view import TOAST_SECONDS

BROWSER_MESSAGE = "Networks cannot be harvested from the browser. On the server: esper-sanctum harvest RUN --to DIR"
"""Notice in place of files, which would be written on the web server, not on the machine of the viewer."""

_PROGRAM = "from esper.cli.main import main; raise SystemExit(main())"
"""The command line, in another process."""


class HarvestActions(BaseApp):
    """Harvest the selected env from the newest checkpoint at the moment on the screen, in another process."""

    def action_harvest(self) -> None:
        """Ask whether to harvest the selected env, and do it."""
        if self.refuse_in_browser(BROWSER_MESSAGE):
            return
        run = self.source.directory
        existing = existing_checkpoints(self.source.state.checkpoints, run)
        if not existing:
            checkpoint = self.view.key_names["run.checkpoint"]
            advice = f" Press {checkpoint} to write one." if self.source.live else ""
            self.notify(f"There is no checkpoint from before this moment.{advice}", severity="warning")
            return
        saved = existing[-1]
        path = local_path(saved, run)
        try:
            origin = read_manifest(path).origin
        except CheckpointError as error:
            self.notify(str(error), severity="error")
            return
        env = self.view.selected_env
        target = self._harvest_path(saved, env)
        words = [str(path), "--env", str(env), "--to", str(target)]
        words += ["--task", origin.reference] if origin else []
        command = shlex.join(["esper-sanctum", "harvest", *words])
        if origin and (self.source.attached or not self.source.live):
            # This dashboard was not given the user's code, and runs only code that the user has named.
            self.copy_to_clipboard(command)
            message = f"The task is your own code. Command copied, to run in a terminal: {command}"
            self.notify(message, timeout=TOAST_SECONDS)
            return
        question = (
            f"Harvest env {env:02d} at round {saved.round} step {saved.step}, the newest checkpoint?\n"
            f"Weights, structure, model card and a PyTorch program go to {target}"
        )

        def start(confirmed: bool | None) -> None:
            if confirmed:
                self.notify(f"Env {env:02d} is being harvested in another process.")
                self.run_worker(self._harvest(words, target), group="harvest")

        choices = [Choice("h", "harvest", True)]
        self.push_screen(ChoiceDialog(question, choices, bindings=bindings_of("dismiss", "view.harvest")), start)

    def _harvest_path(self, saved: CheckpointSaved, env: int) -> Path:
        """Return the directory to write: in that of a live run, else in the working directory."""
        directory, state = self.source.directory, self.source.state
        name = f"env{env:02d}-round{saved.round:03d}-step{saved.step:03d}"
        if self.source.live and directory is not None:
            return directory / "grown" / name
        run = safe_run_name(state.started and state.started.run, "run")
        return Path(f"{run}-{name}")

    async def _harvest(self, words: Sequence[str], target: Path) -> None:
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
            self.notify(f"Harvested to {target}: {scores}", timeout=TOAST_SECONDS)

    def _notify_failure(self, reason: str) -> None:
        self.notify(f"The harvest failed: {reason}", severity="error", timeout=TOAST_SECONDS)
