"""Every key, glyph and colour by name, generated from the tables that the screens are drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from esper.sanctum.bindings import KEYS, KeyCategory, is_available
from esper.sanctum.explanations import METRIC_HELP
from esper.sanctum.requests import PAUSE_CAUSES
from esper.sanctum.symbols import (
    HEADS,
    MARK_SYMBOLS,
    OPS,
    SEVERITIES,
    STAGES,
    STATUS_SYMBOLS,
    Symbol,
    key_name,
    number_cell,
    scale_cell,
)
from esper.sanctum.theme import Palette
from esper.sanctum.view import ViewState

_INDENT, _WIDTH = 11, 52
_NUMBERS = (
    (number_cell(0.0, 3, 2), "zero was measured"),
    (number_cell(None, 3, 2), "not measured, or not yet"),
    (number_cell(float("nan"), 3, 2), "not a number: something broke"),
    (number_cell(float("inf"), 3, 2), "infinite: something broke"),
    (scale_cell(32768.0), "a loss scale, as a power of two"),
)
_COLUMNS = (
    ("acc %", "accuracy on the validation split after the last step, per cent; the curve is this episode, 0 to 100 %"),
    ("reward", "reward of the last step"),
    ("↶ out", "the governor took the env back in this round: it sits out the rest of it"),
    ("early…", "a slot: stage, blueprint, alpha (how much of the seed is blended in, 0 to 1)"),
    ("|g|", "mean L2 norm of the host's gradient over the last epoch, before clipping"),
    ("scale", "loss scale of the env's scaler, where there is one"),
    ("lane", "the device that trains the env"),
    ("worth %", "accuracy with every seed, less that without this one, in points, ± its standard error"),
    ("med", "median over the envs that have stepped; under a slot, how many are at each stage"),
    ("!", "on the weather map: far off its siblings, on the worse side (3.5 robust standard deviations), or NaN"),
    ("•", "a row that is pinned to the top"),
    ("░", "from the least to the greatest env"),
    ("KL", "how far the last update moved the policy, nats"),
    ("clip", "share of decisions that the update clipped"),
    ("EV", "explained variance: how well the critic foresaw the returns, 1 is perfectly"),
    ("busy", "share of the step that the lane spent working"),
)
_REQUESTS = (
    ("asking…", "sent to a run in another process, and not heard there yet"),
    ("pausing…", "heard: the engine will do it at the end of its step"),
    ("", "done, once the event that says so has come; the log names who asked"),
)


class HelpScreen(ModalScreen[None]):
    """A page to scroll."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark,f1", "dismiss_help", "back")]

    def __init__(self, view: ViewState, *, live: bool) -> None:
        super().__init__()
        self._palette = view.palette
        self._charset = view.charset
        self._live = live

    def compose(self) -> ComposeResult:
        """One text."""
        with VerticalScroll(id="dialog"):
            yield Static(self.page())

    def page(self) -> Text:
        """All sections, wrapped to what the smallest terminal holds."""
        page = Text()
        for category in KeyCategory:
            keys = [key for key in KEYS if key.category is category and is_available(key, live=self._live)]
            named = category is KeyCategory.SCREENS
            texts = [f"{key.name}: {key.description}" if named else key.description for key in keys]
            labels = [key_name(key.label, self._charset) for key in keys]
            rows = [(label, "key", text) for label, text in zip(labels, texts, strict=True)]
            self._section(page, category.value, rows)
        self._section(page, "Stages of a seed", [(s.glyph, s.name, f"{s.name}: {s.meaning}") for s in STAGES.values()])
        self._section(page, "Severities", [(s.glyph, s.name, s.meaning) for s in SEVERITIES.values()])
        self._section(page, "State of the run", [(s.glyph, "bright", _named(s)) for s in STATUS_SYMBOLS.values()])
        holds = [(cause, "error", f"{hold.description} {hold.advice}") for cause, hold in PAUSE_CAUSES.items()]
        self._section(page, "What holds a run, and what leads on", holds if self._live else [])
        signs = [(s.glyph, role, f"{s.name}: {s.meaning}") for s, role in MARK_SYMBOLS.values()]
        self._section(page, "Signs of the time line", signs)
        self._section(page, "Numbers", [(cell.text.strip(), cell.role, text) for cell, text in _NUMBERS])
        self._section(page, "Columns and figures", [(name, "head", text) for name, text in _COLUMNS])
        ops = [(name.replace("_", " "), "head", text) for name, text in OPS.items()]
        self._section(page, "Ops of the policy", ops)
        self._section(page, "What was asked of the run", [(name, "bright", text) for name, text in _REQUESTS])
        heads = [(short, "head", long) for long, short in HEADS.values()]
        self._section(page, "Heads of the policy", heads)
        page.append("Esc back", style=self._palette["dim"])
        return page

    def _section(self, page: Text, heading: str, entries: list[tuple[str, str, str]]) -> None:
        if not entries:
            return
        page.append(f"{heading}\n", style=self._palette["title"])
        for glyph, role, text in entries:
            page.append("  ").append(glyph, style=self._palette[role])
            wrapped = f"\n{' ' * _INDENT}".join(wrap(text, _WIDTH))
            page.append(" " * max(_INDENT - 2 - len(glyph), 1)).append(f"{wrapped}\n", style=self._palette["normal"])
        page.append("\n")

    def action_dismiss_help(self) -> None:
        """Back to the screen below."""
        self.dismiss()


def _named(symbol: Symbol) -> str:
    return f"{symbol.name}: {symbol.meaning}"


class MetricHelpScreen(ModalScreen[bool]):
    """A page to scroll. Gives whether the page of all keys and symbols is wanted next."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "close(False)", "back"),
        Binding("question_mark,f1", "close(True)", "all keys"),
    ]

    def __init__(self, palette: Palette, metrics: Sequence[str]) -> None:
        super().__init__()
        self._palette = palette
        self._metrics = metrics

    def compose(self) -> ComposeResult:
        """One text."""
        with VerticalScroll(id="dialog"):
            yield Static(self.page())

    def page(self) -> Text:
        """The metrics, one below the other."""
        page, palette = Text(), self._palette
        for name in self._metrics:
            explanation = METRIC_HELP[name]
            page.append(f"{name}\n", palette["title"])
            for heading, text in zip(("what", "unit", "healthy", "do"), explanation, strict=True):
                wrapped = f"\n{' ' * 10}".join(wrap(text, 54))
                page.append(f"  {heading:<8}", palette["head"]).append(f"{wrapped}\n", palette["normal"])
            page.append("\n")
        return page.append("? all keys and symbols   Esc back", palette["dim"])

    def action_close(self, more: bool) -> None:
        """Back to the screen below, or on to the page of keys."""
        self.dismiss(more)
