"""The page of help, generated from tables: keys and metrics of the open screen, then words, other keys and symbols."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from textwrap import wrap
from typing import NamedTuple

from rich.text import Text
from textual.containers import VerticalScroll

from esper.common.domain import Rule
from esper.recordings.health.rules import RULES
from esper.sanctum.explanations import RECOVERY_HELP, WORDS, explain_metric
from esper.sanctum.keys import KeyBinding, KeyCategory, bindings_of
from esper.sanctum.requests import PAUSE_CAUSES
from esper.sanctum.screens.search import SearchDialog
from esper.sanctum.symbols import (
    HEADS,
    MARK_SYMBOLS,
    OPS,
    RUN_STATES,
    SEVERITIES,
    STAGES,
    Symbol,
    key_name,
    number_cell,
    scale_cell,
)
from esper.sanctum.view import ViewState

_PAGE_COLS = 64
"""Width of the page, columns; on a narrow terminal, all columns but `_FRAME_COLS`."""
_FRAME_COLS = 5
"""Columns for border, padding and scrollbar of the page on a narrow terminal."""
_WORD_INDENT, _METRIC_INDENT, _ENTRY_INDENT = 8, 10, 11
"""Column of the texts about words, about metrics, and about keys and symbols."""
_NUMBERS = (
    (number_cell(0.0, 3, 2), "measured as zero"),
    (number_cell(None, 3, 2), "not measured, or not yet"),
    (number_cell(float("nan"), 3, 2), "not a number: a computation failed"),
    (number_cell(float("inf"), 3, 2), "infinite: a computation failed"),
    (scale_cell(32768.0), "a loss scale, as a power of two"),
)
"""Special values as the screens write them, with their meanings."""
_LABELS = (
    ("accuracy", "validation accuracy (or the task's own score); the curve is this episode, 0 to 100 %"),
    ("return", "sum of the rewards of this episode so far"),
    ("↶ out", "the env is inactive until the next round, after a rollback"),
    ("early…", "a slot: stage, blueprint and alpha (blending weight of the seed, 0 to 1)"),
    ("|g|", "gradient norm: mean L2 norm of the host's gradient in the last step, before clipping"),
    ("scale", "loss scale of the env; – without loss scaling"),
    ("skip %", "batches skipped because a gradient overflowed, since the start of the run"),
    ("lane", "device and thread or process that trains the env"),
    ("dependence", "score lost without this seed, in percentage points (pp), ± standard error"),
    ("median", "median over the last steps of the envs, which can be a step ahead of the charts; or envs by stage"),
    ("!", "in the env heat map: an outlier on the worse side (3.5 robust standard deviations), or NaN"),
    ("•", "a row that is pinned to the top"),
    ("▼", "a row at the top because its score is among the lowest, when not all envs fit"),
    ("░", "range between the quartiles of the envs, q in a narrow border; minimum and maximum are dotted"),
    ("KL", "change of the policy by the last update, nats"),
    ("clipped", "fraction of decisions that the last update clipped"),
    ("explained", "explained variance: fit of the predicted returns, 1 is perfect"),
    ("busy", "fraction of the step in which the lane worked"),
)
"""Labels and glyphs of the panels, with their meanings."""
_REQUESTS = (
    ("sending…", "sent to a run in another process, which has not received it yet"),
    ("pausing…", "received; the engine acts at the end of its step"),
    ("", "the text disappears when the run confirms the request; the log shows its origin"),
)
"""States of a request in the header, with their meanings."""


class _Entry(NamedTuple):
    """Line of the page: a label in a role, and its text."""

    label: str
    role: str
    text: str


class _Section(NamedTuple):
    """Entries below a heading."""

    heading: str
    entries: Sequence[_Entry]
    indent: int = _ENTRY_INDENT
    """Column of the texts."""
    is_whole: bool = False
    """True if a search finds all entries or none."""

    def matching(self, text: str) -> Sequence[_Entry]:
        """Return the entries that contain a text, ignoring case; all if the heading contains it."""
        wanted = text.casefold()
        found = [entry for entry in self.entries if wanted in f"{entry.label} {entry.text}".casefold()]
        return self.entries if wanted in self.heading.casefold() or (found and self.is_whole) else found


class HelpScreen(SearchDialog):
    """Page that begins with the keys and the metrics of the open screen. Typing shows only what contains the text.

    Args:
        view: State that all panels share.
        keys: Keys that the open screen and its focused widget bind.
        metrics: Metrics of the open screen, those of the focused panel first.
        at: Metric that the page shows first; None to show its start.
    """

    BINDINGS = bindings_of("dismiss", "view.help")

    def __init__(
        self, view: ViewState, keys: Sequence[KeyBinding] = (), metrics: Sequence[str] = (), at: str | None = None
    ) -> None:
        super().__init__()
        self._view = view
        self._keys = keys
        self._metrics = metrics
        self._at = at

    def on_resize(self) -> None:
        """Write the page in the new width; when it opens, scroll to its metric."""
        super().on_resize()
        if self._at is not None:
            line = self.page("").plain.partition(f"\n{self._at}\n")[0].count("\n") + 1
            self.call_after_refresh(self.query_one(VerticalScroll).scroll_to, y=line, animate=False)
            self._at = None

    def page(self, text: str) -> Text:
        """Return the sections with the entries that contain a text."""
        columns = min(self.size.width - _FRAME_COLS, _PAGE_COLS) if self.is_mounted else _PAGE_COLS
        palette, page = self._view.palette, Text()
        for section in self.sections():
            entries = section.matching(text)
            if not entries:
                continue
            page.append(f"{section.heading}\n", palette["title"])
            for label, role, meaning in entries:
                page.append("  ").append(label, palette[role])
                gap = section.indent - 2 - len(label)
                page.append(" " * gap if gap > 0 else "\n" + " " * section.indent)
                rows = wrap(meaning, columns - section.indent)
                page.append(f"\n{' ' * section.indent}".join(rows), palette["normal"]).append("\n")
            page.append("\n")
        return page or Text("nothing contains this text")

    def sections(self) -> Iterator[_Section]:
        """Yield all sections: first those of the open screen."""
        names = self._view.key_names
        yield _Section("Keys of this screen", self._key_entries(self._keys))
        for name in self._metrics:
            yield self._metric(name)
            if name == "anomalies":
                yield self._rules()
        words = (_Entry(word, "head", meaning.format(keys=names)) for word, meaning in WORDS.items())
        yield _Section("Words", [*words], _WORD_INDENT)
        for category in KeyCategory:
            others = (key for key in self._view.keys if key.category is category and key not in self._keys)
            yield _Section(category.value, self._key_entries(others))
        yield self.stages()
        yield _Section("Severities", [_Entry(s.glyph, s.name, s.meaning) for s in SEVERITIES.values()])
        yield _Section("Status of a run", [_Entry(s.glyph, role, _describe(s)) for s, role in RUN_STATES.values()])
        if self._view.source.live:
            causes = (
                _Entry(cause, "error", f"{info.description} {info.format_advice(names)}")
                for cause, info in PAUSE_CAUSES.items()
            )
            yield _Section("Faults that hold a run", [*causes])
        marks = (_Entry(s.glyph, role, _describe(s)) for s, role in MARK_SYMBOLS.values())
        yield _Section("Marks on the timeline", [*marks])
        yield _Section("Numbers", [_Entry(cell.text.strip(), cell.role, text) for cell, text in _NUMBERS])
        yield _Section("Labels", [_Entry(name, "head", text) for name, text in _LABELS])
        ops = (_Entry(name.replace("_", " "), "head", text) for name, text in OPS.items())
        yield _Section("Ops of the policy", [*ops])
        yield _Section("Requests to the run", [_Entry(name, "bright", text) for name, text in _REQUESTS])
        yield _Section("Heads of the policy", [_Entry(h.short, "head", h.meaning) for h in HEADS.values()])

    def stages(self) -> _Section:
        """Return the section of the stages of a slot."""
        return _Section("Stages of a slot", [_Entry(s.glyph, s.name, _describe(s)) for s in STAGES.values()])

    def _key_entries(self, keys: Iterable[KeyBinding]) -> list[_Entry]:
        view, screens = self._view, KeyCategory.SCREENS
        return [
            _Entry(
                key_name(key.label, view.charset),
                "key",
                f"{key.name}: {key.description}" if key.category is screens else key.description,
            )
            for key in keys
            if view.is_available(key)
        ]

    def _metric(self, name: str) -> _Section:
        explanation = explain_metric(name, self._view.thresholds.limits, self._view.key_names)
        entries = [_Entry(label, "head", text) for label, text in explanation._asdict().items() if text]
        return _Section(name, entries, _METRIC_INDENT, is_whole=True)

    def _rules(self) -> _Section:
        """Return the anomaly rules with their thresholds."""
        limits = self._view.thresholds.limits
        rules = [_Entry(rule, "head", RULES[rule].explanation.format(limits=limits)) for rule in Rule]
        end = _Entry("end", "head", RECOVERY_HELP.format(limits=limits))
        return _Section("Anomaly rules", [*rules, end], _METRIC_INDENT)


class LegendScreen(HelpScreen):
    """Page with the stages of a slot."""

    BINDINGS = bindings_of("dismiss", "view.stages")

    def sections(self) -> Iterator[_Section]:
        """Yield the section of the stages."""
        yield self.stages()


def _describe(symbol: Symbol) -> str:
    return f"{symbol.name}: {symbol.meaning}"
