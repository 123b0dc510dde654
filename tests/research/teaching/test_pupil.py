"""The pupil: it learns the alternatives that are best in each context, and its policy acts."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from research.teaching.lessons import Lesson, pad_lesson
from research.teaching.pupil import Pupil, TeachingConfig, _log_sum_exp

from esper.common.configuration.config import Config, PPOConfig
from esper.common.domain import Op
from esper.training.engine.agent_factory import build_trained
from esper.training.engine.trained_policy import read_policy_file, write_policy_file
from esper.training.policy.observation import ObservationShape, write_observation
from tests.research.teaching.made import STEPS, made_lesson
from tests.training.policy.scripted import BLUEPRINTS, NOISE, PROFILE, ScriptedEnv

SHAPE = ObservationShape(2, 3)
SMALL = PPOConfig(hidden=8)


def lessons(shape: ObservationShape = SHAPE) -> list[Lesson]:
    """Return lessons of three kinds, which a feature identifies: waiting, the first or the second blueprint is best."""
    gains = {-2.0: [0.0, -0.2, -0.1, -0.3], 0.0: [0.0, 0.3, 0.1, -0.3], 2.0: [0.0, -0.1, 0.2, -0.3]}
    return [made_lesson(feature, gain, shape, seed=seed) for seed in range(2) for feature, gain in gains.items()]


def test_pupil_learns_the_best_alternative_of_each_context() -> None:
    config = TeachingConfig(epochs=100, lessons=12, learning_rate=0.02, rents=(0.001, 0.002))
    pupil = Pupil(lessons(), config, PPOConfig(hidden=16), seed=1)
    found = list(pupil.learn())
    assert found[0]["expected"] < 0.1
    assert found[-1]["best"] == pytest.approx(0.163, abs=0.001)
    assert found[-1]["expected"] > found[-1]["best"] - 0.005
    assert found[-1]["inside"] > -0.01  # it takes these alternatives and no others
    assert found[-1]["value"] < found[0]["value"]
    with torch.no_grad():
        evaluated = pupil.evaluate(pupil.batch(pupil.exercises[1::2], [0.001] * 6))
    assert evaluated.weight_N.view(6, 4).argmax(dim=1).tolist() == [0, 1, 2] * 2


def test_falling_temperature_decides_for_an_alternative_that_is_slightly_better() -> None:
    lesson = made_lesson(1.0, [0.0, -0.01, -0.01, -0.01], SHAPE)
    config = TeachingConfig(epochs=100, learning_rate=0.03, last_temperature=0.002, rents=(1e-9, 2e-9))
    pupil = Pupil([lesson], config, PPOConfig(hidden=16), seed=1)
    list(pupil.learn())
    with torch.no_grad():
        weight = pupil.evaluate(pupil.batch(pupil.exercises[:1], [1e-9])).weight_N[0].item()
    assert weight == pytest.approx(0.98, abs=0.03)


def test_pupils_of_one_random_seed_are_equal() -> None:
    config = TeachingConfig(epochs=1, lessons=2)

    def taught(seed: int) -> torch.Tensor:
        pupil = Pupil(lessons(), config, SMALL, seed)
        assert len(list(pupil.learn())) == 1
        return pupil.policy("taught").tensors["network.lstm.weight_hh_l0"]

    assert torch.equal(taught(1), taught(1))
    assert not torch.equal(taught(1), taught(2))


def test_padding_leaves_the_evaluation_unchanged() -> None:
    lesson = made_lesson(1.0, [0.0, 0.3, 0.1], SHAPE)
    own, padded = (Pupil([one], TeachingConfig(), SMALL, seed=3) for one in (lesson, pad_lesson(lesson, 4, 6)))
    with torch.no_grad():
        expected = own.evaluate(own.batch(own.exercises[1:], [0.002]))
        found = padded.evaluate(padded.batch(padded.exercises[1:], [0.002]))
    assert (expected.log_prob_N < -1).all()
    for mine, other in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)


def test_lessons_of_other_slots_and_blueprints_are_taught_together() -> None:
    """The narrow lesson is that of an env with one slot of two, played among envs of a family."""
    narrow, wide = made_lesson(1.0, [0.0, 0.3], SHAPE, slots=1), made_lesson(2.0, [0.0, 0.3, 0.1], SHAPE)
    other = made_lesson(3.0, [0.0, 0.2], ObservationShape(3, 2))
    pupil = Pupil([narrow, wide, other], TeachingConfig(epochs=1, lessons=2), SMALL, seed=1)
    assert pupil.network.shape == (3, 3)
    (found,) = pupil.learn()
    assert all(map(math.isfinite, found.values()))


def test_probability_counts_choices_in_valid_steps_only() -> None:
    """With equal probabilities, waiting in three steps is one of two ops each, and a plan chooses more."""
    lesson = made_lesson(1.0, [0.0, 0.3], SHAPE, slots=1)
    pupil = Pupil([lesson], TeachingConfig(), SMALL, seed=1)
    for head in pupil.network.heads.parameters():
        torch.nn.init.zeros_(head)
    with torch.no_grad():
        whole = pupil.evaluate(pupil.batch(pupil.exercises[:1], [0.002])).log_prob_N
        pupil.exercises[0].valid_PT[:, 1:] = False
        first = pupil.evaluate(pupil.batch(pupil.exercises[:1], [0.002])).log_prob_N
    assert whole.exp().tolist() == pytest.approx([1 / 8, first[1].exp().item() / 4])
    assert first.exp()[0].item() == pytest.approx(1 / 2)
    assert first.exp()[1].item() < 1 / 2 / 3 / 4 + 1e-6  # op, three blueprints, four or more styles


def test_target_of_the_critic_is_the_unknown_part_of_the_return() -> None:
    lesson = made_lesson(1.0, [0.0, 0.3], SHAPE)
    pupil = Pupil([lesson], TeachingConfig(), SMALL, seed=1)
    batch = pupil.batch(pupil.exercises[:1], [0.01])
    assert batch.unknown_NT[0].tolist() == pytest.approx([0.25] * STEPS)
    assert batch.unknown_NT[1].tolist() == pytest.approx([0.25 + 0.3 - 0.001 - 0.03, 0.55 - 0.02, 0.55 - 0.01])
    assert batch.return_N.tolist() == pytest.approx([0.0, 0.269])


def test_log_sum_exp_of_groups_and_its_gradient() -> None:
    values_N = torch.tensor([-1000.0, -1001.0, 3.0, 0.5, 0.25, -900.0]).double().requires_grad_()
    group_N = torch.tensor([0, 0, 1, 1, 1, 2])
    found_G = _log_sum_exp(values_N, group_N, 3)
    expected_G = torch.stack([values_N[group_N == group].logsumexp(0) for group in range(3)])
    torch.testing.assert_close(found_G, expected_G)
    weights_G = torch.tensor([1.0, 2.0, 3.0]).double()
    gradients = [torch.autograd.grad((weights_G * total_G).sum(), values_N)[0] for total_G in (found_G, expected_G)]
    torch.testing.assert_close(*gradients)


def test_policy_acts_as_the_pupil_after_it_was_written_and_read(tmp_path: Path) -> None:
    shape = ObservationShape(len(PROFILE.sites), len(BLUEPRINTS))
    pupil = Pupil(lessons(shape), TeachingConfig(epochs=1), SMALL, seed=1)
    list(pupil.learn())
    policy = pupil.policy("taught")
    path = tmp_path / "policy.safetensors"
    write_policy_file(policy, path)
    list(pupil.learn())  # does not change the copy
    agent = build_trained(read_policy_file(path, "taught"), Config(envs=1, steps=25), PROFILE.sites, BLUEPRINTS)
    pupil.network.load_state_dict(agent.network.state_dict())
    view = ScriptedEnv().view
    agent.begin_round(NOISE)
    (decision,) = agent.act(0, [view])
    obs_EF, blueprint_ES = torch.zeros(1, shape.size), torch.zeros(1, shape.slots, dtype=torch.int64)
    write_observation([view], obs_EF, blueprint_ES, BLUEPRINTS)
    with torch.no_grad():
        normal_ETF = pupil.observations.normalise(obs_EF).unsqueeze(1)
        features, _ = pupil.network.encode(normal_ETF, blueprint_ES.unsqueeze(1), pupil.network.initial_state(1))
        logits_O = pupil.network.heads["op"](features.memory_D)[0, 0, :2]  # a bare host allows to wait and to germinate
        value = pupil.returns.denormalise(pupil.network.value(features)).item() + view.known_return
    assert decision.op_probabilities is not None
    assert list(decision.op_probabilities) == [Op.WAIT, Op.GERMINATE]
    assert list(decision.op_probabilities.values()) == pytest.approx(logits_O.softmax(0).tolist(), abs=1e-6)
    assert decision.value == pytest.approx(value, abs=1e-5)
    for name, tensor in agent.network.state_dict().items():
        assert torch.equal(tensor, policy.tensors[f"network.{name}"])
