"""The player: its episodes are those of an evaluation, and do not depend on each other."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import msgspec
import pytest
import torch
from research.teaching.lessons import Lesson
from research.teaching.player import HEURISTIC, Alternative, Assignment, LessonPlayer
from research.teaching.pupil import Pupil, TeachingConfig

from esper import Family, Setting
from esper.common.configuration.config import Config, ConfigError, PPOConfig, TrainingConfig
from esper.common.decisions import Decision
from esper.common.domain import Op
from esper.common.seeding import make_generator
from esper.networks.tasks.builtin.digits_family import digits_host
from esper.networks.tasks.prepare import PreparedTask, prepare_task
from esper.studies.evaluation.episodes import run_episodes
from esper.studies.evaluation.results import EpisodeResult
from esper.training.engine.agent_factory import build_trained
from esper.training.engine.trained_policy import TrainedPolicy
from esper.training.envs.epoch_result import EpochResult
from esper.training.envs.governor import Breakdown
from esper.training.lanes.pool import EnvPool
from esper.training.policy.actions import Action
from esper.training.policy.agent import Agent
from esper.training.policy.baselines import germinate_action
from esper.training.policy.heuristic import HeuristicAgent
from esper.training.policy.masks import ActionMasks
from esper.training.policy.observation import ObservationShape, set_rent
from esper.training.policy.plan import parse_plan
from esper.training.policy.plan_agent import PlanAgent
from tests.research.teaching.made import made_lesson
from tests.research.teaching.test_lessons import assert_equal

STEPS, SEED = 6, 2
FAMILY = Family(
    "two_digits",
    [digits_host("short", (4, 8), kernel_size=1), digits_host("deep", (4, 4, 8), kernel_size=1)],
    {"learning_rate": Setting([0.2, 0.01])},
)
CONFIG = Config(task="two_digits", steps=STEPS, policy="ppo", training=TrainingConfig(samples_per_epoch=64))
PREPARED = prepare_task(CONFIG, FAMILY)
PROFILE = PREPARED.profile
PLAN = "1:conv_light@first 2:norm@third 5:cull@first"
PLANTED = Alternative(PLAN)
POLICY = "pupil"


def policy() -> TrainedPolicy:
    """Return a policy that was not trained, which takes all kinds of ops."""
    lesson = made_lesson(1.0, [0.1, 0.2], ObservationShape(1, 1))
    return Pupil([lesson], TeachingConfig(), PPOConfig(hidden=8), 1).policy(POLICY)


def play(
    assignments: Sequence[Assignment],
    capacity: int = 4,
    orders: int = 2,
    lanes: Sequence[str] = ("cpu:0",),
    prepared: PreparedTask = PREPARED,
) -> list[Lesson]:
    """Play lessons of the family, or of another task."""
    player = LessonPlayer(
        prepared,
        lanes,
        seed=SEED,
        orders=orders,
        capacity=capacity,
        software="test",
        policies={POLICY: policy()},
    )
    with closing(player):
        return player.play(assignments)


def evaluate(agent: Agent, rent: float, order: int = 0, envs: int = 2) -> list[EpisodeResult]:
    """Play an agent in the first contexts as an evaluation would."""
    weights = msgspec.structs.replace(PREPARED.config.reward_weights, rent=rent)
    seed = make_generator(SEED, "lesson", order).initial_seed()
    config = msgspec.structs.replace(
        PREPARED.config, envs=envs, seed=seed, context_seed=SEED, reward="simplified", reward_weights=weights,
        ppo=PPOConfig(envs_per_host=1),
    )  # fmt: skip
    with closing(EnvPool(PREPARED.task, PROFILE, PREPARED.data, ("cpu:0",), config)) as pool:
        return run_episodes(pool, agent, config, lambda: None)


def plan_agent() -> PlanAgent:
    return PlanAgent(parse_plan(PLAN, STEPS), PROFILE.sites, PROFILE.blueprints)


def assert_results(lessons: Sequence[Lesson], index: int, order: int, rent: float, agent: Agent) -> None:
    """Check that an alternative of some contexts has the final scores and the returns of an evaluation."""
    expected = evaluate(agent, rent, order)
    found = [lesson.returns(rent)[order, index].item() for lesson in lessons]
    assert found == pytest.approx([played.net_return for played in expected], abs=1e-12)
    for lesson, played in zip(lessons, expected, strict=True):  # a rollback restores an earlier score
        assert played.broke_down or played.validation_score == lesson.score_OPT[order, index, -1].item()


def test_returns_at_any_rent_are_those_of_an_evaluation() -> None:
    lessons = play([Assignment(context, [PLANTED, Alternative(HEURISTIC)], 0.002) for context in range(2)])
    assert {lesson.info.task for lesson in lessons} == {"short", "deep"}
    assert lessons[0].info.alternatives == [PLAN, HEURISTIC]
    for order, rent in ((0, 0.002), (1, 0.05)):
        assert_results(lessons, 0, order, rent, plan_agent())
    assert_results(lessons, 1, 1, 0.002, HeuristicAgent(PROFILE.blueprints))


def test_return_of_an_env_that_breaks_down(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def breakdown(_: EpochResult) -> Breakdown | None:
        calls.append(0)
        return Breakdown("it is ill", 0.0, None) if len(calls) == 6 else None  # env 1, in the third step

    monkeypatch.setattr("esper.training.engine.episode.find_non_finite", breakdown)
    lessons = play([Assignment(context, [PLANTED], 0.002) for context in range(2)], capacity=2, orders=1)
    assert lessons[0].valid_OPT.all()
    assert lessons[1].valid_OPT[0, 0].tolist() == [True] * 3 + [False] * 3
    assert lessons[1].cost_OPT[0, 0, 2] >= 1
    calls.clear()
    assert_results(lessons, 0, 0, 0.02, plan_agent())


def test_inputs_and_actions_are_those_of_the_policy() -> None:
    lessons = play([Assignment(context, [Alternative(POLICY)], 0.004) for context in range(2)], capacity=2, orders=1)
    weights = msgspec.structs.replace(PREPARED.config.reward_weights, rent=0.004)
    config = msgspec.structs.replace(PREPARED.config, envs=2, reward_weights=weights)
    agent = build_trained(policy(), config, PROFILE.sites, PROFILE.blueprints)
    returns = [played.net_return for played in evaluate(agent, 0.004)]
    assert [lesson.returns(0.004).item() for lesson in lessons] == pytest.approx(returns, abs=1e-12)
    assert agent.rollout.actions_ETH[..., 0].unique().numel() > 2
    for env, lesson in enumerate(lessons):
        assert torch.equal(lesson.obs_OPTF[0, 0], agent.rollout.obs_ETF[env])
        assert torch.equal(lesson.blueprint_OPTS[0, 0], agent.rollout.blueprint_ETS[env])
        assert torch.equal(lesson.actions_OPTH[0, 0], agent.rollout.actions_ETH[env])
        for name in ActionMasks._fields:
            assert torch.equal(getattr(lesson.masks, name)[0, 0], getattr(agent.rollout.masks, name)[env]), name


def test_observations_at_another_rent_are_those_of_its_own_episodes() -> None:
    cheap, dear = (play([Assignment(0, [PLANTED], rent)], orders=1)[0] for rent in (0.0005, 0.05))
    assert (cheap.obs_OPTF != dear.obs_OPTF).any(dim=-1).all()
    for lesson, other, rent in ((cheap, dear, 0.05), (dear, cheap, 0.0005)):
        obs_OPTF = lesson.obs_OPTF.clone()
        set_rent(obs_OPTF, lesson.rent_OPT, rent)
        torch.testing.assert_close(obs_OPTF, other.obs_OPTF, rtol=1e-6, atol=1e-6)


ALONE = [PLANTED, Alternative(HEURISTIC), Alternative("3:norm@second", (Decision("germinate", "first", "conv_light"),))]


def test_alternatives_do_not_depend_on_their_neighbours() -> None:
    others = [Alternative(), Alternative("1:norm@second"), *ALONE]
    assignments = [Assignment(1, others, 0.002), Assignment(0, ALONE, 0.004)]
    together, second = play(assignments, capacity=5)
    (alone,) = play([Assignment(1, ALONE, 0.002)], capacity=2)
    (swapped,) = play([Assignment(0, ALONE[::-1], 0.004)], capacity=1)
    for expected, found, indices in ((alone, together, [2, 3, 4]), (second, swapped, [2, 1, 0])):
        for name in ("obs_OPTF", "actions_OPTH", "score_OPT", "rent_OPT", "cost_OPT"):
            assert torch.equal(getattr(found, name)[:, indices], getattr(expected, name)), name
    assert not torch.equal(alone.score_OPT[0], alone.score_OPT[1])


@pytest.mark.slow
def test_alternatives_do_not_depend_on_the_lanes() -> None:
    prepared = prepare_task(msgspec.structs.replace(CONFIG, task="digits"))  # worker processes can import it
    plans = [Alternative("1:conv_light@early 2:norm@mid"), Alternative(HEURISTIC)]
    assignments = [Assignment(context, plans, 0.002) for context in range(2)]
    first, second = (play(assignments, lanes=lanes, prepared=prepared) for lanes in (("cpu:0",), ("cpu:0", "cpu:1")))
    for found, expected in zip(second, first, strict=True):
        assert_equal(found, expected)


def test_first_decisions_are_followed_by_the_plan() -> None:
    plant = Decision("germinate", "first", "conv_light")
    again = Decision("germinate", "first", PROFILE.blueprints[0])  # the slot is no longer empty
    scripted = Alternative("4:norm@second", (plant, again))
    (lesson,) = play([Assignment(0, [scripted, Alternative("1:conv_light@first 4:norm@second")], 0.002)], orders=1)
    names = lesson.info.alternatives
    assert names[0].startswith("1:conv_light@first 2:")
    assert names[0].endswith("; from 3: 4:norm@second")
    actions = [Action(*row) for row in lesson.actions_OPTH[0, 0].tolist()]
    assert actions[0] == germinate_action(0, PROFILE.blueprints.index("conv_light"))
    assert actions[1].op == Op.WAIT
    assert (actions[3].op, actions[3].slot, actions[3].blueprint) == (Op.GERMINATE, 1, PROFILE.blueprints.index("norm"))
    assert lesson.actions_OPTH[0, 1, :2].equal(lesson.actions_OPTH[0, 0, :2])  # the plan can advance no seed so early
    assert lesson.score_OPT[0, 0].equal(lesson.score_OPT[0, 1])
    with pytest.raises(ConfigError, match="no_such"):
        play([Assignment(0, [Alternative("1:norm@no_such")], 0.002)])
