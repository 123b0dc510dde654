"""Panel that explains the last decision for the selected env."""

from __future__ import annotations

from collections.abc import Hashable

from textual.geometry import Size

from esper.common.formatting import strip_control
from esper.recordings.events import DecisionExplained
from esper.recordings.state.state import EnvState
from esper.sanctum.symbols import head_label
from esper.sanctum.widgets.env_panel import EnvPanel
from esper.sanctum.widgets.panel import Line

_MIN_GROUP_COLS, _MAX_GROUP_COLS = 14, 24
"""Width of the name of a group of features."""
_MAX_CELL_COLS = 7
"""Maximum width of a probability; in a narrow panel, it is only as wide as its heading."""
_NOTABLE_CHANGE = 0.1
"""Change of a probability from which it is highlighted."""


class EnvExplanation(EnvPanel):
    """Probability of each choice of the last decision, and the same without each group of features."""

    METRICS = ("decision",)

    def cache_key(self) -> Hashable:
        """Return the key of the env, and the text that is shown without an explanation."""
        return super().cache_key(), self._reason()

    def draw_env(self, env: EnvState, size: Size) -> list[Line]:
        """Draw one line per group of features, the most influential first, or the reason why there is none."""
        step, found = env.stepped, env.explained
        self.panel_title = "explanation"
        if step is None:
            return self.wrapped_message("no step yet in this round", size.width)
        if step.op_probability is None:
            return self.wrapped_message("this policy reports no probabilities", size.width)
        if found is None:
            return self.wrapped_message(strip_control(self._reason()), size.width)
        choices = ", ".join(choice.choice for choice in found.choices.values())
        self.panel_title = f"explanation of step {found.step} ─ {strip_control(choices)}"
        labels = [head_label(name, short=True) for name in found.choices]
        room = size.width - _MAX_GROUP_COLS
        is_roomy = _MAX_CELL_COLS * len(labels) <= room
        widths = [_MAX_CELL_COLS if is_roomy else max(len(label), 3) + 1 for label in labels]
        name_cols = min(max(size.width - sum(widths), _MIN_GROUP_COLS), _MAX_GROUP_COLS)
        head = self.line().append_fitted(" probability in %" if is_roomy else " % without", name_cols, "head")
        for label, width in zip(labels, widths, strict=True):
            head.append(label.rjust(width), "head")
        groups = sorted(found.without, key=lambda group: -_largest_change(found, group))
        rows = [("with all inputs" if is_roomy else "nothing", _probabilities(found))]
        prefix = "without " if is_roomy else ""
        rows += [(prefix + strip_control(group), found.without[group]) for group in groups]
        return [head, *(self._line_of(found, name, row, name_cols, widths) for name, row in rows)]

    def _reason(self) -> str:
        """Return why no decision of this episode is explained."""
        obstacle = self.view.explanation_obstacle(is_web=self.app.is_web)
        return obstacle or "the engine explains the decision after this step"

    def _line_of(
        self, found: DecisionExplained, name: str, probabilities: dict[str, float], name_cols: int, widths: list[int]
    ) -> Line:
        line = self.line(" ").append_fitted(name, name_cols - 1, "normal")
        for (head, before), width in zip(_probabilities(found).items(), widths, strict=True):
            after = probabilities.get(head, before)
            is_notable = abs(after - before) >= _NOTABLE_CHANGE
            line.append(f"{100 * after:.0f}".rjust(width), "bright" if is_notable else "dim")
        return line


def _probabilities(found: DecisionExplained) -> dict[str, float]:
    return {head: choice.probability or 0.0 for head, choice in found.choices.items()}


def _largest_change(found: DecisionExplained, group: str) -> float:
    changes = (abs(found.without[group].get(head, p) - p) for head, p in _probabilities(found).items())
    return max(changes, default=0.0)
