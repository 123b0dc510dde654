"""How a run is asked, by keys and by signals: to pause, to checkpoint, to go back, to end."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, TypeAlias

from esper.control import Kind
from esper.sanctum.holds import hold_of
from esper.sanctum.requests import Requests
from esper.sanctum.screens.quit_dialog import QuitDialog
from esper.sanctum.source import Source, is_over

if TYPE_CHECKING:
    from textual.app import App

    _Base = App[None]
else:
    _Base = object

SignalHandler: TypeAlias = Callable[[int, FrameType | None], object] | int | signal.Handlers | None
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Steering(_Base):
    """Actions of the app."""

    source: Source
    look: Callable[[], None]

    @property
    def left(self) -> bool:
        """Whether the run was asked to end, and has; or has ended before it was set up."""
        asked = self.source.requests is not None and self.source.requests.leaving
        return (asked and is_over(self.source)) or not (self.source.alive or self.source.directory)

    def _engine(self) -> Requests | None:
        """The way to the engine; without one, or after its end, says so."""
        requests = self.source.requests
        if requests is None:
            self.notify("This is a recording: it cannot be controlled.", severity="warning")
        elif requests.barred:
            self.notify(requests.barred, severity="warning")
        elif is_over(self.source):
            self.notify("The run has ended: there is nothing to control.", severity="warning")
        else:
            return requests
        return None

    def _ask(self, kind: Kind, path: str | None = None) -> None:
        requests, cause = self._engine(), self.source.present.cause
        if requests and cause and kind in hold_of(cause).vain:
            self.notify(hold_of(cause).way, severity="warning")
        elif requests:
            requests.ask(kind, path)
            self.look()

    def action_pause(self) -> None:
        """Pause, or go on."""
        self._ask(Kind.RESUME if self.source.present.status == "paused" else Kind.PAUSE)

    def action_step(self) -> None:
        """One step of a paused run."""
        if self._engine() is not None and self.source.present.status != "paused":
            self.notify("Single steps need a paused run: p pauses.", severity="warning")
        elif self._engine() is not None:
            self._ask(Kind.STEP)

    def action_checkpoint(self) -> None:
        """Write a checkpoint."""
        self._ask(Kind.CHECKPOINT)

    def action_restore(self) -> None:
        """Pick a checkpoint to go back to."""
        if self._engine() is None:
            return
        from esper.sanctum.screens.checkpoints import CheckpointPicker, still_there  # its table takes longest to load

        checkpoints = still_there(self.source.present.checkpoints, self.source.directory)
        if not checkpoints:
            self.notify("There is no checkpoint yet: c writes one.", severity="warning")
            return

        def restore(path: str | None) -> None:
            if path is not None:
                self._ask(Kind.RESTORE, path)

        self.push_screen(CheckpointPicker(checkpoints), restore)

    async def action_quit(self) -> None:
        """Leave at once if nothing is lost by it; else ask."""
        if self.source.requests is None or self.source.attached or is_over(self.source):
            self.exit()
        elif self.source.present.status == "starting":
            self._ask(Kind.ABANDON)
        else:
            self.action_stop()

    def action_stop(self) -> None:
        """End the run, after asking; asked for once more instead of an answer, with a checkpoint."""
        if isinstance(self.screen, QuitDialog):
            self.screen.choose_first()
        elif self._engine() is not None:
            self.push_screen(QuitDialog(attached=self.source.attached, cause=self.source.present.cause), self._end)

    def action_detach(self) -> None:
        """Leave, if the run goes on without us."""
        if self.source.attached:
            self.exit()
        else:
            sentence = "This run trains in this process and ends with it: one that was started with --detach does not."
            self.notify(sentence, severity="warning")

    def _end(self, kind: Kind | None) -> None:
        if kind is not None:
            self._ask(kind)

    # Signals

    def hear_signals(self) -> None:
        """A first TERM, INT or HUP ends the run of this process with a checkpoint; a second TERM or INT, at once."""
        self._handlers: dict[signal.Signals, SignalHandler] = {}
        if threading.current_thread() is threading.main_thread():
            loop = asyncio.get_running_loop()
            handlers = {number: signal.getsignal(number) for number in _SIGNALS}
            self._handlers |= {number: old for number, old in handlers.items() if old is not signal.SIG_IGN}
            for number in self._handlers:
                loop.add_signal_handler(number, self._on_signal, number)

    def on_unmount(self) -> None:
        """Give the signals back to those who had them."""
        for number, handler in self._handlers.items():
            asyncio.get_running_loop().remove_signal_handler(number)
            signal.signal(number, handler)

    def _on_signal(self, number: int) -> None:
        requests = self.source.requests
        closed = number == signal.SIGHUP  # it comes more than once when a terminal is closed: that is no second signal
        if requests is None or self.source.attached or is_over(self.source):
            self.exit()
        elif requests.leaving and not closed:
            requests.ask(Kind.ABANDON, origin="signal")
            self.exit(return_code=128 + number)
        else:
            if not requests.leaving:
                requests.ask(Kind.STOP, origin="signal")
            if closed:  # the engine saves what it has, but there is nobody to be shown how
                self.exit()
            self.look()
