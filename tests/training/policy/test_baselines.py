"""Baselines and heuristic: the seeds that they plant, advance, fossilize and cull."""

from dataclasses import replace

import pytest

from esper.common.domain import Op, Stage
from esper.training.policy.actions import Action
from esper.training.policy.agent import Agent
from esper.training.policy.baselines import DEFAULT_BLUEPRINT, PLANT_INTERVAL_STEPS, PeriodicAgent, StaticAgent
from esper.training.policy.heuristic import HeuristicAgent, HeuristicRules
from tests.training.policy.scripted import BLUEPRINTS, NOISE, ScriptedEnv

RULES = HeuristicRules(
    rotation=("conv_light", "conv_heavy"),
    plateau_drop=0.1,
    min_remaining=0.4,
    min_dependence=0.005,
    trial_steps=2,
)


def run(agent: Agent, env: ScriptedEnv, steps: int = 25, **epoch: object) -> list[Action]:
    """Run an agent for some steps and return its actions."""
    actions = []
    for _ in range(steps):
        (choice,) = agent.act(env.view.step, [env.view])
        env.apply(choice.action)
        env.end_epoch(**epoch)  # pyright: ignore[reportArgumentType]
        actions.append(choice.action)
    return actions


def steps_of(actions: list[Action], op: Op) -> list[tuple[int, int]]:
    """Return the step and slot of each use of an op."""
    return [(step, action.slot) for step, action in enumerate(actions) if action.op == op]


def heuristic() -> HeuristicAgent:
    agent = HeuristicAgent(BLUEPRINTS, RULES)
    agent.begin_round(NOISE)
    return agent


# Periodic


def test_static_never_grows() -> None:
    env = ScriptedEnv()
    assert {action.op for action in run(StaticAgent(), env)} == {Op.WAIT}


def test_full_plants_every_slot_and_finishes_all() -> None:
    env = ScriptedEnv()
    actions = run(PeriodicAgent(BLUEPRINTS, period=1), env)
    assert steps_of(actions, Op.GERMINATE) == [(0, 0), (1, 1), (2, 2)]
    assert steps_of(actions, Op.ADVANCE) == [(3, 0), (4, 1), (5, 2)]
    assert steps_of(actions, Op.FOSSILIZE) == [(6, 0), (7, 1), (8, 2)]
    assert env.stages() == [Stage.FOSSILIZED] * 3


def test_periodic_plants_only_at_its_interval() -> None:
    env = ScriptedEnv()
    actions = run(PeriodicAgent(BLUEPRINTS, PLANT_INTERVAL_STEPS), env)
    assert steps_of(actions, Op.GERMINATE) == [(0, 0), (PLANT_INTERVAL_STEPS, 1), (2 * PLANT_INTERVAL_STEPS, 2)]
    assert env.stages() == [Stage.FOSSILIZED] * 3


def test_baselines_prefer_the_strong_blueprint() -> None:
    for on_offer, planted in ((BLUEPRINTS, DEFAULT_BLUEPRINT), (("norm", "conv_small"), "norm")):
        (choice,) = PeriodicAgent(on_offer, period=1).act(0, [ScriptedEnv().view])
        assert on_offer[choice.action.blueprint] == planted


# Heuristic


def test_heuristic_waits_while_the_loss_falls() -> None:
    env = ScriptedEnv()
    assert {action.op for action in run(heuristic(), env, fall=0.2)} == {Op.WAIT}


def test_heuristic_fills_slots_and_keeps_contributing_seeds() -> None:
    env = ScriptedEnv()
    actions = run(heuristic(), env)
    planted = steps_of(actions, Op.GERMINATE)
    assert [slot for _, slot in planted] == [0, 1, 2]
    assert planted[0][0] == 2  # the first step with enough losses for a plateau
    assert env.stages() == [Stage.FOSSILIZED] * 3
    blueprints = [BLUEPRINTS[action.blueprint] for action in actions if action.op == Op.GERMINATE]
    assert blueprints == [RULES.rotation[turn % len(RULES.rotation)] for turn in range(3)]


