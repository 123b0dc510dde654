"""The lifecycle of one env's seeds: each move with its reason, and the gates that hold one back now."""

from __future__ import annotations

from textwrap import wrap

from textual.geometry import Size

from esper.formatting import plain
from esper.sanctum.symbols import SEVERITIES, STAGES, brief, shorten
from esper.sanctum.widgets.env_panel import EnvPanel
from esper.sanctum.widgets.panel import Line
from esper.telemetry.events import GateCheck, GateRefused, SeedMoved
from esper.telemetry.state import EnvState

_INDENT = 7
"""Of what a gate holds against a seed: below the step and the sign."""


class EnvMoves(EnvPanel):
    """The last moves that fit, and below them the refusals."""

    METRICS = ("lifecycle",)

    HEADING = "lifecycle"

    def draw_env(self, env: EnvState, size: Size) -> list[Line]:
        """A line per move; each refusing gate with all that it holds against the seed."""
        refusals = [line for refusal in env.refusals.values() for line in self._refusal(refusal, size.width)]
        room = max(size.height - len(refusals), 0)
        moves = [self._move(move, size.width) for move in env.moves[-room:]] if room else []
        if not moves and not refusals:
            return [self.line().add(" no seed in this episode", "dim")]
        return moves + refusals

    def _move(self, move: SeedMoved, width: int) -> Line:
        line = self.line().add(f" {move.step:>3} ", "dim").add(f"{plain(move.slot)} ", "dim")
        line.add(STAGES[move.before].glyph, move.before).add(" → ", "faint").add(STAGES[move.after].glyph, move.after)
        text = f" {move.blueprint or ''}".rstrip() + f"  {move.reason}"
        return line.add(shorten(plain(text), max(width - line.width, 0)))

    def _refusal(self, refusal: GateRefused, width: int) -> list[Line]:
        who = f"{refusal.gate} holds {plain(refusal.slot)}"
        failed = "; ".join(_check(check) for check in refusal.checks if not check.passed)
        first, *rest = wrap(f"{who}: {failed}", max(width - _INDENT, len(who) + 1))
        line = self.line().add(f" {refusal.step:>3} ", "dim").add(f"{SEVERITIES['warning'].glyph} ", "warning")
        line.add(who, "bright").add(first[len(who) :])
        return [line, *(self.line().add(" " * _INDENT + text) for text in rest)]


def _check(check: GateCheck) -> str:
    """A failed check: name, value, and what it was held against."""
    threshold = "" if check.threshold is None else f", needs {brief(check.threshold).text}"
    return plain(f"{check.name} {brief(check.value).text}{threshold}")
