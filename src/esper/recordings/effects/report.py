"""Answers of `whatif`: the effects in one episode, of one change, over many episodes, and of growth itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from esper.common.decisions import GERMINATE, WAIT, Decision, describe_decision
from esper.common.formatting import APPROXIMATE, NOT_MEASURED, html_text, pluralise
from esper.common.intervals import SampleMean
from esper.common.plots.svg import SvgPlot
from esper.common.printed_table import PrintedTable
from esper.common.score_scale import ScoreScale
from esper.recordings.effects.change import UNCHANGED, Change, changes_of, describe_change
from esper.recordings.effects.paying import HEADING, PAYS, PayingPlantings
from esper.recordings.effects.plantings import planting_effects, read_round_results
from esper.recordings.effects.references import summarise_references
from esper.recordings.effects.results import Effect, EpisodeResults, Simulation, Trajectory, effect
from esper.recordings.history.history import History
from esper.recordings.history.summary import BlueprintWorth, RoundReference
from esper.recordings.state.series import decision_of

STEPS_PER_GROUP = 10
"""Number of steps in one group of the effects by step."""
WORTH_HEADINGS = ("gain", "rent", "net effect on the return", "n")
"""Headings of `worth_cells`."""


class MeanEffect(SampleMean, frozen=True, kw_only=True, omit_defaults=True):
    """Effects on the net return of several decisions, or of one on several hosts: mean and 95 % t interval."""

    pays: float
    """Fraction of the effects above 0.005."""
    costs: float
    """Fraction of the effects below −0.005."""


class EpisodeOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """End of an episode, and its course."""

    net_return: float
    """Final minus initial validation score, minus rent, costs of ops and penalties."""
    score: float
    """Final validation score."""
    parameter_ratio: float
    """Parameters of host and seeds over those of the bare host, at the end."""
    broke_down: bool = False
    """True if the env broke down."""
    waited: list[int] = []
    """Steps in which the env waited because the decision had become illegal."""
    scores: list[float]
    """Validation score before the first step, then after each step."""


class DecisionEffect(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A decision of an episode, and its effect."""

    step: int
    decision: str
    """The decision in words."""
    seed: list[int] = []
    """Steps of all decisions about the seed that it plants, which are left out with it; empty for other ops."""
    effect: Effect | None = None
    """Recorded episode minus the one without the decision; absent if it was not simulated."""
    repeats: MeanEffect | None = None
    """The same on other hosts and data orders on which the decision was legal; absent without any."""


class _Printable(msgspec.Struct, frozen=True):
    """An answer that prints itself, and shows itself in a notebook."""

    def lines(self) -> Iterator[str]:
        """Yield the lines of the answer as text."""
        raise NotImplementedError

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        return html_text(str(self))


class _OfEpisode(_Printable, frozen=True, kw_only=True):
    """An answer about one episode."""

    run: str
    round: int
    env: int
    score_name: str
    """Name of the task's score."""
    score_scale: ScoreScale
    """Range and better end of the score."""
    reproduction: str
    """How exactly the episode was reproduced, in words."""
    exact: bool
    """True if every recorded value was reproduced; else the effects are approximate."""
    recorded: EpisodeOutcome
    """The episode as it was recorded, and simulated again."""

    @property
    def sign(self) -> str:
        """Sign before the numbers of the simulation."""
        return "" if self.exact else APPROXIMATE

    def _heading(self) -> Iterator[str]:
        yield f"{self.run}, round {self.round}, env {self.env}: {self.reproduction}"
        yield f"as recorded: {self._describe_end(self.recorded)}"

    def _describe_end(self, end: EpisodeOutcome) -> str:
        sign, broken = self.sign, ", broke down" if end.broke_down else ""
        return (
            f"net return {sign}{end.net_return:+.3f}, {self.score_name} {sign}{self.score_scale.text(end.score)}, "
            f"parameters {sign}×{end.parameter_ratio:.2f}{broken}"
        )


