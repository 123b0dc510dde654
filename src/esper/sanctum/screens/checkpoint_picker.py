"""Dialog that restores a checkpoint. A separate module, because its table takes longest to import."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import DataTable, Static

from esper.domain import StepNumber
from esper.formatting import format_bytes, format_time_of_day, pluralise, short_score_name, strip_control
from esper.sanctum.bindings import bindings_of
from esper.sanctum.screens.dialogs import Dialog
from esper.sanctum.symbols import ellipsise, percent_cell
from esper.telemetry.events import CheckpointSaved
from esper.telemetry.state import RunState


class CheckpointPicker(Dialog[str]):
    """Dialog that lists checkpoints. Returns the path of the chosen one, or None.

    Args:
        checkpoints: The checkpoints, newest last.
        current: Returns the present state of the run.
    """

    BINDINGS = bindings_of("dismiss", "run.restore")

    def __init__(self, checkpoints: list[CheckpointSaved], current: Callable[[], RunState]) -> None:
        super().__init__()
        self._checkpoints = checkpoints[::-1]
        self._current = current

    def compose(self) -> ComposeResult:
        """Yield a table of the checkpoints, newest first."""
        with Vertical(id="dialog"):
            yield Static("Restore a checkpoint", id="question")
            table: DataTable[Text] = DataTable(cursor_type="row")
            score = f"{strip_control(short_score_name(self._current().score_name))} %"
            for heading in ("round", "step", "time", score, "size", "origin"):
                table.add_column(Text(heading))
            for saved in self._checkpoints:
                table.add_row(
                    Text(str(saved.round), justify="right"),
                    Text(str(saved.step), justify="right"),
                    Text(format_time_of_day(saved.written or saved.time)),
                    Text(percent_cell(saved.score).text),
                    Text(format_bytes(saved.bytes), justify="right"),
                    Text(ellipsise(strip_control(saved.origin), 12)),
                )
            yield table
            yield Static(self._loss(0), id="loss")
            yield Static("Enter restore   Esc cancel", id="hint")

    def _loss(self, row: int) -> str:
        """Return a sentence on the steps that restoring the checkpoint of a row discards."""
        saved, state = self._checkpoints[row], self._current()
        steps_per_round = state.started.steps if state.started else 1
        lost = max(state.steps_done - StepNumber(saved.round, saved.step).steps_done(steps_per_round), 0)
        rounds, steps = divmod(lost, steps_per_round)
        parts = [pluralise(rounds, "round")] if rounds else []
        parts += [pluralise(steps, "step")] if steps or not rounds else []
        later = sum((other.round, other.step) > (saved.round, saved.step) for other in self._checkpoints)
        kept = f"; {pluralise(later, 'later checkpoint')} kept in undone/" if later else ""
        return f"Discards {' '.join(parts)}{kept}."

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """Show what restoring the checkpoint under the cursor discards."""
        self.query_one("#loss", Static).update(self._loss(event.cursor_row))

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Return the checkpoint chosen with Enter or a click."""
        self.dismiss(self._checkpoints[event.cursor_row].path)


def existing_checkpoints(events: Iterable[CheckpointSaved], run: Path | None) -> list[CheckpointSaved]:
    """Return the recorded checkpoints that still exist, newest last. A checkpoint that was overwritten is listed once.

    Args:
        events: Events of the checkpoints, in the order of writing.
        run: Run directory as seen by this process, which can differ from the recorded path; None for the recorded path
            relative to the working directory.
    """
    latest: dict[str, CheckpointSaved] = {}
    for saved in events:
        latest.pop(saved.path, None)
        latest[saved.path] = saved
    return [saved for saved in latest.values() if local_path(saved, run).is_dir()]


def local_path(saved: CheckpointSaved, run: Path | None) -> Path:
    """Return the path of a recorded checkpoint as seen by this process; `run` as for `existing_checkpoints`."""
    return (run or Path()).joinpath(*Path(saved.path).parts[-2:])
