"""Run actions: pause, step, checkpoint, restore and quit, by keys and by signals."""

from __future__ import annotations

import asyncio
import signal
import threading
from types import FrameType
from typing import Protocol

from esper.control import RequestKind
from esper.sanctum.controllers import AppServices
from esper.sanctum.requests import PendingRequests, pause_cause
from esper.sanctum.screens.dialogs import QuitDialog
from esper.sanctum.source import RunSource, run_has_ended
from esper.sanctum.view import ViewState
from esper.stop_signals import SignalHandler, replace_handlers, restore_handlers

BROWSER_MESSAGE = "This page only shows the run. It cannot control it."
"""Notice in place of a request."""


class RunServices(AppServices, Protocol):
    """Services of the app that `RunActions` uses."""

    @property
    def is_web(self) -> bool:
        """True if the dashboard is shown in a browser."""
        ...

    def exit(self, *, return_code: int = 0) -> None:
        """Leave the dashboard with an exit code."""
        ...


class RunActions:
    """Send requests to the engine, and leave the dashboard.

    Args:
        source: Source of the run.
        view: State that the panels share.
        app: Services of the app.
    """

    def __init__(self, source: RunSource, view: ViewState, app: RunServices) -> None:
        self._source = source
        self._view = view
        self._app = app
        self._handlers: dict[signal.Signals, SignalHandler] = {}
        """Signal handlers to restore. Keyed by signal."""

    @property
    def has_finished_leaving(self) -> bool:
        """True if the run has ended after a stop request, or ended before it was set up."""
        source = self._source
        stop_requested = source.requests is not None and source.requests.stop_requested
        return (stop_requested and run_has_ended(source)) or not (source.alive or source.directory)

    def toggle_pause(self) -> None:
        """Request a pause, or resume a paused run."""
        self._request(RequestKind.RESUME if self._source.live_state.status == "paused" else RequestKind.PAUSE)

    def step(self) -> None:
        """Request one step of a paused run."""
        if self._require_engine() is None:
            return
        if self._source.live_state.status != "paused":
            self._app.notify(
                f"Single steps need a paused run. Press {self._view.key_names['run.pause']} to pause.",
                severity="warning",
                markup=False,
            )
        else:
            self._request(RequestKind.STEP)

    def checkpoint(self) -> None:
        """Request a checkpoint."""
        self._request(RequestKind.CHECKPOINT)

    def restore(self) -> None:
        """Let the user choose a checkpoint, and request its restore."""
        if self._require_engine() is None:
            return
        from esper.sanctum.screens.checkpoint_picker import CheckpointPicker, existing_checkpoints  # slow to import

        checkpoints = existing_checkpoints(self._source.live_state.checkpoints, self._source.directory)
        if not checkpoints:
            self._app.notify(
                f"No checkpoint yet. Press {self._view.key_names['run.checkpoint']} to write one.",
                severity="warning",
                markup=False,
            )
            return

        def request_restore(path: str | None) -> None:
            if path is not None:
                self._request(RequestKind.RESTORE, path)

        self._app.push_screen(CheckpointPicker(checkpoints, lambda: self._source.live_state), request_restore)

    def explain_decision(self) -> None:
        """Request an explanation of the last decision for the selected env, if it has none and one is possible.

        A running engine explains the decision of the step in progress. Asking again at once explains every step.
        """
        requests, state = self._source.requests, self._source.live_state
        if requests is None or self._view.explanation_obstacle(is_web=self._app.is_web) is not None:
            return
        env = state.envs[self._view.selected_env] if state.envs else None
        if env is None or env.stepped is None or env.stepped.op_probability is None:
            return
        is_explained = env.explained is not None and env.explained.step == env.stepped.step
        if not is_explained or state.status == "running":
            requests.ask(RequestKind.EXPLAIN, env=env.env)

    def quit(self) -> None:
        """Leave at once if that does not end a run with progress; else ask first."""
        if self._source.requests is None or self._source.attached or run_has_ended(self._source):
            self._app.exit()
        elif self._source.live_state.status == "starting":
            self._request(RequestKind.ABANDON)
        else:
            self.stop()

    def stop(self) -> None:
        """Ask whether to end the run; a second call while the dialog is open confirms it."""
        screen = self._app.screen
        if isinstance(screen, QuitDialog):
            screen.confirm()
        elif self._require_engine() is not None:
            state = self._source.live_state
            dialog = QuitDialog(
                self._view.key_names,
                attached=self._source.attached,
                paused=state.status == "paused",
                cause=state.cause,
            )
            self._app.push_screen(dialog, self._request_end)

    def detach(self) -> None:
        """Leave the dashboard if the run trains in another process."""
        if self._source.attached:
            self._app.exit()
        else:
            message = "Cannot detach: the run trains in this process. Start it with --detach next time."
            self._app.notify(message, severity="warning")

    def install_signal_handlers(self) -> None:
        """Handle TERM, INT and HUP in the event loop: the first stops the run, a second TERM or INT abandons it.

        The loop's own handlers are not used: their removal sets the default action for a moment, in which a second
        signal would kill the process before the last checkpoint is written.
        """
        if threading.current_thread() is threading.main_thread():
            loop = asyncio.get_running_loop()

            def handle(number: int, _: FrameType | None) -> None:
                loop.call_soon_threadsafe(self._on_signal, number)

            self._handlers = replace_handlers(handle)

    def restore_signal_handlers(self) -> None:
        """Restore the handlers that `install_signal_handlers` replaced."""
        restore_handlers(self._handlers)

    def _require_engine(self) -> PendingRequests | None:
        """Return the requests to the engine; None, with a notification, if it accepts none."""
        requests = self._source.requests
        if self._app.is_web:
            self._app.notify(BROWSER_MESSAGE, severity="warning")
        elif requests is None:
            self._app.notify("Not available: a recording cannot be controlled.", severity="warning")
        elif requests.disabled_reason:
            self._app.notify(requests.disabled_reason, severity="warning")
        elif run_has_ended(self._source):
            self._app.notify("Not available: the run has ended.", severity="warning")
        else:
            return requests
        return None

    def _request(self, kind: RequestKind, path: str | None = None) -> None:
        """Send a request, unless the run is paused by a cause that would ignore it."""
        requests, cause = self._require_engine(), self._source.live_state.cause
        if requests and cause and kind in pause_cause(cause).refused_requests:
            advice = pause_cause(cause).format_advice(self._view.key_names)
            self._app.notify(advice, severity="warning", markup=False)
        elif requests:
            requests.ask(kind, path)
            self._app.refresh_view()

    def _request_end(self, kind: RequestKind | None) -> None:
        if kind is not None:
            self._request(kind)

    def _on_signal(self, number: int) -> None:
        requests = self._source.requests
        closed = number == signal.SIGHUP  # a closing terminal sends several SIGHUPs: they count as one
        if requests is None or self._source.attached or run_has_ended(self._source):
            self._app.exit()
        elif requests.stop_requested and not closed:
            requests.ask(RequestKind.ABANDON, origin="signal")
            self._app.exit(return_code=128 + number)
        else:
            if not requests.stop_requested:
                requests.ask(RequestKind.STOP, origin="signal")
            if closed:  # the engine writes its checkpoint, but no terminal is left to show the progress
                self._app.exit()
            self._app.refresh_view()