def _episode_fields(run: str, results: EpisodeResults, unchanged: Simulation) -> dict[str, Any]:
    """Return the fields of `_OfEpisode`, from the simulation of the unchanged episode."""
    episode = results.episode
    return {
        "run": run,
        "round": episode.round,
        "env": episode.env,
        "score_name": episode.started.score_name,
        "score_scale": episode.started.score_scale,
        "reproduction": str(unchanged.reproduction),
        "exact": unchanged.is_exact,
        "recorded": outcome(unchanged.trajectory),
    }


class EpisodeReport(_OfEpisode, frozen=True, tag_field="answer", tag="episode", kw_only=True):
    """Effects of all decisions of an episode. Output of `whatif RUN --json`."""

    decisions: list[DecisionEffect]
    """Every decision except those to wait."""

    def lines(self) -> Iterator[str]:
        """Yield the lines of the answer as text."""
        yield from self._heading()
        known = [(decision, decision.effect) for decision in self.decisions if decision.effect]
        sign = self.sign
        if known:
            largest, worth = max(known, key=lambda pair: abs(pair[1].net_return))
            yield f"largest effect: {largest.decision}, step {largest.step}, net return {sign}{worth.net_return:+.3f}"
        yield ""
        if not self.decisions:
            yield "the env waited in every step"
            return
        repeated = any(decision.repeats for decision in self.decisions)
        headings = ["step", "decision", "net return", self.score_name, "parameters"]
        headings += ["net return on other hosts", "n", "pays"] if repeated else []
        rows: list[list[str]] = []
        for decision in self.decisions:
            worth = decision.effect
            others = [step for step in decision.seed if step != decision.step]
            about = f" (seed; also {_describe_steps(others)})" if others else ""
            cells = [NOT_MEASURED] * 3
            if worth:
                cells = [
                    f"{sign}{worth.net_return:+.3f}",
                    f"{sign}{self.score_scale.difference(worth.score)}",
                    f"{sign}{worth.parameter_ratio:+.2f}",
                ]
            rows.append(
                [str(decision.step), decision.decision + about, *cells, *_repeat_cells(decision.repeats, repeated)]
            )
        yield from PrintedTable.from_cells(headings, rows, right=(0, 2, 3, 4, 6, 7)).lines()
        yield ""
        yield (
            "Effect of a decision: the episode minus the one without it, in which later decisions that have become "
            "illegal wait. Leaving out a planting leaves out its seed. Parameters: relative to the bare host."
            + (" n: other hosts on which the decision was legal." if repeated else "")
        )


class ChangeReport(_OfEpisode, frozen=True, tag_field="answer", tag="change", kw_only=True, omit_defaults=True):
    """Result of one change of an episode. Output of `whatif RUN --json` with a change."""

    change: str
    """The change in words."""
    changed: EpisodeOutcome
    """The changed episode."""
    difference: Effect
    """Changed minus recorded."""
    illegal: list[int] = []
    """Steps whose new decision was illegal, so that the env waited: the difference is that of waiting there."""
    repeats: MeanEffect | None = None
    """Difference of the net return on other hosts and data orders on which the change was legal; absent without any."""
    illegal_repeats: int = 0
    """Number of other hosts and data orders on which the change was illegal."""

    def plot(self) -> SvgPlot:
        """Return a picture of the scores of both episodes, which a notebook shows."""
        curves = {"as recorded": self.recorded.scores, self.change: self.changed.scores}
        return SvgPlot({name: list(enumerate(scores)) for name, scores in curves.items()}, "step")

    def _repr_html_(self) -> str:
        return super()._repr_html_() + self.plot().svg

    def lines(self) -> Iterator[str]:
        """Yield the lines of the answer as text."""
        yield from self._heading()
        sign, difference = self.sign, self.difference
        yield f"{self.change}: {self._describe_end(self.changed)}"
        yield (
            f"difference: net return {sign}{difference.net_return:+.3f}, {self.score_name} "
            f"{sign}{self.score_scale.difference(difference.score)}, parameters {sign}{difference.parameter_ratio:+.2f}"
        )
        if self.illegal:
            yield (
                f"the new decision was illegal in {_describe_steps(self.illegal)}, so the env waited: "
                "the difference is that of waiting there"
            )
        if became_illegal := [step for step in self.changed.waited if step not in self.illegal]:
            yield f"decisions that had become illegal, so that the env waited: {_describe_steps(became_illegal)}"
        if self.repeats:
            hosts = pluralise(self.repeats.n, "other host")
            yield f"difference of the net return on {hosts}: {self.repeats.signed}"
        if self.illegal_repeats:
            yield f"other hosts on which the change was illegal: {self.illegal_repeats}"


