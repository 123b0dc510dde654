"""Division of the rows of the overview screen between its panels.

The charts always have some rows. Beyond that, panels about envs get the rows that they need, the others the rest. No
rows stay blank.
"""

from __future__ import annotations

from typing import NamedTuple

ROOMY_ROWS = 28
"""Minimum height from which a chart and a log keep some rows, however many envs there are."""
_MIN_CHART_ROWS, _MIN_FRAMED_CHART_ROWS = 4, 6
"""Minimum height of the charts with a rule above them, and with a border."""
_MIN_ROWS_FOR_CHART = 11
"""Minimum height of all panels for charts: that of a terminal with 15 rows."""
_ROOMY_CHART_ROWS = 9
_ROOMY_LOG_ROWS = 4
_MIN_LOG_ROWS = 2
_FULL_LISTS_ROWS = 36
"""Minimum rest from which heads and devices have one line each."""


class StackedRows(NamedTuple):
    """Heights of the panels below each other, rules included; 0 hides a panel. The envs get the rows that remain."""

    charts: int
    heads: int
    devices: int
    log: int


def min_charts_height(rows: int, *, framed: bool) -> int:
    """Return the minimum height of the charts, their border or rule included, if all panels have this height."""
    if rows >= ROOMY_ROWS:
        return _ROOMY_CHART_ROWS
    if framed:
        return _MIN_FRAMED_CHART_ROWS
    return _MIN_CHART_ROWS if rows >= _MIN_ROWS_FOR_CHART else 0


def divide_left_column(rows: int, envs: int) -> int:
    """Return the height of the charts below the envs, border included.

    Args:
        rows: Height of both.
        envs: Height that the envs need, border included.
    """
    return max(rows - envs, min_charts_height(rows, framed=True))


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
    least = min_charts_height(rows, framed=False) + (_ROOMY_LOG_ROWS if rows >= ROOMY_ROWS else 0)
    rest = max(rows - envs - heads - devices, least)
    if rest < _MIN_CHART_ROWS:
        return StackedRows(0, heads, devices, rest)
    if rest < _MIN_CHART_ROWS + _MIN_LOG_ROWS:
        return StackedRows(rest, heads, devices, 0)
    log = max(rest // 3, _MIN_LOG_ROWS)
    return StackedRows(rest - log, heads, devices, log)
