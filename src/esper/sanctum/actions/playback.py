"""Playback actions: move the playhead over a recording, or over the past of a live run while it continues."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from esper.recordings.files.segments import ReadError
from esper.recordings.history.address import Moment
from esper.recordings.history.history import History
from esper.recordings.history.playback import Playback
from esper.sanctum.actions.base import BaseApp
from esper.sanctum.screens.go_to import GoToDialog
from esper.sanctum.source import RunSource
from esper.sanctum.view import GoToMoment, ViewState

PLAYBACK_SPEEDS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, float("inf"))
"""Recorded seconds per second of playing; infinity is as fast as possible."""
NOTE_SECONDS = 3.0
"""Seconds for which a note on a key without effect stays on the screen."""
END_MOMENT = "100%"
"""The end of a recording, as the user types it."""


class PlaybackActions(BaseApp):
    """Move the playhead. The first action that seeks in a live run opens its past, and leaves the present.

    Every method that moves the playhead raises `ReadError` if the recording cannot be read.
    """

    def __init__(self, source: RunSource) -> None:
        super().__init__(source)
        self._deferred_action: Callable[[], None] | None = None
        """Action to run as soon as there is a playhead."""

    def begin_run(self, view: ViewState) -> None:
        """Drop the action that waits for the past of the previous run."""
        super().begin_run(view)
        self._deferred_action = None

    @property
    def is_loading_history(self) -> bool:
        """True while an action waits until the past of a live run has been read."""
        return self._deferred_action is not None

    def run_deferred_action(self) -> None:
        """Run the action that waits for a playhead, once there is one. Called at every tick."""
        if self._deferred_action is not None and self.source.playback is not None:
            action, self._deferred_action = self._deferred_action, None
            try:
                action()
            except ReadError as error:
                self.notify(str(error), severity="error")

    def action_play(self) -> None:
        """Play or hold; at the end, play from the start."""
        if (playback := self._require_playback(why="A live run plays by itself")) is not None:
            if not playback.playing and playback.position >= playback.length:
                playback.seek_start()
            playback.playing = not playback.playing
            self.refresh_view()

    def action_replay_step(self, delta: int) -> None:
        """Hold, and move by `delta` steps."""
        playback = self.source.playback
        self._replay_step(delta, moving=playback is None or playback.playing)

    def _replay_step(self, delta: int, *, moving: bool) -> None:
        """Hold, and move by `delta` steps.

        Args:
            moving: The screen showed a run that goes on: it named the last full step, not the one in progress.
        """
        entry = partial(self._replay_step, delta, moving=True) if delta < 0 else None
        if (playback := self._require_playback(entry, why="No step after the present")) is not None:
            is_partway = moving and delta < 0 and playback.state.working > 0 and playback.state.step > 0
            self._move(playback, partial(playback.step, delta - is_partway))

    def action_replay_round(self, delta: int) -> None:
        """Hold, and move by `delta` rounds."""
        entry = partial(self.action_replay_round, delta) if delta < 0 else None
        if (playback := self._require_playback(entry, why="No round after the present")) is not None:
            self._move(playback, partial(playback.step_round, delta))

    def _move(self, playback: Playback, move: Callable[[], None]) -> None:
        """Hold, and move; if there is nothing to move to, notify the user."""
        before, playback.playing = playback.position, False
        move()
        if playback.position == before:
            unread = "" if playback.history.is_fully_read else " of the part that was read"
            self.notify(f"This is the {'end' if before else 'start'}{unread}.", timeout=NOTE_SECONDS)
        self.refresh_view()

    def action_replay_speed(self, delta: int) -> None:
        """Set the next faster speed if `delta` is positive, else the next slower one."""
        if (playback := self._require_playback(why="A live run has no playback speed")) is not None:
            slower = [speed for speed in PLAYBACK_SPEEDS if speed < playback.speed]
            faster = [speed for speed in PLAYBACK_SPEEDS if speed > playback.speed]
            if not (faster if delta > 0 else slower):
                self.notify(f"This is the {'highest' if delta > 0 else 'lowest'} speed.", timeout=NOTE_SECONDS)
            playback.speed = (faster or [PLAYBACK_SPEEDS[-1]])[0] if delta > 0 else (slower or [PLAYBACK_SPEEDS[0]])[-1]
            self.refresh_view()

    def action_replay_start(self) -> None:
        """Move to the start."""
        if (playback := self._require_playback(self.action_replay_start)) is not None:
            playback.seek_start()
            self.refresh_view()

    def action_replay_end(self) -> None:
        """Move to the end, once it was read; in a live run, return to its present.

        The action that waits for the past of a live run is dropped.
        """
        if self.source.live:
            if self.source.playback is None and not self.is_loading_history:
                self.notify("The present is shown already.", timeout=NOTE_SECONDS)
            self._deferred_action = None
            self.source.return_to_live()
        elif (playback := self._require_playback()) is not None:
            if self.source.fraction_read is not None:
                self.go_to(END_MOMENT)
            else:
                playback.seek_end()
        self.refresh_view()

    def action_rejoin(self) -> None:
        """Move to the end, or return to the present of a live run."""
        self.action_replay_end()

    def action_mark(self, delta: int) -> None:
        """Hold, and move to the next mark if `delta` is positive, else to the previous one; select its env."""
        entry = partial(self.action_mark, delta) if delta < 0 else None
        if (playback := self._require_playback(entry, why="No mark after the present")) is not None:
            playback.playing = False
            mark = playback.seek_mark(delta, self.view.selected_env, self.view.mark_filter)
            if mark is None:
                fraction = self.source.fraction_read
                read = f" in the {100 * fraction:.0f} % that were read" if delta > 0 and fraction is not None else ""
                group = self.view.mark_group
                kind = "mark" if group == "all" else f"mark of the kind {group}"
                self.notify(f"No {kind} {'after' if delta > 0 else 'before'} this moment{read}.", timeout=3)
            else:
                self.view.select(mark.env)
            self.refresh_view()

    def action_bookmark(self) -> None:
        """Set or remove a bookmark at the moment on the screen; the present of a live run is not left."""
        self._toggle_bookmark(self.source.live_state.seq if self.source.playback is None else None)

    def go_to_event(self, target: GoToMoment, *, waited: bool = False) -> None:
        """Hold, and move to the end of the step of the event of `target`, as soon as it was read.

        Leave the present of a live run only if it no longer shows the event.

        Args:
            waited: True if a notification has already said that the event is not read yet.
        """
        entry = partial(self.go_to_event, target) if target.over else None
        if target.seq is None or (playback := self._require_playback(entry)) is None:
            return
        playback.playing = False
        history = playback.history
        if not self._was_read(history, target.seq):
            self._deferred_action = partial(self.go_to_event, target, waited=True)
            if not waited:
                self.notify("This moment was not read yet; it is shown as soon as it was.", timeout=5)
            return
        playback.seek(history.step_end(history.position_of_event(target.seq)))

    @staticmethod
    def _was_read(history: History, seq: int) -> bool:
        """Return True if a history has read the event of a log line, and the end of its step."""
        if history.is_fully_read:
            return True
        last_step = history.steps[-1] if history.steps else 0
        return history.log.last_seq >= seq and history.position_of_event(seq) <= last_step

    def action_go_to(self) -> None:
        """Let the user type a moment, and move there."""
        self._choose_moment(stay=self.source.live and self.source.playback is None)

    def go_to(self, moment: str) -> None:
        """Move to a moment, given as text, once it was read."""
        self._choose_moment(stay=False, moment=moment)

    def _require_playback(self, entry: Callable[[], None] | None = None, *, why: str = "") -> Playback | None:
        """Return the playhead. If there is none, open the past of a live run for `entry`, or notify the user.

        Args:
            entry: Action to run in the past; `run_deferred_action` runs it once a long recording is read. None if the
                action has no effect in the present.
            why: Reason for which it has none; empty to say nothing.
        """
        if self.source.playback is not None:
            self._deferred_action = None  # the user has moved on
        elif entry is not None:
            refusal = self.source.start_playback()
            reading = self.source.playback is None and not refusal
            self._deferred_action = entry if reading else None
            if refusal:
                self.notify(refusal, severity="warning")
            elif reading:
                key = self.view.key_names["time.live"]
                self.notify(f"Reading the recording of this run. {key} returns to live.", timeout=3)
        elif why:
            back = self.view.key_names["time.step-back"]
            self.notify(f"{why}. {back} goes back in time.", timeout=NOTE_SECONDS)
        return self.source.playback

    def _toggle_bookmark(self, present: int | None) -> None:
        """Set or remove a bookmark at event number `present`; at the playhead if `present` is None."""
        if (playback := self._require_playback(partial(self._toggle_bookmark, present))) is not None:
            if present is not None:
                playback.seek(playback.history.position_of_event(present))
            is_set = playback.toggle_bookmark()
            if present is not None:
                self.source.return_to_live()
            self.notify("Bookmark set." if is_set else "Bookmark removed.", timeout=2)
            self.refresh_view()

    def _choose_moment(self, *, stay: bool, moment: str = "") -> None:
        """Open the dialog; if the user cancels and `stay` is true, return to the present.

        Args:
            stay: The present of a live run is shown.
            moment: Moment to go to without typing; empty to let the user type one.
        """
        playback = self._require_playback(partial(self._choose_moment, stay=stay, moment=moment))
        if playback is None or isinstance(self.screen, GoToDialog):
            return

        def go(moment: Moment | None) -> None:
            if moment is not None:
                playback.playing = False
                playback.seek(moment.position)
                self.view.select(moment.env)
            elif stay:
                self.source.return_to_live()
            self.refresh_view()

        self.push_screen(GoToDialog(playback.history, moment), go)
