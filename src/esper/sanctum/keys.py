"""Table of all keys. Textual's bindings, the footer, the help screen and the command palette are made from it.

`own_keys.py` replaces keys of this table by those of the user.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import NamedTuple

from textual.binding import Binding, BindingType
from textual.keys import format_key


class KeyCategory(Enum):
    """Heading under which the help screen lists a key."""

    SCREENS = "Screens"
    RUN = "Run"
    TIME = "Playback: a recording, or the past of a live run"
    ROWS = "Rows of a list: envs, runs, candidates, log lines"
    ENVS = "Env rows"
    TABLE = "Env table"
    MAP = "Env heat map"
    OVERVIEW = "Overview"
    DETAIL = "Env detail"
    POLICY = "Policy"
    GROWTH = "Growth"
    CANDIDATES = "Candidates of a growth"
    DEVICES = "Devices"
    LOG = "Log"
    CURVES = "Curves"
    WORKSPACE = "Workspace"
    RUNS = "Runs of the workspace"
    CHART = "Chart (Tab or a click focuses it)"
    ANOMALIES = "Anomalies panel (Tab focuses it)"
    TIMELINE = "Timeline (Tab focuses it)"
    VIEW = "View"


class Availability(Enum):
    """When a key has an effect, so that the footer may show it."""

    LIVE = "live"
    """In a live run."""
    REPLAY = "replay"
    """In a recording, and in the past of a live run."""
    SEARCH = "search"
    """In a growth, which searches over candidates."""
    ALWAYS = "always"


@dataclass(frozen=True)
class KeyBinding:
    """A key, or several keys with the same action."""

    category: KeyCategory
    keys: str
    """Textual's names of the keys, separated by commas."""
    name: str
    """One or two words, for the footer and the command palette."""
    description: str
    """Description for the help screen and the command palette."""
    action: str
    """Textual action that the key runs."""
    footer: bool = False
    """True if the footer shows the key."""
    when: Availability = Availability.ALWAYS
    priority: bool = False
    """True if the app handles the key before the focused widget does."""

    @property
    def id(self) -> str:
        """Id of the action and of its Textual binding: `time.go-to`."""
        return f"{self.category.name.lower()}.{self.name.replace(' ', '-')}"

    @property
    def label(self) -> str:
        """Keys as the footer and the help screen show them: `↑ k` for `up,k`."""
        return _SHORT_LABELS.get(self.keys) or " ".join(_label(name) for name in self.keys.split(","))


_SHORT_LABELS = {
    "plus,equals_sign": "+",
    "less_than_sign,comma": "<",
    "greater_than_sign,full_stop": ">",
    "ctrl+c,ctrl+q": "ctrl+c",
    "question_mark,f1": "?",
}
"""Labels that leave out the second key. Keyed by `KeyBinding.keys`."""
_LABELS = {"enter": "↵", "escape": "Esc", "pageup": "PgUp", "pagedown": "PgDn", "space": "space"}
"""Labels that differ from Textual's. Keyed by Textual's name of the key."""


def _label(key: str) -> str:
    if key.startswith("shift+"):
        return f"⇧{_label(key.removeprefix('shift+'))}"
    if key in _LABELS or "+" in key:
        return _LABELS.get(key, key)
    character = format_key(key)
    return character if len(character) == 1 else key.capitalize()


class ScreenInfo(NamedTuple):
    """Number key and description of a screen."""

    key: str
    description: str
    is_search: bool = False
    """True for a screen that only a growth has."""


SCREEN_INFO: dict[str, ScreenInfo] = {
    "overview": ScreenInfo("1", "envs, policy heads, devices, log"),
    "policy": ScreenInfo("2", "gradients by head, update metrics, decisions"),
    "growth": ScreenInfo("3", "seeds of every env, results by blueprint"),
    "numerics": ScreenInfo("4", "loss scales, overflows, gradient norms, NaN and infinity"),
    "devices": ScreenInfo("5", "memory by owner, lane load, time by phase"),
    "log": ScreenInfo("6", "notable events, with filter and search"),
    "curves": ScreenInfo("7", "charts of everything recorded, with search"),
    "candidates": ScreenInfo("8", "candidates of a growth, front of score against parameters", is_search=True),
}
"""Screens by name, in the order of the tabs. `screens.open_screen` finds their classes."""

ENV_VIEW = "env"
"""Name of the view that shows one env."""
VIEW_NAMES = (*SCREEN_INFO, ENV_VIEW)
"""View names that an address may contain: the screens with a number key, and one env."""

