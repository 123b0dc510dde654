"""Help pages, generated from tables: words, all keys and symbols, and the metrics of the open screen."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Static

from esper.common.domain import Rule
from esper.recordings.health.rules import RULES
from esper.sanctum.explanations import RECOVERY_HELP, WORDS, explain_metric
from esper.sanctum.keys import KeyBinding, KeyCategory, bindings_of
from esper.sanctum.requests import PAUSE_CAUSES
from esper.sanctum.screens.dialogs import Dialog
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
"""Width of a page, columns; on a narrow terminal, all columns but `_FRAME_COLS`."""
_FRAME_COLS = 5
"""Columns for border, padding and scrollbar of a page on a narrow terminal."""
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


class HelpPage(Dialog[bool]):
    """Base class of a scrollable page. Subclasses implement `page`."""

    columns = _PAGE_COLS
    """Width of the page."""

    def __init__(self, view: ViewState) -> None:
        super().__init__()
        self._view = view
        self._palette = view.palette

    def compose(self) -> ComposeResult:
        """Yield the scrollable page."""
        with VerticalScroll(id="dialog"):
            yield Static()

    def on_resize(self) -> None:
        """Wrap the page to the width of the terminal."""
        self.columns = min(self.size.width - _FRAME_COLS, _PAGE_COLS)
        self.query_one(Static).update(self.page())

    def page(self) -> Text:
        """Return the text of the page, `columns` wide."""
        raise NotImplementedError

    def append_words(self, page: Text) -> None:
        """Append the words of all screens, one in each line."""
        page.append("Words\n", self._palette["title"])
        for word, meaning in WORDS.items():
            self.append_entry(page, word, "head", meaning.format(keys=self._view.key_names), _WORD_INDENT)
        page.append("\n")

    def append_entry(self, page: Text, label: str, role: str, text: str, indent: int) -> None:
        """Append a label, and its text, wrapped, from column `indent` on."""
        wrapped = f"\n{' ' * indent}".join(wrap(text, self.columns - indent))
        page.append("  ").append(label, self._palette[role])
        page.append(" " * max(indent - 2 - len(label), 1)).append(f"{wrapped}\n", self._palette["normal"])


class HelpScreen(HelpPage):
    """Page with all keys, symbols, labels, ops and heads."""

    BINDINGS = bindings_of("dismiss", "view.help", "view.keys")

    def page(self) -> Text:
        """Return all sections."""
        page = Text()
        self.append_words(page)
        for category in KeyCategory:
            shown = (key for key in self._view.keys if key.category is category and self._view.is_available(key))
            keys = [self._key_entry(key) for key in shown]
            self._section(page, category.value, keys)
        self._append_stages(page)
        self._section(page, "Severities", [(s.glyph, s.name, s.meaning) for s in SEVERITIES.values()])
        states = [(s.glyph, role, _describe(s)) for s, role in RUN_STATES.values()]
        self._section(page, "Status of a run", states)
        if self._view.source.live:
            causes = [
                (cause, "error", f"{info.description} {info.format_advice(self._view.key_names)}")
                for cause, info in PAUSE_CAUSES.items()
            ]
            self._section(page, "Faults that hold a run", causes)
        marks = [(s.glyph, role, _describe(s)) for s, role in MARK_SYMBOLS.values()]
        self._section(page, "Marks on the timeline", marks)
        self._section(page, "Numbers", [(cell.text.strip(), cell.role, text) for cell, text in _NUMBERS])
        self._section(page, "Labels", [(name, "head", text) for name, text in _LABELS])
        ops = [(name.replace("_", " "), "head", text) for name, text in OPS.items()]
        self._section(page, "Ops of the policy", ops)
        self._section(page, "Requests to the run", [(name, "bright", text) for name, text in _REQUESTS])
        heads = [(head.short, "head", head.meaning) for head in HEADS.values()]
        self._section(page, "Heads of the policy", heads)
        page.append("Esc back", style=self._palette["dim"])
        return page

    def _append_stages(self, page: Text) -> None:
        self._section(page, "Stages of a slot", [(s.glyph, s.name, _describe(s)) for s in STAGES.values()])

    def _key_entry(self, key: KeyBinding) -> tuple[str, str, str]:
        text = f"{key.name}: {key.description}" if key.category is KeyCategory.SCREENS else key.description
        return key_name(key.label, self._view.charset), "key", text

    def _section(self, page: Text, heading: str, entries: list[tuple[str, str, str]]) -> None:
        if not entries:
            return
        page.append(f"{heading}\n", style=self._palette["title"])
        for label, role, text in entries:
            self.append_entry(page, label, role, text, _ENTRY_INDENT)
        page.append("\n")


class LegendScreen(HelpScreen):
    """Page with the stages of a slot."""

    BINDINGS = bindings_of("dismiss", "view.stages")

    def page(self) -> Text:
        """Return the section of the stages."""
        page = Text()
        self._append_stages(page)
        return page.append("Esc back", style=self._palette["dim"])


def _describe(symbol: Symbol) -> str:
    return f"{symbol.name}: {symbol.meaning}"


class MetricHelpScreen(HelpPage):
    """Page with the meaning of metrics. Returns True if the user asks for the page of all keys and symbols."""

    BINDINGS = bindings_of("dismiss(True)", "view.help", "view.keys")

    def __init__(self, view: ViewState, metrics: Sequence[str]) -> None:
        super().__init__(view)
        self._metrics = metrics
        self._limits = view.thresholds.limits

    def page(self) -> Text:
        """Return the words of all screens, and the help of all metrics."""
        page, palette = Text(), self._palette
        self.append_words(page)
        for name in self._metrics:
            page.append(f"{name}\n", palette["title"])
            explanation = explain_metric(name, self._limits, self._view.key_names)
            for heading, text in explanation._asdict().items():
                if text:
                    self.append_entry(page, heading, "head", text, _METRIC_INDENT)
            page.append("\n")
            if name == "anomalies":
                self._append_rules(page)
        return page.append(f"{self._view.key_names['view.help']} all keys and symbols   Esc back", palette["dim"])

    def _append_rules(self, page: Text) -> None:
        """Append each anomaly rule with its thresholds."""
        indent = " " * _METRIC_INDENT
        for rule in Rule:
            text = RULES[rule].explanation.format(limits=self._limits)
            wrapped = f"\n{indent}".join(wrap(text, self.columns - _METRIC_INDENT))
            page.append(f"  {rule}\n", self._palette["head"]).append(f"{indent}{wrapped}\n", self._palette["normal"])
        recovery = wrap(RECOVERY_HELP.format(limits=self._limits), self.columns - 2)
        page.append("".join(f"  {line}\n" for line in recovery), self._palette["dim"]).append("\n")
