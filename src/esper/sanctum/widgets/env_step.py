"""The last step of one env: what was decided, what came of it, and what the reward is made of."""

from __future__ import annotations

from textual.geometry import Size

from esper.formatting import plain
from esper.sanctum.symbols import Cell, number, power_of_two
from esper.sanctum.widgets.env_panel import EnvPanel
from esper.sanctum.widgets.panel import Line
from esper.telemetry.events import EnvStepped
from esper.telemetry.state import EnvState

_NAME = 12


class EnvStep(EnvPanel):
    """Op, losses, norms, scale."""

    METRICS = ("accuracy", "gradient norm", "loss scale")

    HEADING = "last step"

    def draw_env(self, env: EnvState, size: Size) -> list[Line]:
        """A line per number, in two columns where one is too high."""
        step = env.stepped
        if step is None:
            return [self.line().add(" none yet in this round", "dim")]
        target = f" {plain(step.target)}" if step.target else ""
        lines = [self.line().add(" op ", "dim").add(f"{plain(step.op)}{target}", "bright")]
        facts = _facts(step)
        columns = 2 if len(facts) >= size.height and size.width >= 2 * (_NAME + 8) else 1
        rows = -(-len(facts) // columns)
        for row in range(rows):
            line = self.line()
            for name, cell in facts[row::rows]:
                line.add(" ").fit(name, _NAME, "dim").cell(cell)
            lines.append(line)
        return lines


def _facts(step: EnvStepped) -> list[tuple[str, Cell]]:
    """Names and values, the most wanted first."""
    facts = [
        ("loss", number(step.loss, 3, 3)),
        ("train loss", number(step.train_loss, 3, 3)),
        ("train acc", number(step.train_accuracy, 3, 3)),
        ("host |g|", number(step.grad_norm, 3, 3)),
        ("p(op)", number(step.op_probability, 3, 3)),
        ("value", number(step.value, 3, 3)),
        ("params ×", number(step.parameter_ratio, 3, 3)),
        ("loss scale", power_of_two(step.loss_scale)),
    ]
    return facts + [(f"skip {plain(owner)}", Cell(f"{count:>3}", "warning")) for owner, count in step.skipped.items()]


class EnvReward(EnvPanel):
    """The parts of the last reward, the smallest left out where there is no room, and their sum."""

    METRICS = ("reward",)

    HEADING = "its reward"

    def draw_env(self, env: EnvState, size: Size) -> list[Line]:
        """A line per part; the sum last."""
        step = env.stepped
        if step is None:
            return [self.line().add(" –", "absent")]
        name = max(size.width - 9, 4)
        greatest = sorted(step.reward_parts, key=lambda part: -abs(step.reward_parts[part]))[: size.height - 1]
        lines = [
            self.line().add(" ").fit(plain(part).replace("_", " "), name, "dim").cell(number(value, 3, 3, signed=True))
            for part, value in step.reward_parts.items()
            if part in greatest
        ]
        total = self.line().add(" ").fit("sum", name, "normal").cell(number(step.reward, 3, 3, signed=True), "bright")
        return [*lines, total]