class SampleReport(_Printable, frozen=True, tag_field="answer", tag="sample", kw_only=True, omit_defaults=True):
    """Effects of the decisions of many episodes. Output of `whatif RUN --rounds A-B --json`."""

    run: str
    rounds: str
    """First and last round."""
    episodes: int
    """Number of simulated episodes."""
    exact: int
    """Number of episodes that were reproduced exactly, in every recorded value."""
    plantings: PayingPlantings | None = None
    """Plantings that pay, over the episodes that have ended; absent if none was simulated without each planting."""
    groups: dict[str, dict[str, MeanEffect]]
    """Effects of all plantings by blueprint, slot and steps, and of all decisions by op; keyed by kind and group."""

    def lines(self) -> Iterator[str]:
        """Yield the lines of the answer as text."""
        episodes = pluralise(self.episodes, "episode")
        yield f"{self.run}, rounds {self.rounds}: {episodes}, {self.exact} of them reproduced exactly"
        if self.plantings:
            yield f"{HEADING}: {self.plantings}"
        titles = {
            "blueprint": "plantings by blueprint",
            "slot": "plantings by slot",
            "steps": "plantings by step",
            "op": "all decisions by op",
        }
        sign = "" if self.exact == self.episodes else APPROXIMATE
        for kind, groups in self.groups.items():
            if not groups:
                continue
            yield ""
            headings = [titles[kind], "n", "effect on the net return", "pays", "costs"]
            rows = [
                [name, str(found.n), sign + found.signed, f"{found.pays:.0%}", f"{found.costs:.0%}"]
                for name, found in groups.items()
            ]
            yield from PrintedTable.from_cells(headings, rows, right=(1, 3, 4)).lines()
        yield ""
        yield (
            "Effect: the episode minus the one without the decision, mean and 95 % t interval over the decisions. "
            "Pays: fraction above +0.005; costs: fraction below −0.005. "
            "The intervals of the plantings that pay are over the episodes."
        )