ACTIONS_WITHOUT_RUN = frozenset(
    {"next_theme", "save_svg", "command_palette", "explain", "suspend_process", "quit", "interrupt", "runs"}
)
"""Actions of the app that have an effect in the workspace, where no run is shown."""

_run_key = partial(KeyBinding, KeyCategory.RUN, when=Availability.LIVE)
_playback_key = partial(KeyBinding, KeyCategory.TIME, footer=True, when=Availability.REPLAY)

KEYS: tuple[KeyBinding, ...] = (
    *(
        KeyBinding(
            KeyCategory.SCREENS,
            screen.key,
            name,
            screen.description,
            f"go('{name}')",
            when=Availability.SEARCH if screen.is_search else Availability.ALWAYS,
        )
        for name, screen in SCREEN_INFO.items()
    ),
    KeyBinding(KeyCategory.SCREENS, "0", "runs", "all runs: list, overlay, differences; again: return", "runs"),
    KeyBinding(KeyCategory.SCREENS, "escape", "back to runs", "return to the list of runs", "leave_run"),
    _run_key("p", "pause", "pause after the current step, or resume; also resume a crashed run", "pause", True),
    _run_key("s", "step", "run one step of a paused run", "step"),
    _run_key("c", "checkpoint", "write a checkpoint now", "checkpoint", True),
    _run_key("r", "restore", "restore a checkpoint", "restore", True),
    _run_key("Q", "stop", "end the run, after a confirmation", "stop"),
    _run_key("d", "detach", "leave the dashboard; a detached run continues", "detach"),
    _playback_key("space", "play", "play or pause the recording", "play"),
    KeyBinding(KeyCategory.TIME, "left", "step back", "back one step", "replay_step(-1)"),
    _playback_key("right", "step", "forward one step", "replay_step(1)"),
    KeyBinding(KeyCategory.TIME, "shift+left", "round back", "back one round", "replay_round(-1)"),
    _playback_key("shift+right", "round", "forward one round", "replay_round(1)"),
    KeyBinding(KeyCategory.TIME, "less_than_sign,comma", "slower", "lower playback speed", "replay_speed(-1)"),
    KeyBinding(KeyCategory.TIME, "greater_than_sign,full_stop", "faster", "higher playback speed", "replay_speed(1)"),
    KeyBinding(KeyCategory.TIME, "left_curly_bracket", "start", "go to the start", "replay_start"),
    KeyBinding(
        KeyCategory.TIME, "right_curly_bracket", "end", "go to the end; in a live run, return to live", "replay_end"
    ),
    KeyBinding(
        KeyCategory.TIME,
        "end",
        "live",
        "go to the end; in a live run, return to live; at the end, go to the last row of a list",
        "rejoin",
        priority=True,
        when=Availability.REPLAY,
    ),
    KeyBinding(
        KeyCategory.TIME,
        "g",
        "go to",
        "go to the end of round 8 (8), its step 12 (8:12), step:812, anomaly:1, 1h20m or 40%",
        "go_to",
    ),
    KeyBinding(KeyCategory.TIME, "Y", "address", "copy the address of this view, for replay", "copy_address"),
    KeyBinding(KeyCategory.TIME, "X", "excerpt", "save two minutes before and after as a recording", "cut"),
    KeyBinding(KeyCategory.TIME, "m", "bookmark", "set or remove a bookmark at this moment", "bookmark"),
    _playback_key("n", "next mark", "next anomaly, rollback or bookmark; f on the timeline shows others", "mark(1)"),
    KeyBinding(KeyCategory.TIME, "N", "previous mark", "previous mark", "mark(-1)"),
    KeyBinding(KeyCategory.TIMELINE, "f", "kind", "show and visit only the next kind of marks", "next_group"),
    KeyBinding(
        KeyCategory.TIMELINE, "home", "start", "go to the start", "app.replay_start", False, Availability.REPLAY
    ),
    KeyBinding(
        KeyCategory.TIMELINE,
        "end",
        "end",
        "go to the end; in a live run, return to live",
        "app.replay_end",
        False,
        Availability.REPLAY,
    ),
    KeyBinding(KeyCategory.ROWS, "up,k", "up", "previous row", "move(-1)"),
    KeyBinding(KeyCategory.ROWS, "down,j", "down", "next row", "move(1)"),
    KeyBinding(KeyCategory.ROWS, "pageup", "page up", "one page up", "page(-1)"),
    KeyBinding(KeyCategory.ROWS, "pagedown", "page down", "one page down", "page(1)"),
    KeyBinding(KeyCategory.ROWS, "home", "first", "first row", "first"),
    KeyBinding(KeyCategory.ROWS, "end", "last", "last row; the log then follows new lines", "last"),
    KeyBinding(KeyCategory.ENVS, "enter", "env", "open the selected env", "app.open_env", True),
    KeyBinding(KeyCategory.TABLE, "o", "sort", "sort by the next column (or click a heading)", "order", True),
    KeyBinding(KeyCategory.TABLE, "O", "reverse", "reverse the sort order", "reverse"),
    KeyBinding(KeyCategory.TABLE, "f", "follow", "follow the worst env", "follow"),
    KeyBinding(KeyCategory.TABLE, "P", "pin", "pin the env to the top, or unpin it", "pin"),
    KeyBinding(KeyCategory.MAP, "left,h", "left", "env to the left", "move_selection(-1, 0)"),
    KeyBinding(KeyCategory.MAP, "right,l", "right", "env to the right", "move_selection(1, 0)"),
    KeyBinding(KeyCategory.MAP, "up,k", "up", "env above", "move_selection(0, -1)"),
    KeyBinding(KeyCategory.MAP, "down,j", "down", "env below", "move_selection(0, 1)"),
    KeyBinding(KeyCategory.MAP, "o", "metric", "colour by the next metric", "metric", True),
    KeyBinding(KeyCategory.MAP, "v", "group", "group by stage, blueprints, structure or context", "group", True),
    KeyBinding(KeyCategory.MAP, "enter", "env", "open the selected env", "app.open_env", True),
    KeyBinding(
        KeyCategory.OVERVIEW,
        "slash",
        "filter",
        "filter envs: text, score<50%, stage:blending, device:cuda:1, anomaly",
        "filter",
        True,
    ),
    KeyBinding(KeyCategory.OVERVIEW, "escape", "clear filter", "show all envs", "clear"),
    KeyBinding(KeyCategory.OVERVIEW, "w", "map", "show the env heat map or the table", "map", True),
    KeyBinding(KeyCategory.DETAIL, "up,k", "previous", "previous env of the list", "move(-1)"),
    KeyBinding(KeyCategory.DETAIL, "down,j", "next", "next env of the list, sorted and filtered", "move(1)"),
    KeyBinding(
        KeyCategory.DETAIL,
        "o",
        "explain",
        "explain the last decision; in a low terminal, then the values of the last step",
        "explain_decision",
        True,
    ),
    KeyBinding(
        KeyCategory.DETAIL,
        "left_square_bracket",
        "earlier",
        "select the previous decision",
        "select_decision(-1)",
        True,
    ),
    KeyBinding(
        KeyCategory.DETAIL, "right_square_bracket", "later", "select the next decision", "select_decision(1)", True
    ),
    KeyBinding(
        KeyCategory.DETAIL,
        "enter",
        "travel",
        "go to the end of the selected step; in a live run, its past",
        "travel",
        True,
    ),
    KeyBinding(
        KeyCategory.DETAIL, "x", "without", "compute the episode without the selected decision", "without", True
    ),
    KeyBinding(KeyCategory.DETAIL, "A", "effects", "compute the effects of all decisions of the episode", "effects"),
    KeyBinding(
        KeyCategory.DETAIL, "escape", "back", "cancel the computation, or return to the previous screen", "back"
    ),
    KeyBinding(KeyCategory.POLICY, "up,k", "previous", "decisions of the previous env", "move(-1)"),
    KeyBinding(KeyCategory.POLICY, "down,j", "next", "decisions of the next env", "move(1)"),
    KeyBinding(KeyCategory.POLICY, "o", "charts", "show the next charts of update statistics", "next_page", True),
    KeyBinding(KeyCategory.POLICY, "enter", "env", "open the selected env", "app.open_env"),
    KeyBinding(KeyCategory.GROWTH, "o", "sort", "sort the blueprints by the next column", "order", True),
    KeyBinding(KeyCategory.GROWTH, "v", "charts", "show the next charts of the population", "charts", True),
    KeyBinding(KeyCategory.CANDIDATES, "enter", "env", "open the env that trains the candidate", "open", True),
    KeyBinding(KeyCategory.DEVICES, "o", "memory", "show the next memory", "show_next", True),
    KeyBinding(KeyCategory.LOG, "slash", "search", "show only lines that contain a text", "screen.search", True),
    KeyBinding(KeyCategory.LOG, "f", "kind", "show the next kind of event", "kind", True),
    KeyBinding(KeyCategory.LOG, "v", "severity", "raise the minimum severity", "level", True),
    KeyBinding(KeyCategory.LOG, "e", "this env", "show only the selected env, or all envs", "env", True),
    KeyBinding(KeyCategory.LOG, "escape", "clear filter", "show all lines", "clear"),
    KeyBinding(KeyCategory.LOG, "enter", "go", "go to the moment and the env of the line; open a group", "open", True),
    KeyBinding(
        KeyCategory.CURVES, "left,right", "chart", "in a live run, focus a chart to move its cursor", "focus_chart"
    ),
    KeyBinding(KeyCategory.CURVES, "up", "up", "focus the chart above", "move_focus(-1)"),
    KeyBinding(KeyCategory.CURVES, "down", "down", "focus the chart below", "move_focus(1)"),
    KeyBinding(KeyCategory.CURVES, "pageup", "page up", "previous page", "page(-1)"),
    KeyBinding(KeyCategory.CURVES, "pagedown", "page", "next page", "page(1)", True),
    KeyBinding(KeyCategory.CURVES, "slash", "search", "show only curves whose name contains a text", "search", True),
    KeyBinding(KeyCategory.CURVES, "P", "pin", "pin the focused chart to the start, or unpin it", "pin", True),
    KeyBinding(KeyCategory.CURVES, "left_square_bracket", "previous env", "curves of the previous env", "move(-1)"),
    KeyBinding(KeyCategory.CURVES, "right_square_bracket", "next env", "curves of the next env", "move(1)"),
    KeyBinding(KeyCategory.CURVES, "escape", "clear search", "show all charts", "clear"),
    KeyBinding(KeyCategory.RUNS, "enter", "open", "open the run: attach if it is live, else replay", "open", True),
    KeyBinding(KeyCategory.WORKSPACE, "space", "select", "draw the curves of the run, or no longer", "select", True),
    KeyBinding(
        KeyCategory.WORKSPACE,
        "slash",
        "filter",
        "filter runs: text, task=recall, best>80%, ppo.gamma<1, tag:sweep, state:live; Tab completes",
        "filter_runs",
        True,
    ),
    KeyBinding(
        KeyCategory.WORKSPACE,
        "right_square_bracket",
        "details",
        "show or hide the details; in a small terminal, go to the next pane",
        "pane(1)",
        True,
    ),
    KeyBinding(
        KeyCategory.WORKSPACE,
        "left_square_bracket",
        "runs",
        "show or hide the list; in a small terminal, go to the previous pane",
        "pane(-1)",
    ),
    KeyBinding(KeyCategory.WORKSPACE, "p", "baseline", "compare with the run, or no longer", "baseline", True),
    KeyBinding(
        KeyCategory.WORKSPACE,
        "v",
        "group",
        "one curve for runs that differ only in the random seed, for each run, or by keys",
        "group",
        True,
    ),
    KeyBinding(KeyCategory.WORKSPACE, "D", "difference", "curves minus those of the baseline", "difference", True),
    KeyBinding(KeyCategory.WORKSPACE, "o", "sort", "sort by a result, a time or any setting", "sort", True),
    KeyBinding(KeyCategory.WORKSPACE, "O", "reverse", "reverse the sort order", "reverse"),
    KeyBinding(KeyCategory.WORKSPACE, "n", "notes", "edit name, tags and note of the run", "edit_notes", True),
    KeyBinding(KeyCategory.WORKSPACE, "greater_than_sign,full_stop", "charts", "next page of charts", "page(1)", True),
    KeyBinding(KeyCategory.WORKSPACE, "less_than_sign,comma", "charts back", "previous page of charts", "page(-1)"),
    KeyBinding(KeyCategory.WORKSPACE, "f", "find", "show only charts whose name contains a text", "search", True),
    KeyBinding(KeyCategory.WORKSPACE, "A", "select all", "select all listed runs, or none", "select_all"),
    KeyBinding(KeyCategory.WORKSPACE, "escape", "clear filter", "show all charts, then all runs", "clear"),
    KeyBinding(KeyCategory.WORKSPACE, "x", "archive", "hide the run in lists, or no longer", "archive"),
    KeyBinding(
        KeyCategory.WORKSPACE, "delete", "delete", "delete the directory of the run, after a confirmation", "delete"
    ),
    KeyBinding(
        KeyCategory.WORKSPACE, "P", "pause", "pause a live run, or resume it or a crashed run", "request('pause')"
    ),
    KeyBinding(KeyCategory.WORKSPACE, "c", "checkpoint", "write a checkpoint of a live run", "request('checkpoint')"),
    KeyBinding(KeyCategory.WORKSPACE, "Q", "stop", "end a live run, after a confirmation", "stop_run"),
    KeyBinding(
        KeyCategory.WORKSPACE, "X", "export", "copy the command that exports the selected runs", "copy('export')"
    ),
    KeyBinding(
        KeyCategory.WORKSPACE, "y", "compare", "copy the command that compares the selected runs", "copy('compare')"
    ),
    KeyBinding(KeyCategory.CHART, "left", "cursor left", "move the cursor to the left", "move_cursor(-1)"),
    KeyBinding(KeyCategory.CHART, "right", "cursor right", "move the cursor to the right", "move_cursor(1)"),
    KeyBinding(KeyCategory.CHART, "plus,equals_sign", "zoom in", "zoom in around the cursor", "zoom(1)", True),
    KeyBinding(KeyCategory.CHART, "minus", "zoom out", "zoom out", "zoom(-1)", True),
    KeyBinding(KeyCategory.CHART, "shift+left", "pan left", "move the visible part to the left", "pan(-1)"),
    KeyBinding(KeyCategory.CHART, "shift+right", "pan right", "move the visible part to the right", "pan(1)"),
    KeyBinding(KeyCategory.CHART, "home", "whole range", "show the whole x axis", "whole_range"),
    KeyBinding(KeyCategory.CHART, "b", "x axis", "x axis by round, step, env-steps or time", "run_axis", True),
    KeyBinding(KeyCategory.CHART, "e", "logarithmic", "logarithmic or linear y axis", "logarithmic", True),
    KeyBinding(KeyCategory.CHART, "z", "smooth", "moving mean of 5, 20 or 100 points, or none", "smooth", True),
    KeyBinding(
        KeyCategory.CHART, "enter", "full screen", "show the chart on the whole screen, or return", "enlarge", True
    ),
    KeyBinding(KeyCategory.CHART, "escape", "leave", "remove the cursor; leave the chart", "leave"),
    KeyBinding(KeyCategory.VIEW, "t", "theme", "next theme", "next_theme", True),
    KeyBinding(KeyCategory.VIEW, "y", "copy", "copy the selected env as JSON", "copy_env"),
    KeyBinding(KeyCategory.VIEW, "C", "configuration", "show the settings of the run", "configuration"),
    KeyBinding(KeyCategory.VIEW, "E", "harvest", "write the network of the selected env as ordinary files", "harvest"),
    KeyBinding(
        KeyCategory.VIEW, "F", "next steps", "of an ended run: resume, evaluate, harvest, what if, replay", "next_steps"
    ),
    KeyBinding(KeyCategory.VIEW, "S", "screenshot", "save a screenshot as SVG", "save_svg"),
    KeyBinding(KeyCategory.VIEW, "ctrl+p", "commands", "list all commands", "command_palette"),
    KeyBinding(KeyCategory.ANOMALIES, "enter", "go", "go to the worst anomaly", "visit"),
    KeyBinding(KeyCategory.VIEW, "a", "anomalies", "list all anomalies", "anomalies"),
    KeyBinding(KeyCategory.VIEW, "M", "mute", "mute the rule of the first anomaly", "mute"),
    KeyBinding(KeyCategory.VIEW, "W", "why", "likely cause of the selected env's symptom", "why"),
    KeyBinding(
        KeyCategory.VIEW,
        "question_mark,f1",
        "help",
        "this page: first the keys and metrics of the open screen",
        "explain",
        True,
    ),
    KeyBinding(KeyCategory.VIEW, "i", "stages", "explain the letters of the stages of a slot", "legend"),
    KeyBinding(
        KeyCategory.VIEW,
        "ctrl+z",
        "suspend",
        "suspend the dashboard; not while the run trains in its process",
        "suspend_process",
    ),
    KeyBinding(KeyCategory.VIEW, "q", "quit", "quit; confirm first if this ends the run", "quit", True),
    KeyBinding(
        KeyCategory.VIEW,
        "ctrl+c,ctrl+q",
        "interrupt",
        "quit; in a browser, copy the selected text",
        "interrupt",
        priority=True,
    ),
)

APP_CATEGORIES = (KeyCategory.SCREENS, KeyCategory.RUN, KeyCategory.TIME, KeyCategory.VIEW)
"""Categories that the app binds. Each other category belongs to one widget or screen."""


def bindings(*categories: KeyCategory) -> list[BindingType]:
    """Return Textual bindings for the keys of these categories."""
    return [
        Binding(
            key.keys,
            key.action,
            key.description,
            id=key.id,
            show=False,
            priority=key.priority,
        )
        for key in KEYS
        if key.category in categories
    ]


def bindings_of(action: str, *ids: str) -> list[BindingType]:
    """Return Textual bindings that give the keys of some actions of the table another action, in a dialog."""
    return [Binding(key.keys, action, id=key.id) for key in KEYS if key.id in ids]
