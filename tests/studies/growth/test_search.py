"""The search of a growth: its space of plans, its proposals, and the order of its candidates."""

from __future__ import annotations

import json

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from optuna.trial import FixedTrial

from esper.common.decisions import Decision, PlannedDecision
from esper.common.domain import Op
from esper.networks.seeds.blueprints import build_seed
from esper.networks.seeds.layouts import Layout
from esper.recordings.candidates.candidates import BARE_HOST
from esper.studies.growth.plan_variations import known_plans, plan_of, variations, without_each_seed
from esper.studies.growth.search import PlanSearch, SearchKind
from esper.studies.growth.space import PlanSpace
from esper.training.policy.actions import Action
from esper.training.policy.baselines import germinate_action
from esper.training.policy.plan import parse_plan
from tests.studies.growth.plans import BLUEPRINTS, SLOTS, sites, space


def value_of(plan: str) -> float:
    """Return a made-up objective: depthwise in early pays, late steps and other seeds do not."""
    ops = parse_plan(plan, 20) if "@" in plan else []
    return sum(
        (0.5 if decision == Decision("germinate", "early", "depthwise") else -0.1) - 0.01 * (step - 1)
        for step, decision in ops
    )


def run_search(kind: SearchKind, trials: int, limit: int | None = None) -> tuple[PlanSearch, list[str]]:
    search = PlanSearch(space(limit=limit), kind=kind, policies=["heuristic"], seed=1)
    tried: list[str] = []
    while len(tried) < trials and (found := search.next_candidates(min(4, trials - len(tried)))):
        for name, _ in found:
            tried.append(name)
            if name == "heuristic":
                search.tell(name, "done", 0.38, "4:depthwise@early")
            else:
                search.tell(name, "done", value_of(name))
    return search, tried


@pytest.mark.parametrize("kind", ["tpe", "random"])
def test_drawn_plans_are_valid_distinct_and_return_from_their_parameters(kind: SearchKind) -> None:
    drawn = space(limit=1200)
    _, tried = run_search(kind, 25, limit=1200)
    plans = tried[1:]
    assert tried[0] == BARE_HOST
    assert len(set(plans)) == 24
    for plan in plans:
        ops = parse_plan(plan, 20)
        assert len(ops) <= 3
        assert all(op.step <= 10 + len(ops) for op in ops)
        assert drawn.parameter_ratio(plan) <= 1.2
        parameters = drawn.parameters_of(plan)
        if all(op.step <= 10 for op in ops):  # seeds that wait for a free step may be later
            assert parameters is not None
            assert drawn.draw(FixedTrial(parameters)) == plan


def test_parameters_of_a_plan_are_those_of_its_seeds() -> None:
    plan = "1:conv_heavy@early 3:depthwise@late"
    seeds = [
        build_seed(name, Layout.BCHW, channels, False, torch.Generator())
        for name, channels in (("conv_heavy", 4), ("depthwise", 6))
    ]
    expected = sum(parameter.numel() for seed in seeds for parameter in seed.parameters())
    assert space().parameter_ratio(plan) == pytest.approx(1 + expected / 1000)
    later = "1:norm@early 2:cull@early 4:conv_heavy@early 5:depthwise@late"
    assert space().parameter_ratio(later) == pytest.approx(1 + expected / 1000)
    assert space().parameter_ratio(f"{plan} 6:cull@early 8:norm@early 10:cull@late") == pytest.approx(
        1 + expected / 1000
    )


@pytest.mark.parametrize("plan", ["", "1:norm@early 6:cull@early", "16:norm@mid", "2:norm@mid,tempo=5"])
def test_plans_outside_of_the_space_have_no_parameters(plan: str) -> None:
    assert space().parameters_of(plan) is None


