"""Choices of the user for the charts of a screen: cursor, zoom, x axis, smoothing and logarithmic axes."""

from __future__ import annotations

from dataclasses import dataclass, field

from esper.recordings.history.curve_store import AXES

SMOOTHINGS = (1, 5, 20, 100)
"""Numbers of points of the moving mean, in the order of the key; 1 draws the values themselves."""


@dataclass
class ChartView:
    """Choices of the user for the charts of a screen. Each change increments `version`: charts are then drawn again."""

    version: int = 0
    run_axis: str = AXES[0]
    """The x axis of charts over the whole run, one of `AXES`."""
    smoothing: int = 1
    """Number of points of the moving mean, one of `SMOOTHINGS`."""
    cursor: tuple[str, float] | None = None
    """Name of an x axis and position on it; None for no cursor."""
    logarithmic: set[str] = field(default_factory=set[str])
    """Names of the quantities whose y axis was switched between linear and logarithmic."""
    windows: dict[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    """Visible part of each zoomed x axis, keyed by its name."""

    def cursor_on(self, x_axis: str) -> float | None:
        """Return the position of the cursor on an x axis; None if it is on none or on another one."""
        return self.cursor[1] if self.cursor is not None and self.cursor[0] == x_axis else None

    def set_cursor(self, x_axis: str, x: float | None) -> None:
        """Move the cursor to a position on an x axis; None to remove it."""
        cursor = None if x is None else (x_axis, x)
        if cursor != self.cursor:
            self.cursor = cursor
            self.version += 1

    def set_window(self, x_axis: str, window: tuple[float, float] | None) -> None:
        """Show only a part of an x axis; None to show all of it."""
        if window is None:
            self.windows.pop(x_axis, None)
        else:
            self.windows[x_axis] = window
        self.version += 1

    def toggle_logarithmic(self, quantity: str) -> None:
        """Switch the y axis of a quantity between linear and logarithmic."""
        self.logarithmic ^= {quantity}
        self.version += 1

    def smooth_more(self) -> None:
        """Choose the next number of points of the moving mean."""
        self.smoothing = SMOOTHINGS[(SMOOTHINGS.index(self.smoothing) + 1) % len(SMOOTHINGS)]
        self.version += 1

    def next_run_axis(self) -> None:
        """Choose the next x axis of charts over the whole run."""
        self.run_axis = AXES[(AXES.index(self.run_axis) + 1) % len(AXES)]
        self.cursor = None
        self.version += 1
