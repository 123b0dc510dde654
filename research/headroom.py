"""How much could a policy gain on a task family by knowing the context?

    python -m research.headroom --task digits_family --seed 3000 --blueprints conv_light conv_heavy depthwise norm
    python -m research.headroom --task FILE.py --seed 1 2

Every plan plays each context in two orders: the same data, other initial weights and another order of the data. The
tables show the gain in net return over the best plan for all contexts: of the best plan for each context, and of
predictors that choose a plan from observations. A family needs two random seeds: one to choose the family by, and a
fresh one to confirm the figure.

Takes about half an hour for each random seed with 20 plans (64 contexts of `digits_family`, two cores), and some
minutes more for the predictors. After an interruption, the same command continues.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from research.context_gain import FOLDS, Array, best_plan, headroom, predicted_gain
from research.policies import TELEMETRY_DIR, plan_agent
from research.rent_meter import RentMeter
from research.training_hosts import TrainingHosts

from esper.checkpoint.manifest import digest
from esper.config import Config
from esper.evaluation.held_out import evaluation_key
from esper.evaluation.journal import EvaluationJournal, open_search_journal
from esper.lanes.devices import resolve_devices
from esper.policy.actions import Decision
from esper.policy.agent import Agent, EnvStatus
from esper.policy.plan import parse_plan
from esper.seeding import make_generator
from esper.tasks.prepare import PreparedTask, prepare_task

IDLE = ""
"""The plan that never grows a seed."""
IDLE_STEPS, PROBE_STEPS = 10, 5
"""Number of steps that a predictor observes: of the idle host, and of the host with a first seed."""
PROBE = "depthwise"
"""Blueprint of that first seed."""
RENTS = (0.001, 0.002, 0.004)
DRAWN_RENT = (0.001, 0.008)
"""Range of the rents that differ between contexts, drawn log-uniformly."""
JOURNALS = TELEMETRY_DIR / "evaluations"


class Played(msgspec.Struct, frozen=True):
    """One episode of one plan."""

    gain: float
    """Final validation score minus the initial one, minus the costs of ops and penalties."""
    grown: float
    """Sum over the steps of the rent at weight 1."""
    visible: list[float]
    """Properties of host and data that can be seen before the first step."""
    curves: list[list[float]]
    """Measurements after each of the first `IDLE_STEPS` steps."""


class Results(NamedTuple):
    """Episodes as arrays: O orders, C contexts, P plans, F features."""

    gain_OCP: Array
    grown_OCP: Array
    visible_OCF: Array
    idle_OCF: Array
    probe_OCF: Array


class Observer(RentMeter):
    """Lets another agent decide for a single env, and keeps the agent's observations."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        self._curves: list[list[float]] = []

    def act(self, step: int, views: Sequence[EnvStatus]) -> list[Decision]:
        """Keep what the last step measured, and return the agent's decision."""
        if 0 < step <= IDLE_STEPS:
            self._curves.append(_measured(views[0]))
        return super().act(step, views)

    def played(self, net_return: float) -> Played:
        """Return the episode, given its net return."""
        (view,), (grown,) = self.views.values(), self.sums()
        sites = [slot.site for slot in view.slots]
        visible = [view.host_parameters, view.kernel_size, view.train_samples, len(sites)]
        for site in (sites[0], sites[len(sites) // 2], sites[-1]):
            visible += [site.channels, site.positions]
        return Played(
            gain=net_return + view.rent_weight * grown,
            grown=grown,
            visible=[math.log(value) for value in visible],
            curves=self._curves,
        )


def main() -> None:
    """Play the plans, and print the tables."""
    parser = _parser()
    options = parser.parse_args()
    if options.contexts < FOLDS:
        parser.error(f"--contexts must be {FOLDS} or more")
    if min(options.seed) < 1:
        parser.error("--seed must be 1 or more: 0 stands for other contexts in each order")
    prepared = prepare_task(Config(task=options.task, steps=options.steps))
    plans = _plans(prepared, options.blueprints, options.plan)
    parts: list[Results] = []
    for seed in options.seed:
        parts.append(_play(prepared, plans, seed, options))
        _print_tables(f"{options.contexts} contexts of random seed {seed}", parts[-1], plans, options)
    if len(parts) > 1:
        joined = (np.concatenate(arrays, axis=1) for arrays in zip(*parts, strict=True))
        _print_tables("all contexts", Results(*joined), plans, options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="digits_family")
    parser.add_argument("--contexts", type=int, default=64, help="contexts per random seed")
    parser.add_argument("--seed", type=int, nargs="+", default=[1], help="random seeds of the contexts")
    parser.add_argument("--steps", type=int, default=40, help="steps of an episode")
    parser.add_argument("--blueprints", nargs="+", help="blueprints of the plans (default: all that fit)")
    parser.add_argument("--plan", nargs="+", default=[], help="further plans")
    parser.add_argument("--devices", nargs="+", default=["auto"])
    return parser


def _plans(prepared: PreparedTask, wanted: Sequence[str] | None, more: Sequence[str]) -> list[str]:
    """Return the plans: each blueprint in the first slot, the first two and all; and the same after a first probe."""
    sites = prepared.profile.sites
    probe = f"{PROBE}@{sites[0].name}:0"
    plans = {IDLE: None}
    for blueprint in wanted or prepared.profile.blueprints:
        offering = [site.name for site in sites if blueprint in site.blueprints]
        for count in (1, 2, len(offering)):
            plans[" ".join(f"{blueprint}@{slot}:{step}" for step, slot in enumerate(offering[:count]))] = None
        later = [slot for slot in offering if slot != sites[0].name]
        seeds = [f"{blueprint}@{slot}:{PROBE_STEPS + step}" for step, slot in enumerate(later, start=1)]
        plans[" ".join([probe, *seeds])] = None
    plans[f"{probe} cull@{sites[0].name}:{PROBE_STEPS + 1}"] = None
    return list(plans | dict.fromkeys(more))


def _after_probe(plans: Sequence[str], steps: int) -> list[int]:
    """Return the indices of the plans that begin with the probe alone."""
    found: list[int] = []
    for index, plan in enumerate(plans):
        early = [op for op in (parse_plan(plan, steps) if plan else []) if op.step <= PROBE_STEPS]
        if [op.name for op in early] == [PROBE] and early[0].step == 0 and not early[0].options:
            found.append(index)
    return found


def _play(prepared: PreparedTask, plans: Sequence[str], seed: int, options: argparse.Namespace) -> Results:
    """Play all plans in both orders of each context, or read them from the journal."""
    # One episode of each plan in a part: a later command can play more contexts.
    key = evaluation_key(prepared, resolve_devices(options.devices), episodes=1)
    journal = open_search_journal(JOURNALS, "headroom", key)
    by_order = [_play_order(prepared, plans, seed, order, journal, options) for order in range(2)]

    def table(of: str) -> Array:
        return np.array([[[getattr(played, of) for played in row] for row in rows] for rows in by_order])

    probe = _after_probe(plans, options.steps)[0]
    return Results(
        gain_OCP=table("gain"),
        grown_OCP=table("grown"),
        visible_OCF=np.array([[row[0].visible for row in rows] for rows in by_order]),
        idle_OCF=np.array([[_flat(row[0].curves) for row in rows] for rows in by_order]),
        probe_OCF=np.array([[_flat(row[probe].curves[:PROBE_STEPS]) for row in rows] for rows in by_order]),
    )


def _play_order(
    prepared: PreparedTask,
    plans: Sequence[str],
    seed: int,
    order: int,
    journal: EvaluationJournal,
    options: argparse.Namespace,
) -> list[list[Played]]:
    run_seed = make_generator(seed, "headroom", order).initial_seed()
    config = msgspec.structs.replace(prepared.config, seed=run_seed, context_seed=seed)
    files = ("headroom.py", "policies.py", "rent_meter.py")  # they compute what the journal keeps
    code = [digest(Path(__file__).with_name(file).read_bytes()) for file in files]
    name = digest("\n".join([*code, str(options.steps), *plans]).encode())[:12]

    with closing(TrainingHosts(prepared, config, resolve_devices(options.devices), lambda _: None)) as hosts:

        def play(context: int) -> list[Played]:
            observers = [Observer(plan_agent(plan, prepared.profile, config.steps)) for plan in plans]
            returns = hosts.play(observers, context)
            print(f"seed {seed}, order {order}, context {context}: best {max(returns):+.3f}", file=sys.stderr)
            return [observer.played(found) for observer, found in zip(observers, returns, strict=True)]

        def recall(context: int) -> list[Played]:
            part = f"plans {name} seed {seed} order {order} context {context}"
            return journal.recall(part, list[Played], lambda: play(context))

        return [recall(context) for context in range(options.contexts)]


def _measured(view: EnvStatus) -> list[float]:
    """Return what a policy observes of the last step: losses, scores, gradient norms and the first contribution."""
    slot = view.slots[0]
    values = (
        view.losses[-1],
        view.scores[-1],
        view.train_loss,
        view.train_score,
        view.grad_norm,
        slot.grad_norm,
        slot.contribution,
        slot.alpha,
    )
    return [0.0 if value is None or not math.isfinite(value) else float(value) for value in values]


def _flat(curves: Sequence[Sequence[float]]) -> list[float]:
    return [value for values in curves for value in values]


def _print_tables(title: str, results: Results, plans: Sequence[str], options: argparse.Namespace) -> None:
    """Print the headroom and the gains of the predictors as Markdown."""
    contexts = results.gain_OCP.shape[1]
    low, high = np.log(DRAWN_RENT)
    drawn_C = np.exp(np.random.default_rng(0).uniform(low, high, contexts))
    rents = {f"{rent:g}": np.full(contexts, rent) for rent in RENTS}
    rents[f"drawn, {DRAWN_RENT[0]:g} to {DRAWN_RENT[1]:g}"] = drawn_C
    print(f"\n{title}, {len(plans)} plans, gain over the best plan for all\n")
    print("| rent | best plan for all | its net return | best plan for each context |")
    print("|---|---|---|---|")
    returns = {name: results.gain_OCP - results.grown_OCP * rent_C[:, None] for name, rent_C in rents.items()}
    for name, return_OCP in returns.items():
        best = best_plan(return_OCP.mean(axis=0))
        mean = return_OCP[..., best].mean()
        print(f"| {name} | {plans[best] or 'static'} | {mean:+.3f} | {headroom(return_OCP).signed} |")
    after = _after_probe(plans, options.steps)
    print("\n| rent | predictor observes | chooses from | linear | rbf |")
    print("|---|---|---|---|---|")
    for name, rent_C in rents.items():
        rent_OCF = np.broadcast_to(np.log(rent_C)[:, None], (2, contexts, 1))
        visible = np.concatenate([results.visible_OCF, rent_OCF], axis=2)
        idle = np.concatenate([visible, results.idle_OCF], axis=2)
        probe = np.concatenate([visible, results.probe_OCF], axis=2)
        for observes, features, chosen in (
            ("what is visible at step 0", visible, None),
            (f"also {IDLE_STEPS} steps of the idle host", idle, None),
            (f"also {PROBE_STEPS} steps with a {PROBE} seed", probe, None),
            (f"also {PROBE_STEPS} steps with a {PROBE} seed", probe, after),
        ):
            gains = [predicted_gain(features, returns[name], kernel, chosen).signed for kernel in ("linear", "rbf")]
            count = f"{len(chosen)} plans that begin so" if chosen else "all plans"
            print(f"| {name} | {observes} | {count} | {gains[0]} | {gains[1]} |")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
