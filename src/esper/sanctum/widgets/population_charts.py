"""Charts of the whole population: stages by step, planted blueprints by round, and score against parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

from esper.common.domain import Stage
from esper.common.formatting import strip_control
from esper.common.plots.axis import round_axis_length
from esper.common.plots.chart import Chart, Curve, XAxis, percent
from esper.common.plots.scatter import ScatterPoint, pareto_front
from esper.common.plots.stacked_chart import StackedChart
from esper.recordings.history.curves import split_name
from esper.sanctum.symbols import STAGES
from esper.sanctum.view import ViewState
from esper.sanctum.widgets.chart_panel import ChartPanel
from esper.sanctum.widgets.env_panel import step_axis
from esper.sanctum.widgets.scatter_chart import ScatterChart

_STAGES = ("fossilized", "probationary", "blending", "training", "germinated", "embargoed", "culled", "dormant")
"""Stages from the bottom of the chart to its top."""
_LETTERS = [stage[0] for stage in _STAGES]
_NUM_COLOURS = 8
_LONG_LABEL_MIN_COLS = 44
"""Minimum width of a panel for the names of areas beside their letters."""


class StageChart(ChartPanel):
    """Fraction of the slots of all envs in each stage, by step of this round."""

    METRICS = ("stage fractions",)

    def __init__(self, view: ViewState, *, id: str | None = None) -> None:
        super().__init__(view, id=id)
        self._finished: tuple[Hashable, dict[int, list[float]]] = (None, {})
        """Fractions after each step that all envs have finished, with a key of the round that they belong to."""

    def name_in_title(self) -> str:
        """Return the title, which names the round."""
        return f"stages % ─ step of round {self.state.round}"

    def empty_message(self) -> str:
        """Return why there is no chart."""
        return "no step yet in this round"

    def summary(self, chart: Chart) -> str:  # noqa: ARG002 (the values are beside the areas)
        """Return nothing: the latest values are beside the areas."""
        return ""

    def chart(self) -> Chart | None:
        """Return the chart; None before the first step of the round."""
        started, fractions = self.state.started, self._fractions()
        if started is None or not fractions:
            return None
        steps = sorted(fractions)
        length, first = step_axis(started.steps, steps[-1])
        return StackedChart(
            quantity=percent("stages"),
            x_axis=XAxis("step", first, first + length - 1),
            curves=[
                Curve(stage, steps, [fractions[step][index] for step in steps], stage, label=self._label(stage))
                for index, stage in enumerate(_STAGES)
            ],
            areas=_STAGES,
            letters=[STAGES[stage].glyph for stage in _STAGES],
            has_labels=True,
        )

    def _label(self, stage: str) -> str:
        """Return the letter of a stage, and its name if there is room."""
        glyph = STAGES[stage].glyph
        return f"{glyph} {stage}" if self.size.width >= _LONG_LABEL_MIN_COLS else glyph

    def _fractions(self) -> dict[int, list[float]]:
        """Return the fraction of slots in each of `_STAGES` after each kept step, keyed by step."""
        envs = self.state.envs
        key = self.state.round, self.view.state_version, id(self.state)
        finished = self._finished[1] if self._finished[0] == key else {}
        self._finished = key, finished
        ends = [env.stepped.step if env.stepped else 0 for env in envs]
        first = max((env.trace[0].step for env in envs if env.trace), default=1)
        fractions = {step: values for step, values in finished.items() if step >= first}
        for step in range(max(fractions, default=first - 1) + 1, max(ends, default=0) + 1):
            stages = "".join(
                [env.trace[step - end - 1].stages for env, end in zip(envs, ends, strict=True) if step <= end]
            )
            if stages:
                fractions[step] = [stages.count(letter) / len(stages) for letter in _LETTERS]
                if step <= min(ends):
                    finished[step] = fractions[step]
        return fractions


class BlueprintChart(ChartPanel):
    """Fraction of each blueprint in the seeds that were planted in a slot, by round of the whole run."""

    METRICS = ("planted blueprints",)

    def __init__(self, view: ViewState, slot: str) -> None:
        super().__init__(view)
        self.slot = slot

    def cache_key(self) -> Hashable:
        """Return a key that changes with the plantings that were read, and with the round."""
        curves = self.view.curves
        return curves.key(*self._names()), curves.fraction_read, self.paced(self.state.step), self.chart_key

    def name_in_title(self) -> str:
        """Return the title, which names the slot."""
        return f"planted in {strip_control(self.slot)}, % ─ by round{self.growth_note}"

    def empty_message(self) -> str:
        """Return why there is no chart."""
        return "reading the recording" if self.view.curves.fraction_read < 1 else "no seed planted yet"

    def summary(self, chart: Chart) -> str:  # noqa: ARG002 (the values are beside the areas)
        """Return the progress of reading; nothing if all was read."""
        fraction = self.view.curves.fraction_read
        return f"{fraction:.0%} read" if fraction < 1 else ""

    def enlarged(self) -> ChartPanel:
        """Return another panel with the chart of the same slot."""
        return BlueprintChart(self.view, self.slot)

    def _names(self) -> list[str]:
        """Return the curves of the blueprints that were planted in the slot, in the order of their names."""
        return sorted(
            name
            for name in self.view.curves.names
            if split_name(name)[0] == "planted" and name.endswith(f" in {self.slot}")
        )

    def chart(self) -> Chart | None:
        """Return the chart; None without a round in which a seed was planted."""
        started, plantings = self.state.started, self._plantings()
        rounds = [number for number in sorted(plantings) if any(plantings[number].values())]
        if started is None or not rounds:
            return None
        blueprints = sorted({blueprint for planted in plantings.values() for blueprint in planted})
        totals = [sum(plantings[number].values()) for number in rounds]
        colours = [self._colour(blueprint) for blueprint in blueprints]
        letters = blueprint_letters(sorted({*self.state.blueprints, *blueprints}))
        is_wide = self.size.width >= _LONG_LABEL_MIN_COLS
        counts = {blueprint: [plantings[number].get(blueprint, 0.0) for number in rounds] for blueprint in blueprints}
        return StackedChart(
            quantity=percent("planted"),
            x_axis=XAxis("round", 1, round_axis_length(rounds[-1], started.rounds)),
            curves=[
                Curve(
                    strip_control(blueprint),
                    rounds,
                    [count / total for count, total in zip(counts[blueprint], totals, strict=True)],
                    f"series{colour}",
                    label=letters[blueprint] + (f" {strip_control(blueprint)}" if is_wide else ""),
                )
                for blueprint, colour in zip(blueprints, colours, strict=True)
            ],
            areas=[f"area{colour}" for colour in colours],
            letters=[letters[blueprint] for blueprint in blueprints],
            has_changes=True,
            has_labels=True,
        )

    def _plantings(self) -> dict[int, dict[str, float]]:
        """Return the plantings in each round, per episode, by blueprint; those of the current round so far."""
        started, curves = self.state.started, self.view.curves
        steps_per_round = started.steps if started else 1
        plantings: dict[int, dict[str, float]] = {}
        for name in self._names():
            blueprint = split_name(name)[1].removesuffix(f" in {self.slot}")
            steps, values = curves.curve(name)
            for step, value in zip(steps.tolist(), values.tolist(), strict=True):
                plantings.setdefault(-(-step // steps_per_round), {})[blueprint] = value
        moves = (move for env in self.state.envs for move in env.moves)
        planted = Counter(
            move.blueprint
            for move in moves
            if move.slot == self.slot and move.after == Stage.GERMINATED.label and move.blueprint is not None
        )
        plantings[self.state.round] = {name: count / len(self.state.envs) for name, count in planted.items()}
        return plantings

    def _colour(self, blueprint: str) -> int:
        """Return the index of a blueprint's colour, which is the same in all slots."""
        known = sorted(self.state.blueprints)
        return known.index(blueprint) % _NUM_COLOURS if blueprint in known else 0