@given(
    st.dictionaries(
        st.sampled_from(SLOTS),
        st.builds(
            lambda name, step, options: (step, Decision("germinate", None, name, **options)),
            st.sampled_from(BLUEPRINTS),
            st.integers(1, 10),
            st.sampled_from([{}, {"tempo": "5", "alpha_target": "0.7"}]),
        ),
        min_size=1,
    ),
)
def test_variations_change_one_seed(drawn: dict[str, tuple[int, Decision]]) -> None:
    seeds = {
        slot: PlannedDecision(step, msgspec.structs.replace(seed, slot=slot)) for slot, (step, seed) in drawn.items()
    }
    whole = space()
    plan = whole.plan(seeds.values())
    assert {decision.slot for _, decision in whole.parse(plan)} == set(seeds)
    found = list(variations(plan, whole))
    assert plan not in found
    assert len(found) == len(set(found))
    before = {decision.slot: decision.blueprint for _, decision in whole.parse(plan)}
    for changed in found:
        after = {decision.slot: decision.blueprint for _, decision in whole.parse(changed)}
        assert len(before.items() ^ after.items()) <= 2
        assert len(after) >= len(before)
        for _, decision in whole.parse(changed):
            kept = seeds.get(str(decision.slot))
            assert decision.options == (kept.decision.options if kept else {})
    without = without_each_seed(plan, whole)
    assert len(without) == (len(seeds) if len(seeds) > 1 else 0)
    for seed, changed in without.items():
        assert {f"{decision.blueprint} in {decision.slot}" for _, decision in whole.parse(changed)} == {
            f"{name} in {slot}" for slot, name in before.items()
        } - {seed}


def test_variations_leave_out_culled_seeds() -> None:
    seeds = "2:depthwise@mid,style=add 8:norm@late"
    culled = f"1:norm@early 4:cull@early {seeds}"
    assert list(variations(culled, space())) == list(variations(seeds, space()))
    assert set(without_each_seed(culled, space())) == {"norm in early", "depthwise in mid", "norm in late"}


def test_guided_search_alternates_its_proposals_with_variations_of_the_best_plan() -> None:
    search, tried = run_search("guided", 24)
    known = known_plans(space())
    assert len(known) == 9
    assert tried[:8] == [BARE_HOST, "heuristic", *known[:6]]
    assert set(known) < set(tried)
    assert max(tried, key=value_of) == "1:depthwise@early"
    assert search.finalists(1) == [BARE_HOST, "1:depthwise@early"]
    best = max(tried[2:8], key=value_of)
    assert set(tried[8:10]) == set(without_each_seed(best, space()).values())


def test_variations_of_a_policys_plan_alternate_with_the_proposals_that_are_left() -> None:
    plan = "4:depthwise@mid"
    search = PlanSearch(space(), policies=["heuristic", "random"], seed=1)
    for name, _ in search.next_candidates(8):
        search.tell(name, "done", 0.9 if name == "heuristic" else 0.1, plan if name == "heuristic" else "")
    names, origins = zip(*search.next_candidates(8), strict=True)
    assert origins == ("variation", "known") * 3 + ("variation", "policy")
    assert names[1::2] == (*known_plans(space())[6:], "random")
    assert names[::2] == (plan, *list(variations(plan, space()))[:3])
    assert search.effects(plan) == {}  # it is still in progress


def test_search_leaves_out_plans_of_the_user_that_are_empty_or_too_large() -> None:
    search = PlanSearch(space(limit=1100), plans=["", "1:conv_heavy@early", "1:norm@late"], seed=1)
    assert [name for name, _ in search.next_candidates(2)] == [BARE_HOST, "1:norm@late"]
    assert all(name != "1:conv_heavy@early" for name, _ in search.next_candidates(20))


def test_draws_depend_on_the_values_of_earlier_ones() -> None:
    drawn: list[list[str]] = []
    for sign in (1, -1):
        search = PlanSearch(space(), kind="tpe", seed=1)
        for _ in range(20):
            for name, _ in search.next_candidates(1):
                search.tell(name, "done", sign * value_of(name))
        drawn.append([name for name, _ in search.next_candidates(5)])
    assert drawn[0] != drawn[1]


