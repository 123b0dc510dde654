"""Division of the rows of the overview screen between its panels.

Panels about envs get the rows that they need, the others the rest. No rows stay blank.
"""

from __future__ import annotations

from typing import NamedTuple

_ROOMY_ROWS = 28
"""Minimum height from which a chart and a log keep some rows, however many envs there are."""
_MIN_CHART_ROWS, _MIN_FRAMED_CHART_ROWS = 4, 6
"""Minimum height of the chart with a rule above it, and with a border."""
_ROOMY_CHART_ROWS = 9
_ROOMY_LOG_ROWS = 4
_MIN_BOTH_ROWS = 6
"""Minimum height for chart and log; fewer rows are all for the log."""
_FULL_LISTS_ROWS = 36
"""Minimum rest from which heads and devices have one line each."""


class StackedRows(NamedTuple):
    """Heights of the panels below each other, rules included; 0 hides a panel. The envs get the rows that remain."""

    chart: int
    heads: int
    devices: int
    log: int


def divide_left_column(rows: int, envs: int) -> int:
    """Return the height of the chart below the envs, border included; 0 if it does not fit.

    Args:
        rows: Height of both.
        envs: Height that the envs need, border included.
    """
    rest = max(rows - envs, _ROOMY_CHART_ROWS if rows >= _ROOMY_ROWS else 0)
    return rest if rest >= _MIN_FRAMED_CHART_ROWS else 0


def divide_stack(rows: int, envs: int, heads: int, devices: int, *, short: bool, slim: bool) -> StackedRows:
    """Return the heights of panels below each other.

    Args:
        rows: Height of all panels.
        envs: Height that the envs need.
        heads: Height of the full list of heads.
        devices: Height of the full list of devices.
        short: Leave out heads and devices, because the terminal has few rows.
        slim: Leave out the heads if they do not get their full list, because one line is too narrow for them.
    """
    if rows - envs >= _FULL_LISTS_ROWS:
        heads, devices = heads + 1, devices + 1  # a rule with the title
    else:
        heads, devices = int(not short and not slim), int(not short)
    least = _ROOMY_CHART_ROWS + _ROOMY_LOG_ROWS if rows >= _ROOMY_ROWS else 0
    rest = max(rows - envs - heads - devices, least)
    if rest < _MIN_BOTH_ROWS:
        return StackedRows(0, heads, devices, rest)
    log = max(rest // 3, _MIN_BOTH_ROWS - _MIN_CHART_ROWS)
    return StackedRows(rest - log, heads, devices, log)