class EnvScatterChart(ScatterChart):
    """Score and parameters of every env, and the front: the best score for at most so many parameters."""

    METRICS = ("front",)

    def empty_message(self) -> str:
        """Return why there is no chart."""
        return "no step yet"

    @property
    def score_name(self) -> str:
        """Name of the task's score."""
        return strip_control(self.state.score_name)

    def points(self) -> list[ScatterPoint]:
        """Return the envs after their last step: those on the front above the others, then the selected one."""
        stepped = [(env.env, env.latest) for env in self.state.envs]
        places = {env: (step.parameter_ratio, step.score) for env, step in stepped if step is not None}
        gain = self.score_scale.gain
        on_front = set(pareto_front(places.values(), lambda place: (place[0], gain(place[1]))))
        selected = self.view.selected_env
        points = [
            ScatterPoint(*place, "selected" if env == selected else "point", place in on_front, title=f"env {env:02d}")
            for env, place in places.items()
        ]
        return sorted(points, key=lambda point: (point.kind == "selected", point.is_on_front))


def blueprint_letters(names: Sequence[str]) -> dict[str, str]:
    """Return a letter for each blueprint: one of its own letters that no earlier name has, if there is one."""
    letters: dict[str, str] = {}
    for name in names:
        own = [letter for letter in strip_control(name).upper() if letter.isalnum()] or ["·"]
        letters[name] = next((letter for letter in own if letter not in letters.values()), own[0])
    return letters