def test_best_plan_is_tried_without_each_seed_to_the_end() -> None:
    search = PlanSearch(space(), plans=["1:norm@early 2:depthwise@mid 3:norm@late,tempo=8"], seed=1)
    (host, _), (best, _) = search.next_candidates(2)
    search.tell(host, "done", 0.1)
    search.tell(best, "done", 0.9)
    search.next_candidates(6)  # known plans
    tried = [name for name, _ in search.next_candidates(3)]
    assert tried == [
        "2:depthwise@mid 3:norm@late,tempo=8",
        "1:norm@early 3:norm@late,tempo=8",
        "1:norm@early 2:depthwise@mid",
    ]
    for rank, name in enumerate(tried):
        assert not search.report(name, 13, -9.0)
        search.tell(name, "done", 0.5 + rank / 4)
    assert search.effects(best) == pytest.approx({"norm in early": 0.4, "depthwise in mid": 0.15, "norm in late": -0.1})
    assert search.finalists(1) == [BARE_HOST, "1:norm@early 2:depthwise@mid"]  # the seed that does not pay is gone


def test_repeated_calls_restore_a_search() -> None:
    search, tried = run_search("guided", 20)
    name = search.next_candidates(1)[0].name
    search.report(name, 13, 0.3)
    restored = PlanSearch(space(), policies=["heuristic"], seed=1)
    restored.load_state_dict(json.loads(json.dumps(search.state_dict())))
    assert restored.finalists(3) == search.finalists(3)
    assert restored.next_candidates(6) == search.next_candidates(6)
    other = PlanSearch(space(), policies=["heuristic"], seed=2)
    with pytest.raises(ValueError, match="stored by another version"):
        other.load_state_dict(search.state_dict())
    assert len(tried) == 20


def test_restored_search_prunes_as_before() -> None:
    search = PlanSearch(space(), seed=1)
    *others, last = [name for name, _ in search.next_candidates(8)]
    for name in others:
        search.report(name, 13, 0.5)
    restored = PlanSearch(space(), seed=1)
    restored.load_state_dict(json.loads(json.dumps(search.state_dict())))
    assert search.report(last, 13, 0.1)
    assert restored.report(last, 13, 0.1)


def test_worse_half_is_pruned_and_neither_pruned_nor_failed_ones_are_finalists() -> None:
    run = "/runs/a@b/checkpoints/c"
    search = PlanSearch(space(limit=1500), policies=["heuristic", run], seed=1)
    names = [name for name, _ in search.next_candidates(12)]
    plans = [name for name in names if name not in (BARE_HOST, "heuristic", run)]
    assert run in names
    assert (search.allows(1.5), search.allows(1.6)) == (True, False)
    pruned = {name for rank, name in enumerate(plans) if search.report(name, 13, -rank / 10)}
    assert plans[0] not in pruned
    assert plans[-1] in pruned
    assert not search.report(BARE_HOST, 10, -9.0)
    for name in names:
        if name in pruned:
            search.tell(name, "pruned", None)
        elif name == plans[1]:
            search.tell(name, "failed", None)
        else:
            search.tell(name, "done", 0.1, "5:norm@late")
    finalists = search.finalists(9)
    assert not {plans[1], *pruned} & set(finalists)
    assert {"heuristic", run, plans[0]} <= set(finalists)
    search.tell("heuristic", "done", 0.1, "")  # it planted nothing
    assert "heuristic" not in search.finalists(9)
    assert search.effects(run) == {}  # the policy would decide otherwise without a seed
    assert search.next_candidates(1)


def test_search_ends_when_its_space_is_exhausted() -> None:
    small = PlanSpace(sites(["only"], ["norm"]), 4, host_parameters=10)
    search = PlanSearch(small, kind="random", seed=0)
    found = {name for name, _ in search.next_candidates(9)}
    assert found == {BARE_HOST, "1:norm@only", "2:norm@only"}
    assert search.next_candidates(1) == []


def test_plan_of_an_episode_has_the_seeds_that_were_not_culled() -> None:
    wait, options = Action(Op.WAIT), germinate_action(1, 2)._replace(tempo=2)
    actions = [germinate_action(0, 1), wait, Action(Op.CULL, 0), options, wait, germinate_action(0, 0)]
    plan = plan_of(actions, SLOTS, BLUEPRINTS)
    assert plan == "4:conv_light@mid,tempo=8 6:norm@early"
