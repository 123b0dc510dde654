"""Plans: parsed with the position of each fault, taken at their steps in every env, and resumed to the bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.common.configuration.config import ConfigError
from esper.common.decisions import Decision, PlannedDecision, write_plan
from esper.common.domain import Op
from esper.recordings import events as ev
from esper.training.policy.plan import check_names, parse_plan, split_plan
from esper.training.policy.plan_agent import PlanAgent
from tests.runs import LiveRun, computed, recorded
from tests.training.policy.scripted import BLUEPRINTS, NOISE, ScriptedEnv

PLAN = "1:conv_light@early,tempo=5,alpha=0.7,style=linear_gate 2:depthwise@mid 4:norm@late 15:cull@late"
OFFERED = {"early": ("conv_light", "norm"), "mid": ("depthwise",), "late": ("norm",)}


def test_plan_is_parsed_in_the_order_of_its_steps() -> None:
    plan = parse_plan("8:depthwise@mid 1:conv_light@early,tempo=5,alpha=0.7", 10)
    assert plan == [
        PlannedDecision(1, Decision("germinate", "early", "conv_light", tempo="5", alpha_target="0.7")),
        PlannedDecision(8, Decision("germinate", "mid", "depthwise")),
    ]
    check_names(plan, OFFERED)


@pytest.mark.parametrize(
    ("plan", "sentence"),
    [
        ("", "--policy plan needs a plan, for example --plan"),
        ("x", "plan: 'x' is not a decision; expected STEP:BLUEPRINT@SLOT, such as 3:depthwise@mid"),
        ("norm@late:3", "plan: 'norm@late:3' is not a decision; expected STEP:BLUEPRINT@SLOT"),
        ("0:norm@late", "plan: '0:norm@late': steps count from 1"),
        ("11:norm@late", "plan: '11:norm@late': the episode has steps 1 to 10"),
        ("2:norm@late 2:norm@mid", "'2:norm@mid': '2:norm@late' is planned for the same step"),
        ("2:cull@late", "'2:cull@late': no seed is planned there before"),
        ("2:norm@late 5:norm@late", "'5:norm@late': the seed before it is never culled"),
        ("2:norm@late 5:advance@late", "'5:advance@late': a plan only plants and culls seeds"),
        ("2:norm@late,tmpo=3", "'tmpo' is not an option of germinate; did you mean tempo?"),
        ("2:norm@late 5:cull@late,tempo=3", "'tempo' is not an option of cull; valid: speed, curve"),
        ("2:norm@lte", "'lte' is not a slot; did you mean late?"),
        ("2:depthwse@mid", "'depthwse' is not a blueprint of the slot mid; did you mean depthwise?"),
    ],
)
def test_wrong_plan_is_refused_with_the_word_and_the_nearest_name(plan: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_names(parse_plan(plan, 10), OFFERED)
    assert sentence in str(caught.value)


@given(st.text("@:,= abc019", max_size=30))
def test_any_text_is_a_plan_or_refused(text: str) -> None:
    try:
        plan = parse_plan(text, 5)
    except ConfigError:
        return
    assert [planned.step for planned in plan] == sorted({planned.step for planned in plan})
    assert parse_plan(write_plan(plan), 5) == plan


def test_reference_may_contain_the_plan() -> None:
    assert split_plan("plan:2:norm@late 5:cull@late") == ("plan", "2:norm@late 5:cull@late")
    assert split_plan("heuristic") == ("heuristic", "")


OPTIONS: dict[str, Any] = {"policy": "plan", "plan": PLAN, "envs": 2, "rounds": 1, "steps": 18}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> LiveRun:
    """A finished run of the plan."""
    live = LiveRun(tmp_path_factory.mktemp("whole"), **OPTIONS)
    assert live.start().finish().status == "done"
    return live


def test_every_env_follows_the_plan(whole: LiveRun) -> None:
    moves = [event for event in whole.events if isinstance(event, ev.SeedMoved)]
    for env in range(2):
        planted = [(m.step, m.slot, m.blueprint) for m in moves if m.env == env and m.after == "germinated"]
        assert planted == [(1, "early", "conv_light"), (2, "mid", "depthwise"), (4, "late", "norm")]
        (culled,) = [m for m in moves if m.env == env and m.after == "culled"]
        assert (culled.step, culled.slot) == (15, "late")
        fossilized = {m.slot for m in moves if m.env == env and m.after == "fossilized"}
        assert fossilized == {"early", "mid"}  # not the one that is culled later
    first = next(event for event in whole.events if isinstance(event, ev.EnvStepped))
    assert {head: choice.choice for head, choice in first.decision.items()} == {
        "slot": "early",
        "blueprint": "conv_light",
        "style": "linear_gate",
        "tempo": "5",
        "alpha_target": "0.7",
    }


def test_cull_of_a_seed_that_a_slot_does_not_offer_is_left_out() -> None:
    env = ScriptedEnv()
    agent = PlanAgent(
        parse_plan("1:norm@early 2:norm@mid 4:cull@early 5:cull@mid 6:norm@late", 25),
        [slot.site for slot in env.slots],
        BLUEPRINTS,
    )
    env.slots[1].site = replace(env.slots[1].site, blueprints=("depthwise",))
    agent.begin_round(NOISE)
    taken: list[tuple[Op, int]] = []
    for step in range(8):
        (choice,) = agent.act(step, [env.view])
        if choice.action.op in {Op.GERMINATE, Op.CULL}:
            taken.append((Op(choice.action.op), choice.action.slot))
        env.apply(choice.action)
        env.end_epoch()
    assert taken == [(Op.GERMINATE, 0), (Op.CULL, 0), (Op.GERMINATE, 2)]


def test_plan_resumes_in_the_middle_of_an_episode(whole: LiveRun, tmp_path: Path) -> None:
    first = LiveRun(tmp_path, **OPTIONS).start_paused(2)
    checkpoint = first.stop()
    second = LiveRun(tmp_path, resume=checkpoint, **OPTIONS)
    assert second.start().finish().status == "done"
    assert computed(recorded(second.run.directory)) == computed(recorded(whole.run.directory))