def test_heuristic_plants_one_isolated_seed_at_a_time() -> None:
    env, agent = ScriptedEnv(), heuristic()
    for _ in range(25):
        isolated = {Stage.GERMINATED, Stage.TRAINING} & set(env.stages())
        (choice,) = agent.act(env.view.step, [env.view])
        assert not (isolated and choice.action.op == Op.GERMINATE)
        env.apply(choice.action)
        env.end_epoch()


def test_heuristic_plants_nothing_late_in_an_episode() -> None:
    env, agent = ScriptedEnv(), heuristic()
    actions = run(agent, env, steps=10, fall=0.2) + run(agent, env, steps=15)
    planted = steps_of(actions, Op.GERMINATE)
    assert planted == [(12, 0)]  # too few steps remain after the next plateau
    assert all(step + RULES.min_remaining * 25 <= 25 for step, _ in planted)


def test_heuristic_culls_tried_seeds_without_dependence() -> None:
    env, agent = ScriptedEnv(steps=100), heuristic()
    actions: list[Action] = []
    while not steps_of(actions, Op.CULL):
        tried = env.slots[0].stage is Stage.PROBATIONARY and env.slots[0].epochs_in_stage >= RULES.trial_steps
        actions += run(agent, env, steps=1, dependences={0: -0.1})
        assert (actions[-1].op == Op.CULL) == tried
    assert env.stages()[0] is Stage.EMBARGOED
    assert steps_of(actions, Op.CULL)[0][1] == 0


def test_heuristic_avoids_a_culled_blueprint_for_a_while() -> None:
    agent = HeuristicAgent(BLUEPRINTS, replace(RULES, rotation=("conv_light",)))
    assert agent_plants(agent, after_removal_of=None) == "conv_light"
    two = HeuristicAgent(BLUEPRINTS, RULES)
    assert agent_plants(two, after_removal_of="conv_light") == "conv_heavy"
    assert agent_plants(two, after_removal_of="conv_light", steps=10) == "conv_light"


def agent_plants(agent: HeuristicAgent, after_removal_of: str | None, steps: int = 1) -> str:
    """Return the first blueprint planted some steps after a cull that was restored from a checkpoint."""
    penalties = {} if after_removal_of is None else {after_removal_of: 64.0}
    agent.load_state_dict({"0": {"planted": 0, "penalties": penalties}}, {}, NOISE)
    env = ScriptedEnv(steps=100)
    run(agent, env, steps=steps, fall=0.2)
    while True:
        (action,) = run(agent, env, steps=1)
        if action.op == Op.GERMINATE:
            return BLUEPRINTS[action.blueprint]


def test_heuristic_continues_from_a_snapshot() -> None:
    whole, parts = ScriptedEnv(steps=60), ScriptedEnv(steps=60)
    harmful = {"dependences": {0: -0.1, 1: -0.1}}
    agent = heuristic()
    expected = run(agent, whole, steps=60, **harmful)
    first, second = heuristic(), heuristic()
    actions = run(first, parts, steps=17, **harmful)
    second.load_state_dict(first.state_dict(), {}, NOISE)
    assert actions + run(second, parts, steps=43, **harmful) == expected
    assert len(steps_of(expected, Op.CULL)) >= 2


def test_heuristic_forgets_the_previous_episode() -> None:
    agent = heuristic()
    expected = run(agent, ScriptedEnv(), dependences={0: -0.1})
    agent.begin_round(NOISE)
    assert run(agent, ScriptedEnv(), dependences={0: -0.1}) == expected


@pytest.mark.parametrize("agent", [heuristic(), PeriodicAgent(BLUEPRINTS, PLANT_INTERVAL_STEPS)])
def test_heuristic_fossilizes_unmeasured_seeds(agent: Agent) -> None:
    env = ScriptedEnv(counterfactual="off")
    run(agent, env)
    assert env.stages() == [Stage.FOSSILIZED] * 3
    assert all(slot.dependence is None for slot in env.slots)
