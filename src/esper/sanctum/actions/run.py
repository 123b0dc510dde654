"""Run actions: pause, step, checkpoint, restore and quit, by keys and by signals."""

from __future__ import annotations

import asyncio
import signal
import threading
from types import FrameType

from esper.common.control import ENDING_KINDS, RequestKind
from esper.common.system.stop_signals import SignalHandler, replace_handlers, restore_handlers
from esper.sanctum.actions.resume import BROWSER_MESSAGE, ResumeActions
from esper.sanctum.driver import ResilientDriver
from esper.sanctum.requests import ACKNOWLEDGEMENTS, PendingRequests, pause_cause
from esper.sanctum.screens.checkpoint_picker import CheckpointPicker, existing_checkpoints
from esper.sanctum.screens.dialogs import ChoiceDialog, stop_dialog
from esper.sanctum.source import RunSource, run_has_ended
from esper.sanctum.view import ResumeRun
from esper.sanctum.widgets.header import progress_in_step


class RunActions(ResumeActions):
    """Send requests to the engine, and leave the dashboard."""

    def __init__(self, source: RunSource) -> None:
        super().__init__(source)
        self._handlers: dict[signal.Signals, SignalHandler] = {}
        """Signal handlers to restore. Keyed by signal."""
        self._stop_dialog: ChoiceDialog[RequestKind] | None = None
        """The last question whether to end the run."""

    @property
    def has_finished_leaving(self) -> bool:
        """True if the run has ended or is not set up yet after a stop request, or ended before it was set up."""
        source = self.own_source
        stop_requested = source.requests is not None and source.requests.stop_requested
        has_left = run_has_ended(source) or _is_starting(source)
        return (stop_requested and has_left) or not (source.alive or source.directory)

    def action_pause(self) -> None:
        """Request a pause, or resume a paused or crashed run."""
        directory = self.source.directory
        if directory is not None and self.source.outcome.name == "crashed":
            self.post_message(ResumeRun(directory))
            return
        self._request(RequestKind.RESUME if self.source.live_state.status == "paused" else RequestKind.PAUSE)

    def action_step(self) -> None:
        """Request one step of a paused run."""
        if self._require_engine() is None:
            return
        requests = self.source.requests
        is_pausing = requests is not None and requests.is_pending(RequestKind.PAUSE)
        if self.source.live_state.status != "paused" and not is_pausing:
            pause = self.view.key_names["run.pause"]
            self.notify(f"Single steps need a paused run. Press {pause} to pause.", severity="warning")
        else:
            self._request(RequestKind.STEP)

    def action_checkpoint(self) -> None:
        """Request a checkpoint."""
        self._request(RequestKind.CHECKPOINT)

    def action_restore(self) -> None:
        """Let the user choose a checkpoint, and request its restore."""
        if self._require_engine() is None:
            return
        if _is_starting(self.source):
            restore = self.view.key_names["run.restore"]
            self.notify(f"The run is starting. Press {restore} again when it has started.", severity="warning")
            return
        checkpoints = existing_checkpoints(self.source.live_state.checkpoints, self.source.directory)
        if not checkpoints:
            checkpoint = self.view.key_names["run.checkpoint"]
            self.notify(f"No checkpoint yet. Press {checkpoint} to write one.", severity="warning")
            return

        def request_restore(path: str | None) -> None:
            if path is not None:
                self._request(RequestKind.RESTORE, path)

        self.push_screen(CheckpointPicker(self.view, checkpoints), request_restore)

    def on_explanation_needed(self) -> None:
        """Request an explanation of the last decision for the selected env, if it has none and one is possible.

        A running engine explains the decision of the step in progress. Asking again at once explains every step.
        """
        requests, state = self.source.requests, self.source.live_state
        if requests is None or self.view.explanation_obstacle(is_web=self.is_web) is not None:
            return
        env = state.envs[self.view.selected_env] if state.envs else None
        if env is None or env.stepped is None or env.stepped.op_probability is None:
            return
        is_explained = env.explained is not None and env.explained.step == env.stepped.step
        if not is_explained or state.status == "running":
            requests.ask(RequestKind.EXPLAIN, env=env.env)

    async def action_quit(self) -> None:
        """Leave at once if that does not end a run with progress; else show that run, and ask first."""
        source = self.own_source
        if source.requests is None or source.attached or run_has_ended(source):
            self.exit()
            return
        self.show_own_run()
        if source.live_state.status == "starting":
            self._request(RequestKind.ABANDON)
        else:
            self.action_stop()

    def action_stop(self) -> None:
        """Ask whether to end the run; a second call while the dialog is open confirms it."""
        if self._stop_dialog is not None and self.screen is self._stop_dialog:
            self._stop_dialog.action_choose(0)
        elif self._require_engine() is not None:
            state = self.source.live_state
            self._stop_dialog = stop_dialog(
                self.view.key_names,
                attached=self.source.attached,
                paused=state.status == "paused",
                cause=state.cause,
                overdue=next(iter(state.overdue.values()), None),
            )
            self.push_screen(self._stop_dialog, lambda kind: self._request(kind) if kind is not None else None)

    def action_detach(self) -> None:
        """Leave the dashboard if the run trains in another process."""
        if self.source.attached:
            self.exit()
        else:
            message = "Cannot detach: the run trains in this process. Start it with --detach next time."
            self.notify(message, severity="warning")

    def action_suspend_process(self) -> None:
        """Suspend the dashboard, as a terminal does with Ctrl+Z, unless this would also suspend the training."""
        if self.is_web:
            self.notify(BROWSER_MESSAGE, severity="warning")
        elif self.own_source.live and not self.own_source.attached and not run_has_ended(self.own_source):
            pause = self.view.key_names["run.pause"]
            message = (
                f"Cannot suspend: the run trains in this process. {pause} pauses it; next time, start with --detach."
            )
            self.notify(message, severity="warning")
        elif isinstance(self._driver, ResilientDriver):
            self._driver.suspend()

    def on_load(self) -> None:
        """Handle TERM, INT and HUP in the event loop: the first stops the run, a second TERM or INT abandons it.

        Textual has not changed the terminal yet, so every exit restores it.

        The loop's own handlers are not used: their removal sets the default action for a moment, in which a second
        signal would kill the process before the last checkpoint is written.
        """
        if threading.current_thread() is threading.main_thread():
            loop = asyncio.get_running_loop()

            def handle(number: int, _: FrameType | None) -> None:
                loop.call_soon_threadsafe(self._handle_signal, number)

            self._handlers = replace_handlers(handle)

    def on_unmount(self) -> None:
        """Restore the signal handlers of the caller."""
        restore_handlers(self._handlers)

    def _require_engine(self) -> PendingRequests | None:
        """Return the requests to the engine; None, with a notification, if it accepts none."""
        requests = self.source.requests
        if self.is_web:
            self.notify(BROWSER_MESSAGE, severity="warning")
        elif requests is None:
            self.notify("Not available: a recording cannot be controlled.", severity="warning")
        elif requests.disabled_reason:
            self.notify(requests.disabled_reason, severity="warning")
        elif run_has_ended(self.source):
            self.notify("Not available: the run has ended.", severity="warning")
        else:
            return requests
        return None

    def _request(self, kind: RequestKind, path: str | None = None) -> None:
        """Send a request, unless the run is paused by a cause that would ignore it."""
        requests, cause = self._require_engine(), self.source.live_state.cause
        if requests and cause and kind in pause_cause(cause).refused_requests:
            advice = pause_cause(cause).format_advice(self.view.key_names)
            self.notify(advice, severity="warning")
        elif requests:
            requests.ask(kind, path)
            self._acknowledge(kind)
            self.refresh_view()

    def _acknowledge(self, kind: RequestKind) -> None:
        """Notify the user of a request that the engine cannot handle soon. The header shows every pending request."""
        overdue = next(iter(self.source.live_state.overdue.values()), None)
        if overdue is not None and kind in ENDING_KINDS:
            when = f"once the call returns or has taken {overdue.max_seconds:.0f} s"
            self.notify(f"The run will end {when}; a signal to its process ends it at once.")
            return
        if _is_starting(self.source):
            if kind in ENDING_KINDS:  # the dashboard closes at once
                return
            when = "when it has started"
        elif progress_in_step(self.view):
            when = "after this step"
        else:
            return
        self.notify(f"{ACKNOWLEDGEMENTS[kind]} {when}.")

    def _handle_signal(self, number: int) -> None:
        source = self.own_source
        requests = source.requests
        closed = number == signal.SIGHUP  # a closing terminal sends several SIGHUPs: they count as one
        if requests is None or source.attached or run_has_ended(source):
            self.exit()
        elif requests.stop_requested and not closed:
            requests.ask(RequestKind.ABANDON, origin="signal")
            self.exit(return_code=128 + number)
        else:
            if not requests.stop_requested:
                requests.ask(RequestKind.STOP, origin="signal")
            if closed:  # the engine writes its checkpoint, but no terminal is left to show the progress
                self.exit()
            self.refresh_view()


def _is_starting(source: RunSource) -> bool:
    """Return True while a run of this process is being set up: torch is imported, and nothing is recorded yet."""
    return source.live and source.directory is None and source.live_state.status == "starting"