class RoundGrowth(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A round with and without growth."""

    round: int
    """Round, from 1."""
    score: float | None = None
    """Validation score at the end of the recorded episodes, median over the envs; absent if it is not recorded."""
    reference: RoundReference | None = None
    """The same without growth; absent if it was not simulated."""


class GrowthReport(_Printable, frozen=True, tag_field="answer", tag="growth", kw_only=True, omit_defaults=True):
    """Scores with and without growth, and the worth of each blueprint. Output of `whatif RUN --growth --json`."""

    run: str
    score_name: str
    """Name of the task's score."""
    score_scale: ScoreScale
    """Range and better end of the score."""
    rounds: list[RoundGrowth]
    seeds: dict[str, BlueprintWorth]
    """Effects of plantings on the return, keyed by blueprint."""

    def lines(self) -> Iterator[str]:
        """Yield the lines of the answer as text."""
        scale = self.score_scale
        rows: list[list[str]] = []
        for found in self.rounds:
            cells = [
                str(found.round),
                NOT_MEASURED if found.score is None else scale.text(found.score),
                *[NOT_MEASURED] * 3,
            ]
            if found.reference is not None:
                mark = "" if found.reference.exact else APPROXIMATE
                cells[2:] = [f"{mark}{scale.text(found.reference.score)}", NOT_MEASURED, str(found.reference.envs)]
                if found.score is not None:
                    cells[3] = f"{mark}{scale.difference(found.score - found.reference.score)}"
            rows.append(cells)
        yield self.run
        headings = ["round", f"median {self.score_name}", "without growth", "difference", "envs"]
        yield from PrintedTable.from_cells(headings, rows, right=range(5)).lines()
        if self.seeds:
            yield ""
            seeds = sorted(self.seeds.items(), key=lambda item: -item[1].net.mean)
            rows = [[blueprint, *worth_cells(worth)] for blueprint, worth in seeds]
            yield from PrintedTable.from_cells(["blueprint", *WORTH_HEADINGS], rows, right=range(1, 5)).lines()
        yield ""
        yield (
            "Without growth: the same hosts and data, while the env waits in every step. Effect of a seed: its episode "
            "minus the one without it, mean and 95 % t interval over the seeds; net = gain − rent and costs of ops."
        )


Report = EpisodeReport | ChangeReport | SampleReport | GrowthReport


def mean_effect(values: Iterable[float]) -> MeanEffect | None:
    """Return the mean of some effects with its interval; None without any."""
    value_N = list(values)
    if not value_N:
        return None
    return MeanEffect(
        **msgspec.structs.asdict(SampleMean.of(value_N)),
        pays=sum(value > PAYS for value in value_N) / len(value_N),
        costs=sum(value < -PAYS for value in value_N) / len(value_N),
    )


def outcome(trajectory: Trajectory) -> EpisodeOutcome:
    """Return the end of a trajectory, and its scores."""
    return EpisodeOutcome(
        net_return=trajectory.net_return,
        score=trajectory.final_score,
        parameter_ratio=trajectory.parameter_ratio,
        broke_down=trajectory.broke_down,
        waited=trajectory.waited,
        scores=trajectory.scores,
    )


def episode_report(run: str, results: EpisodeResults, repeats: int) -> EpisodeReport | None:
    """Return the effects of all decisions of an episode; None if the episode itself was not simulated yet."""
    episode, unchanged = results.episode, results.get()
    if unchanged is None or unchanged.reproduction is None:
        return None
    seeds = {seed.step: list(seed.decisions) for seed in episode.seeds}
    decisions = [
        DecisionEffect(
            step=step,
            decision=describe_decision(decision_of(episode.steps[step - 1])),
            seed=seeds.get(step, []),
            effect=results.effect_without(change),
            repeats=_repeated(results, change, repeats)[0],
        )
        for step, change in changes_of(episode).items()
    ]
    return EpisodeReport(
        **_episode_fields(run, results, unchanged),
        decisions=decisions,
    )


def change_report(run: str, results: EpisodeResults, change: Change, repeats: int) -> ChangeReport | None:
    """Return the result of a change; None if it was not simulated yet."""
    unchanged, changed = results.get(), results.get(change)
    if unchanged is None or changed is None or unchanged.reproduction is None:
        return None
    of_repeats, illegal_repeats = _repeated(results, change, repeats)
    return ChangeReport(
        **_episode_fields(run, results, unchanged),
        change=describe_change(change, results.episode),
        changed=outcome(changed.trajectory),
        difference=effect(changed.trajectory, unchanged.trajectory),
        illegal=_illegal_steps(change, changed.trajectory),
        repeats=of_repeats and _negated(of_repeats),
        illegal_repeats=illegal_repeats,
    )


def sample_report(
    run: str, rounds: str, results: Sequence[EpisodeResults], plantings: PayingPlantings | None
) -> SampleReport:
    """Return the effects over the episodes that were simulated."""
    known = [found for found in results if found.get() is not None]
    return SampleReport(
        run=run,
        rounds=rounds,
        episodes=len(known),
        exact=sum(found.is_exact for found in known),
        plantings=plantings,
        groups={kind: dict(sorted(groups.items())) for kind, groups in _grouped(known).items()},
    )


def growth_report(run: str, history: History, rounds: Sequence[int], simulations: Sequence[Simulation]) -> GrowthReport:
    """Return the known scores without growth and effects of seeds in some rounds of a recording.

    Raises:
        ConfigError: The recording does not contain a round.
        ReadError: The recording cannot be read.
    """
    end = history.state_at(history.length)
    recorded = {number: scores.median for number, scores in end.score_by_round().items()}
    found = [read_round_results(history, number, simulations) for number in rounds]
    return GrowthReport(
        run=run,
        score_name=end.score_name,
        score_scale=end.score_scale,
        rounds=[
            RoundGrowth(
                round=of_round.round,
                score=recorded.get(of_round.round),
                reference=summarise_references(of_round.references),
            )
            for of_round in found
        ],
        seeds=planting_effects(known for of_round in found for known in of_round.results),
    )


def worth_cells(worth: BlueprintWorth | None) -> list[str]:
    """Return gain, rent and net effect with their intervals, and the number of effects, as text."""
    if worth is None:
        return [NOT_MEASURED] * len(WORTH_HEADINGS)
    mark = "" if worth.exact else APPROXIMATE
    return [*(f"{mark}{mean.signed}" for mean in (worth.gain, worth.rent, worth.net)), str(worth.net.n)]


def _grouped(results: Sequence[EpisodeResults]) -> dict[str, dict[str, MeanEffect]]:
    values: dict[str, dict[str, list[float]]] = {"blueprint": {}, "slot": {}, "steps": {}, "op": {}}
    for found in results:
        for step, worth in found.decision_effects().items():
            decision = decision_of(found.episode.steps[step - 1])
            groups = {"op": decision.op}
            if decision.op == GERMINATE:
                first = (step - 1) // STEPS_PER_GROUP * STEPS_PER_GROUP + 1
                steps = f"{first:3}–{first + STEPS_PER_GROUP - 1}"
                groups |= {"blueprint": str(decision.blueprint), "slot": str(decision.slot), "steps": steps}
            for kind, name in groups.items():
                values[kind].setdefault(name, []).append(worth.net_return)
    return {
        kind: {name: mean for name, of_group in groups.items() if (mean := mean_effect(of_group))}
        for kind, groups in values.items()
    }


def describe_simulation(found: Simulation, results: EpisodeResults) -> str:
    """Return one line about a result, which `results` contains already."""
    if found.reproduction:
        return f"round {found.round}, env {found.env}: {found.reproduction}"
    host = f"other host {found.repeat}" if found.repeat else ""
    unchanged = results.get(UNCHANGED, found.repeat)
    if unchanged is None or found.change == UNCHANGED:
        return f"{host}: net return {found.trajectory.net_return:+.3f}"
    text = ", ".join(filter(None, (host, describe_change(found.change, results.episode))))
    sign = "" if found.repeat or results.is_exact else APPROXIMATE
    difference = effect(found.trajectory, unchanged.trajectory)
    return f"{text}: net return {sign}{difference.net_return:+.3f}"


def _repeated(results: EpisodeResults, change: Change, repeats: int) -> tuple[MeanEffect | None, int]:
    """Return the effect of the decisions that a change leaves out or replaces, over the other hosts.

    Returns:
        The effect over the hosts on which the change is legal, and the number of the other ones: there, either the
        decision that is left out was illegal already, or a new one is, so nothing is measured.
    """
    values: list[float] = []
    illegal = 0
    for repeat in range(1, repeats + 1):
        unchanged, changed = results.get(UNCHANGED, repeat), results.get(change, repeat)
        if unchanged is None or changed is None:
            continue
        first = change.decisions.get(change.first_step)
        is_left_out = first is not None and first.op == WAIT
        if _illegal_steps(change, changed.trajectory) or (
            is_left_out and change.first_step in unchanged.trajectory.waited
        ):
            illegal += 1
        else:
            values.append(effect(unchanged.trajectory, changed.trajectory).net_return)
    return mean_effect(values), illegal


def _illegal_steps(change: Change, changed: Trajectory) -> list[int]:
    """Return the steps whose new decision was illegal."""
    return [step for step in changed.waited if change.decisions.get(step, Decision(WAIT)).op != WAIT]


def _negated(found: MeanEffect) -> MeanEffect:
    low, high = (None if bound is None else -bound for bound in (found.high, found.low))
    return msgspec.structs.replace(found, mean=-found.mean, low=low, high=high, pays=found.costs, costs=found.pays)


def _describe_steps(steps: Sequence[int]) -> str:
    return f"step{'s' if len(steps) > 1 else ''} {', '.join(map(str, steps))}"


def _repeat_cells(found: MeanEffect | None, repeated: bool) -> list[str]:
    if not repeated:
        return []
    return [found.signed, str(found.n), f"{found.pays:.0%}"] if found else [NOT_MEASURED] * 3
