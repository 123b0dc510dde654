"""Panel that explains the last decision for the selected env."""

from __future__ import annotations

from collections.abc import Hashable

from textual.geometry import Size

from esper.formatting import strip_control
from esper.sanctum.symbols import head_label
from esper.sanctum.widgets.env_panel import EnvPanel
from esper.sanctum.widgets.panel import Line
from esper.telemetry.events import DecisionExplained
from esper.telemetry.state import EnvState

_GROUP_COLS = 24
"""Width of the name of a group of features."""
_CELL_COLS = 7
_NOTABLE_CHANGE = 0.1
"""Change of a probability from which it is highlighted."""


class EnvDecision(EnvPanel):
    """Probability of each choice of the last decision, and the same without each group of features."""

    METRICS = ("decision",)

    def cache_key(self) -> Hashable:
        """Return the key of the env, and the text that is shown without an explanation."""
        return super().cache_key(), self._reason()

    def draw_env(self, env: EnvState, size: Size) -> list[Line]:
        """Draw one line per group of features, the most influential first, or the reason why there is none."""
        step, found = env.stepped, env.explained
        self.panel_title = "decision"
        if step is None:
            return self.message("no step yet in this round")
        if step.op_probability is None:
            return self.message("this policy reports no probabilities")
        if found is None:
            return self.message(strip_control(self._reason()))
        choices = ", ".join(choice.choice for choice in found.choices.values())
        self.panel_title = f"decision of step {found.step} ─ {strip_control(choices)}"
        head = self.line().append_fitted(" probability in %", _GROUP_COLS, "head")
        for name in found.choices:
            head.append(head_label(name, short=True).rjust(_CELL_COLS), "head")
        groups = sorted(found.without, key=lambda group: -_largest_change(found, group))
        lines = [head, self._line_of(found, "with all inputs", _probabilities(found))]
        lines += [self._line_of(found, f"without {strip_control(group)}", found.without[group]) for group in groups]
        return lines[: size.height]

    def _reason(self) -> str:
        """Return why no decision of this episode is explained."""
        obstacle = self.view.explanation_obstacle(is_web=self.app.is_web)
        return obstacle or "the engine explains the decision after this step"

    def _line_of(self, found: DecisionExplained, name: str, probabilities: dict[str, float]) -> Line:
        line = self.line(" ").append_fitted(name, _GROUP_COLS - 1, "normal")
        for head, before in _probabilities(found).items():
            after = probabilities.get(head, before)
            is_notable = abs(after - before) >= _NOTABLE_CHANGE
            line.append(f"{100 * after:.0f}".rjust(_CELL_COLS), "bright" if is_notable else "dim")
        return line


def _probabilities(found: DecisionExplained) -> dict[str, float]:
    return {head: choice.probability or 0.0 for head, choice in found.choices.items()}


def _largest_change(found: DecisionExplained, group: str) -> float:
    changes = (abs(found.without[group].get(head, p) - p) for head, p in _probabilities(found).items())
    return max(changes, default=0.0)
