"""The keys, as data: what is bound, what the footer shows and what the help screen lists come from this one table."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from textual.binding import Binding


class KeyCategory(Enum):
    """Heading under which the help screen lists a key."""

    SCREENS = "Screens"
    RUN = "The run"
    TIME = "Time: a recording, or the past of a live run"
    ROWS = "Rows of envs"
    TABLE = "Env table"
    MAP = "Weather map"
    OVERVIEW = "Overview"
    DETAIL = "Env detail"
    POLICY = "Policy"
    GROWTH = "Growth"
    DEVICES = "Devices"
    LOG = "Log"
    ANOMALIES = "Anomalies (tab moves to them)"
    TIMELINE = "Time line (tab moves to it)"
    VIEW = "View"


class Availability(Enum):
    """Where a key means something, and the footer shows it."""

    LIVE = "live"
    REPLAY = "replay"
    ALWAYS = "always"


@dataclass(frozen=True)
class KeyBinding:
    """One key, or a few with one meaning."""

    category: KeyCategory
    keys: str
    """As Textual names them, separated by commas."""
    label: str
    """As people write them."""
    name: str
    """One or two words for the footer."""
    description: str
    """For the help screen and the palette."""
    action: str
    footer: bool = False
    when: Availability = Availability.ALWAYS
    priority: bool = False
    """Reaches the app whatever has the focus."""

    @property
    def id(self) -> str:
        """By which Textual knows its binding."""
        return f"{self.category.name}.{self.action}".lower()


class ScreenInfo(NamedTuple):
    """A screen that a number key goes to."""

    key: str
    description: str


SCREEN_INFO: dict[str, ScreenInfo] = {
    "overview": ScreenInfo("1", "the population, what teaches it, what carries it"),
    "policy": ScreenInfo("2", "which heads learn, how the learning goes, what is decided"),
    "growth": ScreenInfo("3", "what grows in every env, how each blueprint fares"),
    "numerics": ScreenInfo("4", "loss scales, overflows, gradient norms, what is not finite"),
    "devices": ScreenInfo("5", "memory and whose it is, lanes, where the time goes"),
    "log": ScreenInfo("6", "everything notable, to filter and to search"),
}
"""By name, in the order of the tabs; `screens.SCREEN_CLASSES` names the class of each."""

ENV_VIEW = "env"
"""Name of the view of one env."""
VIEW_NAMES = (*SCREEN_INFO, ENV_VIEW)
"""View names that an address may contain: the screens with a number key, and one env."""

KEYS: tuple[KeyBinding, ...] = (
    *(
        KeyBinding(KeyCategory.SCREENS, place.key, place.key, name, place.description, f"go('{name}')")
        for name, place in SCREEN_INFO.items()
    ),
    KeyBinding(
        KeyCategory.RUN, "p", "p", "pause", "pause between two steps, or go on", "pause", True, Availability.LIVE
    ),
    KeyBinding(
        KeyCategory.RUN, "s", "s", "step", "while paused: one step, then hold again", "step", False, Availability.LIVE
    ),
    KeyBinding(
        KeyCategory.RUN, "c", "c", "checkpoint", "write a checkpoint now", "checkpoint", True, Availability.LIVE
    ),
    KeyBinding(
        KeyCategory.RUN,
        "r",
        "r",
        "restore",
        "go back to a checkpoint and go on from it",
        "restore",
        True,
        Availability.LIVE,
    ),
    KeyBinding(KeyCategory.RUN, "Q", "Q", "stop", "end the run; asks first", "stop", False, Availability.LIVE),
    KeyBinding(
        KeyCategory.RUN,
        "d",
        "d",
        "detach",
        "leave a run that trains in another process",
        "detach",
        False,
        Availability.LIVE,
    ),
    KeyBinding(KeyCategory.TIME, "space", "space", "play", "play, or hold", "play", True, Availability.REPLAY),
    KeyBinding(KeyCategory.TIME, "left", "←", "step back", "one step back", "replay_step(-1)"),
    KeyBinding(KeyCategory.TIME, "right", "→", "step", "one step on", "replay_step(1)", True, Availability.REPLAY),
    KeyBinding(KeyCategory.TIME, "shift+left", "⇧←", "round back", "one round back", "replay_round(-1)"),
    KeyBinding(
        KeyCategory.TIME, "shift+right", "⇧→", "round", "one round on", "replay_round(1)", True, Availability.REPLAY
    ),
    KeyBinding(KeyCategory.TIME, "less_than_sign,comma", "<", "slower", "play more slowly", "replay_speed(-1)"),
    KeyBinding(KeyCategory.TIME, "greater_than_sign,full_stop", ">", "faster", "play faster", "replay_speed(1)"),
    KeyBinding(KeyCategory.TIME, "left_curly_bracket", "{", "start", "to the start", "replay_start"),
    KeyBinding(
        KeyCategory.TIME, "right_curly_bracket", "}", "end", "to the end; in a live run, its present", "replay_end"
    ),
    KeyBinding(
        KeyCategory.TIME,
        "end",
        "End",
        "present",
        "from the past of a live run to its present",
        "rejoin",
        priority=True,
        when=Availability.LIVE,
    ),
    KeyBinding(
        KeyCategory.TIME, "g", "g", "go to", "go to round:14, step:812, anomaly:1, 1h20m, 12:30 or 40%", "go_to"
    ),
    KeyBinding(KeyCategory.TIME, "Y", "Y", "address", "copy the address of this view; replay opens it", "copy_address"),
    KeyBinding(
        KeyCategory.TIME, "X", "X", "cut", "write the two minutes before and after to a recording of their own", "cut"
    ),
    KeyBinding(KeyCategory.TIME, "m", "m", "bookmark", "set a bookmark here, or take it away", "bookmark"),
    KeyBinding(
        KeyCategory.TIME,
        "n",
        "n",
        "next mark",
        "next bookmark: anomaly, rollback, checkpoint, fossilization or own",
        "mark(1)",
        True,
        Availability.REPLAY,
    ),
    KeyBinding(KeyCategory.TIME, "N", "N", "previous mark", "the bookmark before", "mark(-1)"),
    KeyBinding(KeyCategory.TIMELINE, "home", "Home", "start", "to the start", "start", False, Availability.REPLAY),
    KeyBinding(KeyCategory.TIMELINE, "end", "End", "end", "to the end", "end", False, Availability.REPLAY),
    KeyBinding(KeyCategory.ROWS, "up,k", "↑ k", "up", "the env above", "move(-1)"),
    KeyBinding(KeyCategory.ROWS, "down,j", "↓ j", "down", "the env below", "move(1)"),
    KeyBinding(KeyCategory.ROWS, "pageup", "PgUp", "page up", "a page up", "page(-1)"),
    KeyBinding(KeyCategory.ROWS, "pagedown", "PgDn", "page down", "a page down", "page(1)"),
    KeyBinding(KeyCategory.ROWS, "home", "Home", "first", "the first env", "first"),
    KeyBinding(KeyCategory.ROWS, "end", "End", "last", "the last env", "last"),
    KeyBinding(KeyCategory.ROWS, "enter", "↵", "env", "open the env", "app.open_env", True),
    KeyBinding(KeyCategory.TABLE, "o", "o", "order", "order by the next column, or click a heading", "order", True),
    KeyBinding(KeyCategory.TABLE, "O", "O", "reverse", "reverse the order", "reverse"),
    KeyBinding(KeyCategory.TABLE, "f", "f", "follow", "keep the cursor on the env that is worst off", "follow"),
    KeyBinding(KeyCategory.TABLE, "P", "P", "pin", "pin the env to the top, or let it go", "pin"),
    KeyBinding(KeyCategory.MAP, "left,h", "← h", "left", "the env to the left", "move_selection(-1, 0)"),
    KeyBinding(KeyCategory.MAP, "right,l", "→ l", "right", "the env to the right", "move_selection(1, 0)"),
    KeyBinding(KeyCategory.MAP, "up,k", "↑ k", "up", "the env above", "move_selection(0, -1)"),
    KeyBinding(KeyCategory.MAP, "down,j", "↓ j", "down", "the env below", "move_selection(0, 1)"),
    KeyBinding(KeyCategory.MAP, "o", "o", "metric", "colour by the rank in the next metric", "metric"),
    KeyBinding(KeyCategory.MAP, "enter", "↵", "env", "open the env", "app.open_env"),
    KeyBinding(
        KeyCategory.OVERVIEW,
        "slash",
        "/",
        "filter",
        "show only some: text, acc<0.5, stage:blending, device:cuda:1, anomaly",
        "filter",
        True,
    ),
    KeyBinding(KeyCategory.OVERVIEW, "escape", "Esc", "all", "show all envs again", "clear"),
    KeyBinding(KeyCategory.OVERVIEW, "w", "w", "map", "the weather map in place of the table, and back", "map", True),
    KeyBinding(KeyCategory.DETAIL, "up,k", "↑ k", "previous", "the env above", "move(-1)"),
    KeyBinding(KeyCategory.DETAIL, "down,j", "↓ j", "next", "the env below", "move(1)"),
    KeyBinding(KeyCategory.DETAIL, "escape", "Esc", "back", "back to the overview", "back"),
    KeyBinding(KeyCategory.POLICY, "up,k", "↑ k", "previous", "decisions of the env above", "move(-1)"),
    KeyBinding(KeyCategory.POLICY, "down,j", "↓ j", "next", "decisions of the env below", "move(1)"),
    KeyBinding(KeyCategory.POLICY, "o", "o", "figure", "the next figure of the updates first", "next_figure", True),
    KeyBinding(KeyCategory.POLICY, "enter", "↵", "env", "open the env", "app.open_env"),
    KeyBinding(KeyCategory.GROWTH, "o", "o", "order", "order the blueprints by the next column", "order", True),
    KeyBinding(KeyCategory.DEVICES, "o", "o", "memory", "the next memory", "next_memory", True),
    KeyBinding(KeyCategory.LOG, "up,k", "↑ k", "up", "the line above", "move(-1)"),
    KeyBinding(KeyCategory.LOG, "down,j", "↓ j", "down", "the line below", "move(1)"),
    KeyBinding(KeyCategory.LOG, "pageup", "PgUp", "page up", "a page up", "page(-1)"),
    KeyBinding(KeyCategory.LOG, "pagedown", "PgDn", "page down", "a page down", "page(1)"),
    KeyBinding(KeyCategory.LOG, "home", "Home", "first", "the oldest line", "first"),
    KeyBinding(KeyCategory.LOG, "end", "End", "last", "the newest line, and follow", "last"),
    KeyBinding(KeyCategory.LOG, "slash", "/", "search", "show only lines with a text", "screen.search", True),
    KeyBinding(KeyCategory.LOG, "f", "f", "kind", "the next kind of lines", "kind", True),
    KeyBinding(KeyCategory.LOG, "v", "v", "severity", "from the next severity on", "level", True),
    KeyBinding(
        KeyCategory.LOG, "e", "e", "this env", "only the env under the cursor of the tables, or every one", "env", True
    ),
    KeyBinding(KeyCategory.LOG, "escape", "Esc", "all", "no filter", "clear"),
    KeyBinding(KeyCategory.LOG, "enter", "↵", "go", "to the moment of the line, and to its env", "choose", True),
    KeyBinding(KeyCategory.VIEW, "t", "t", "theme", "next theme", "next_theme", True),
    KeyBinding(KeyCategory.VIEW, "y", "y", "copy", "copy the env under the cursor as JSON", "copy_env"),
    KeyBinding(
        KeyCategory.VIEW, "S", "S", "screenshot", "write the screen to an SVG file, of a live run beside it", "save_svg"
    ),
    KeyBinding(KeyCategory.VIEW, "ctrl+p", "ctrl+p", "commands", "all commands by name", "command_palette"),
    KeyBinding(KeyCategory.ANOMALIES, "enter", "↵", "go", "to the worst of them", "visit"),
    KeyBinding(KeyCategory.VIEW, "a", "a", "anomalies", "all of them: what, where, since when", "anomalies"),
    KeyBinding(KeyCategory.VIEW, "W", "W", "why", "what led to the trouble of the env under the cursor", "why"),
    KeyBinding(
        KeyCategory.VIEW,
        "question_mark",
        "?",
        "help",
        "what the figures here mean; twice: this page",
        "explain",
        True,
    ),
    KeyBinding(KeyCategory.VIEW, "f1", "F1", "keys", "this page", "help"),
    KeyBinding(KeyCategory.VIEW, "q", "q", "quit", "quit; asks first if that ends the run", "quit", True),
    KeyBinding(KeyCategory.VIEW, "ctrl+c,ctrl+q", "ctrl+c", "quit", "as q", "quit", priority=True),
)

APP_CATEGORIES = (KeyCategory.SCREENS, KeyCategory.RUN, KeyCategory.TIME, KeyCategory.VIEW)
"""What the app itself binds; the other categories belong to one widget or screen each."""


def bindings(*categories: KeyCategory) -> list[Binding]:
    """Textual bindings for the keys of these categories."""
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


def is_available(key: KeyBinding, *, live: bool) -> bool:
    """Whether a key means something for this kind of source."""
    return key.when is Availability.ALWAYS or (key.when is Availability.LIVE) == live
