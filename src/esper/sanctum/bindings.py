"""The keys, as data: what is bound, what the footer shows and what the help screen lists come from this one table."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from textual.binding import Binding


class Category(Enum):
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
    STRIP = "Anomalies (tab moves to them)"
    SCRUBBER = "Time line (tab moves to it)"
    VIEW = "View"


class When(Enum):
    """Where a key means something, and the footer shows it."""

    LIVE = "live"
    REPLAY = "replay"
    ALWAYS = "always"


@dataclass(frozen=True)
class Key:
    """One key, or a few with one meaning."""

    category: Category
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
    when: When = When.ALWAYS
    priority: bool = False
    """Reaches the app whatever has the focus."""

    @property
    def id(self) -> str:
        """By which Textual knows its binding."""
        return f"{self.category.name}.{self.action}".lower()


class Place(NamedTuple):
    """A screen that a number key goes to."""

    key: str
    description: str


PLACES: dict[str, Place] = {
    "overview": Place("1", "the population, what teaches it, what carries it"),
    "policy": Place("2", "which heads learn, how the learning goes, what is decided"),
    "growth": Place("3", "what grows in every env, how each blueprint fares"),
    "numerics": Place("4", "loss scales, overflows, gradient norms, what is not finite"),
    "devices": Place("5", "memory and whose it is, lanes, where the time goes"),
    "log": Place("6", "everything notable, to filter and to search"),
}
"""By name, in the order of the tabs; `screens.SCREEN_CLASSES` names the class of each."""

ENV_VIEW = "env"
"""Name of the view of one env."""
VIEW_NAMES = (*PLACES, ENV_VIEW)
"""View names that an address may contain: the screens with a number key, and one env."""

KEYS: tuple[Key, ...] = (
    *(
        Key(Category.SCREENS, place.key, place.key, name, place.description, f"go('{name}')")
        for name, place in PLACES.items()
    ),
    Key(Category.RUN, "p", "p", "pause", "pause between two steps, or go on", "pause", True, When.LIVE),
    Key(Category.RUN, "s", "s", "step", "while paused: one step, then hold again", "step", False, When.LIVE),
    Key(Category.RUN, "c", "c", "checkpoint", "write a checkpoint now", "checkpoint", True, When.LIVE),
    Key(Category.RUN, "r", "r", "restore", "go back to a checkpoint and go on from it", "restore", True, When.LIVE),
    Key(Category.RUN, "Q", "Q", "stop", "end the run; asks first", "stop", False, When.LIVE),
    Key(Category.RUN, "d", "d", "detach", "leave a run that trains in another process", "detach", False, When.LIVE),
    Key(Category.TIME, "space", "space", "play", "play, or hold", "play", True, When.REPLAY),
    Key(Category.TIME, "left", "←", "step back", "one step back", "replay_step(-1)"),
    Key(Category.TIME, "right", "→", "step", "one step on", "replay_step(1)", True, When.REPLAY),
    Key(Category.TIME, "shift+left", "⇧←", "round back", "one round back", "replay_round(-1)"),
    Key(Category.TIME, "shift+right", "⇧→", "round", "one round on", "replay_round(1)", True, When.REPLAY),
    Key(Category.TIME, "less_than_sign,comma", "<", "slower", "play more slowly", "replay_speed(-1)"),
    Key(Category.TIME, "greater_than_sign,full_stop", ">", "faster", "play faster", "replay_speed(1)"),
    Key(Category.TIME, "left_curly_bracket", "{", "start", "to the start", "replay_start"),
    Key(Category.TIME, "right_curly_bracket", "}", "end", "to the end; in a live run, its present", "replay_end"),
    Key(
        Category.TIME,
        "end",
        "End",
        "present",
        "from the past of a live run to its present",
        "rejoin",
        priority=True,
        when=When.LIVE,
    ),
    Key(Category.TIME, "g", "g", "go to", "go to round:14, step:812, anomaly:1, 1h20m, 12:30 or 40%", "go_to"),
    Key(Category.TIME, "Y", "Y", "address", "copy the address of this view; replay opens it", "copy_address"),
    Key(Category.TIME, "X", "X", "cut", "write the two minutes before and after to a recording of their own", "cut"),
    Key(Category.TIME, "m", "m", "bookmark", "set a bookmark here, or take it away", "bookmark"),
    Key(
        Category.TIME,
        "n",
        "n",
        "next mark",
        "next bookmark: anomaly, rollback, checkpoint, fossilization or own",
        "mark(1)",
        True,
        When.REPLAY,
    ),
    Key(Category.TIME, "N", "N", "previous mark", "the bookmark before", "mark(-1)"),
    Key(Category.SCRUBBER, "home", "Home", "start", "to the start", "start", False, When.REPLAY),
    Key(Category.SCRUBBER, "end", "End", "end", "to the end", "end", False, When.REPLAY),
    Key(Category.ROWS, "up,k", "↑ k", "up", "the env above", "move(-1)"),
    Key(Category.ROWS, "down,j", "↓ j", "down", "the env below", "move(1)"),
    Key(Category.ROWS, "pageup", "PgUp", "page up", "a page up", "page(-1)"),
    Key(Category.ROWS, "pagedown", "PgDn", "page down", "a page down", "page(1)"),
    Key(Category.ROWS, "home", "Home", "first", "the first env", "first"),
    Key(Category.ROWS, "end", "End", "last", "the last env", "last"),
    Key(Category.ROWS, "enter", "↵", "env", "open the env", "app.open_env", True),
    Key(Category.TABLE, "o", "o", "order", "order by the next column, or click a heading", "order", True),
    Key(Category.TABLE, "O", "O", "reverse", "reverse the order", "reverse"),
    Key(Category.TABLE, "f", "f", "follow", "keep the cursor on the env that is worst off", "follow"),
    Key(Category.TABLE, "P", "P", "pin", "pin the env to the top, or let it go", "pin"),
    Key(Category.MAP, "left,h", "← h", "left", "the env to the left", "steer(-1, 0)"),
    Key(Category.MAP, "right,l", "→ l", "right", "the env to the right", "steer(1, 0)"),
    Key(Category.MAP, "up,k", "↑ k", "up", "the env above", "steer(0, -1)"),
    Key(Category.MAP, "down,j", "↓ j", "down", "the env below", "steer(0, 1)"),
    Key(Category.MAP, "o", "o", "metric", "colour by the rank in the next metric", "metric"),
    Key(Category.MAP, "enter", "↵", "env", "open the env", "app.open_env"),
    Key(
        Category.OVERVIEW,
        "slash",
        "/",
        "filter",
        "show only some: text, acc<0.5, stage:blending, device:cuda:1, anomaly",
        "filter",
        True,
    ),
    Key(Category.OVERVIEW, "escape", "Esc", "all", "show all envs again", "clear"),
    Key(Category.OVERVIEW, "w", "w", "map", "the weather map in place of the table, and back", "map", True),
    Key(Category.DETAIL, "up,k", "↑ k", "previous", "the env above", "move(-1)"),
    Key(Category.DETAIL, "down,j", "↓ j", "next", "the env below", "move(1)"),
    Key(Category.DETAIL, "escape", "Esc", "back", "back to the overview", "back"),
    Key(Category.POLICY, "up,k", "↑ k", "previous", "decisions of the env above", "move(-1)"),
    Key(Category.POLICY, "down,j", "↓ j", "next", "decisions of the env below", "move(1)"),
    Key(Category.POLICY, "o", "o", "figure", "the next figure of the updates first", "next_figure", True),
    Key(Category.POLICY, "enter", "↵", "env", "open the env", "app.open_env"),
    Key(Category.GROWTH, "o", "o", "order", "order the blueprints by the next column", "order", True),
    Key(Category.DEVICES, "o", "o", "memory", "the next memory", "next_memory", True),
    Key(Category.LOG, "up,k", "↑ k", "up", "the line above", "move(-1)"),
    Key(Category.LOG, "down,j", "↓ j", "down", "the line below", "move(1)"),
    Key(Category.LOG, "pageup", "PgUp", "page up", "a page up", "page(-1)"),
    Key(Category.LOG, "pagedown", "PgDn", "page down", "a page down", "page(1)"),
    Key(Category.LOG, "home", "Home", "first", "the oldest line", "first"),
    Key(Category.LOG, "end", "End", "last", "the newest line, and follow", "last"),
    Key(Category.LOG, "slash", "/", "search", "show only lines with a text", "screen.search", True),
    Key(Category.LOG, "f", "f", "kind", "the next kind of lines", "kind", True),
    Key(Category.LOG, "v", "v", "severity", "from the next severity on", "level", True),
    Key(Category.LOG, "e", "e", "this env", "only the env under the cursor of the tables, or every one", "env", True),
    Key(Category.LOG, "escape", "Esc", "all", "no filter", "clear"),
    Key(Category.LOG, "enter", "↵", "go", "to the moment of the line, and to its env", "choose", True),
    Key(Category.VIEW, "t", "t", "theme", "next theme", "next_theme", True),
    Key(Category.VIEW, "y", "y", "copy", "copy the env under the cursor as JSON", "copy_env"),
    Key(Category.VIEW, "S", "S", "screenshot", "write the screen to an SVG file, of a live run beside it", "save_svg"),
    Key(Category.VIEW, "ctrl+p", "ctrl+p", "commands", "all commands by name", "command_palette"),
    Key(Category.STRIP, "enter", "↵", "go", "to the worst of them", "visit"),
    Key(Category.VIEW, "a", "a", "anomalies", "all of them: what, where, since when", "anomalies"),
    Key(Category.VIEW, "W", "W", "why", "what led to the trouble of the env under the cursor", "why"),
    Key(
        Category.VIEW,
        "question_mark",
        "?",
        "help",
        "what the figures here mean; twice: this page",
        "explain",
        True,
    ),
    Key(Category.VIEW, "f1", "F1", "keys", "this page", "help"),
    Key(Category.VIEW, "q", "q", "quit", "quit; asks first if that ends the run", "quit", True),
    Key(Category.VIEW, "ctrl+c,ctrl+q", "ctrl+c", "quit", "as q", "quit", priority=True),
)

APP = (Category.SCREENS, Category.RUN, Category.TIME, Category.VIEW)
"""What the app itself binds; the other categories belong to one widget or screen each."""


def bindings(*categories: Category) -> list[Binding]:
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


def shown(key: Key, *, live: bool) -> bool:
    """Whether a key means something for this kind of source."""
    return key.when is When.ALWAYS or (key.when is When.LIVE) == live
