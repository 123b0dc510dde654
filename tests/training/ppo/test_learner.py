"""The PPO update: exact properties, and learning of problems with a known optimum."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from esper.common.configuration.config import PPOConfig
from esper.common.domain import HEADS, Op
from esper.training.policy.masks import ActionMasks
from esper.training.policy.network import ActionEvaluation, Features, PolicyNetwork
from esper.training.policy.observation import ObservationShape
from esper.training.ppo import learner as learner_module
from esper.training.ppo.advantages import MAX_ABS_ADVANTAGE
from esper.training.ppo.learner import PPOLearner, explained_variance, subtract_step_means
from esper.training.ppo.loss import PPOLoss, ppo_loss
from esper.training.ppo.normaliser import RunningMeanStd
from esper.training.ppo.rollout import RolloutBuffer, SequenceBatch
from tests.device_syncs import device_syncs

SLOTS, BLUEPRINTS = 2, 3
SHAPE = ObservationShape(SLOTS, BLUEPRINTS)


def build(envs: int, steps: int, config: PPOConfig, rounds: int = 1) -> tuple[PolicyNetwork, RolloutBuffer, PPOLearner]:
    network = PolicyNetwork(SHAPE, config.hidden)
    network.initialise(torch.Generator().manual_seed(1))
    rollout = RolloutBuffer(envs, steps, SHAPE)
    return network, rollout, PPOLearner(network, RunningMeanStd(1), config, rounds)


def legal(envs: int, *ops: Op) -> ActionMasks:
    masks = ActionMasks.empty(envs, slots=SLOTS, blueprints=BLUEPRINTS)
    masks.op_EO[:, list(ops)] = True
    masks.slot_EOS[:] = True
    masks.blueprint_ESB[:] = True
    masks.style_ESY[:] = True
    return masks


def play(
    network: PolicyNetwork, rollout: RolloutBuffer, masks: ActionMasks, obs_ETF: Tensor, generator: torch.Generator
) -> None:
    """Fill a rollout with decisions of the policy."""
    envs, steps, _ = obs_ETF.shape
    state = network.initial_state(envs)
    rollout.clear()
    with torch.no_grad():
        for step in range(steps):
            features, state = network.encode(
                obs_ETF[:, step : step + 1], rollout.blueprint_ETS[:, step : step + 1], state
            )
            uniform = torch.rand(envs, len(HEADS), generator=generator)
            actions, _, evaluation = network.act(features.at_step(0), masks, uniform)
            rollout.actions_ETH[:, step] = actions
            rollout.log_prob_ETH[:, step] = evaluation.log_prob_H
            rollout.value_ET[:, step] = evaluation.value
            for stored, mask in zip(rollout.masks, masks, strict=True):
                stored[:, step] = mask
    rollout.valid_ET[:] = True


def batch_of(rollout: RolloutBuffer, obs_ETF: Tensor) -> SequenceBatch:
    ones = torch.ones_like(rollout.reward_ET)
    return next(rollout.batch(obs_ETF, ones, ones).minibatches(1, torch.Generator().manual_seed(0)))


def test_first_minibatch_has_ratio_one_and_zero_kl() -> None:
    network, rollout, learner = build(8, 6, PPOConfig(hidden=32))
    obs = torch.randn(8, 6, SHAPE.size)
    play(network, rollout, legal(8, *Op), obs, torch.Generator().manual_seed(2))
    batch = rollout.batch(obs, rollout.reward_ET, rollout.reward_ET)
    for minibatch in batch.minibatches(4, torch.Generator().manual_seed(3)):
        features, _ = network.encode(minibatch.obs_ETF, minibatch.blueprint_ETS, network.initial_state(2))
        evaluation = network.evaluate(features, minibatch.actions_ETH, minibatch.legal_ETHA)
        ratio = (evaluation.log_prob_H - minibatch.log_prob_ETH).exp()
        assert torch.allclose(ratio, torch.ones_like(ratio), rtol=0, atol=2e-6)  # rounding of float32
        assert learner.evaluate(minibatch, 0.0).kl.abs() < 1e-6
        assert learner.evaluate(minibatch, 0.0).clip_fraction == 0.0


@pytest.mark.parametrize(("envs", "sizes"), [(16, [4, 4, 4, 4]), (9, [3, 2, 2, 2]), (5, [2, 1, 1, 1]), (2, [1, 1])])
def test_update_has_the_configured_number_of_minibatches(envs: int, sizes: list[int]) -> None:
    _, rollout, _ = build(envs, 3, PPOConfig(hidden=16))
    obs = torch.randn(envs, 3, SHAPE.size)
    batches = rollout.batch(obs, rollout.reward_ET, rollout.reward_ET).minibatches(4, torch.Generator())
    assert [len(batch.obs_ETF) for batch in batches] == sizes


def test_lstm_over_episodes_equals_stepping() -> None:
    network, rollout, _ = build(4, 9, PPOConfig(hidden=16))
    obs, state = torch.randn(4, 9, SHAPE.size), network.initial_state(4)
    whole, _ = network.encode(obs, rollout.blueprint_ETS, state)
    stepped: list[Features] = []
    for step in range(9):
        features, state = network.encode(obs[:, step : step + 1], rollout.blueprint_ETS[:, step : step + 1], state)
        stepped.append(features)
    for part, steps in zip(whole, zip(*stepped, strict=True), strict=True):
        assert torch.allclose(part, torch.cat(steps, dim=1), atol=1e-6)


def played(envs: int, *, has_invalid_steps: bool = True) -> tuple[PolicyNetwork, SequenceBatch, ActionEvaluation]:
    """Return a network, five steps of its envs, the last two of env 1 invalid, and its evaluation of them."""
    network, rollout, _ = build(envs, 5, PPOConfig(hidden=16))
    obs = torch.randn(envs, 5, SHAPE.size)
    play(network, rollout, legal(envs, *Op), obs, torch.Generator().manual_seed(2))
    if has_invalid_steps:
        rollout.valid_ET[1, 3:] = False
    batch = batch_of(rollout, obs)
    features, _ = network.encode(batch.obs_ETF, batch.blueprint_ETS, network.initial_state(envs))
    return network, batch, network.evaluate(features, batch.actions_ETH, batch.legal_ETHA)


def test_invalid_steps_do_not_change_the_update() -> None:
    _, batch, evaluation = played(3)
    options = {"clip": 0.2, "value_coef": 0.5, "entropy_coef": 0.01}
    clean = ppo_loss(evaluation, batch, **options)
    idle = ~batch.valid_ET
    garbage = batch._replace(
        advantage_ET=batch.advantage_ET.masked_fill(idle, math.nan),
        return_ET=batch.return_ET.masked_fill(idle, math.inf),
        log_prob_ETH=batch.log_prob_ETH.masked_fill(idle.unsqueeze(-1), -1e30),
    )
    for expected, got in zip(clean, ppo_loss(evaluation, garbage, **options), strict=True):
        assert torch.equal(expected, got)


def test_bonus_of_the_loss_is_that_of_the_valid_choices() -> None:
    _, batch, evaluation = played(4)
    with_bonus, without = (
        ppo_loss(evaluation, batch, clip=0.2, value_coef=0.5, entropy_coef=coef).total for coef in (0.1, 0.0)
    )
    counted_ETH = evaluation.has_choice_H & batch.valid_ET.unsqueeze(-1)
    assert not torch.allclose(evaluation.bonus_H, evaluation.entropy_H)
    expected = evaluation.bonus_H[counted_ETH].sum() / batch.valid_ET.sum()
    assert torch.allclose(without - with_bonus, 0.1 * expected, atol=1e-5)


def test_gradient_at_ratio_one_is_the_policy_gradient() -> None:
    network, batch, evaluation = played(4, has_invalid_steps=False)
    batch = batch._replace(advantage_ET=torch.randn(4, 5))
    loss = ppo_loss(evaluation, batch, clip=0.2, value_coef=0.0, entropy_coef=0.0).total
    parameter = network.heads["op"][2].weight  # pyright: ignore[reportIndexIssue]
    (got,) = torch.autograd.grad(loss, parameter, retain_graph=True)
    reinforce = -(evaluation.log_prob_H.sum(-1) * batch.advantage_ET).mean()
    (expected,) = torch.autograd.grad(reinforce, parameter)
    assert torch.allclose(got, expected, atol=1e-7)


def test_only_used_heads_report_a_gradient() -> None:
    network, rollout, learner = build(6, 4, PPOConfig(hidden=16))
    obs = torch.randn(6, 4, SHAPE.size)
    generator = torch.Generator().manual_seed(2)
    play(network, rollout, legal(6, Op.WAIT, Op.FOSSILIZE), obs, generator)
    rollout.reward_ET.normal_(generator=generator)
    learned = learner.update(rollout, obs, torch.zeros(6), 0, generator)
    for head in ("op", "slot"):
        norm = learned.head_grad_norms[head]
        assert norm is not None
        assert norm > 0
    assert learned.head_grad_norms["blueprint"] is None
    assert learned.head_entropies["tempo"] is None


def test_non_finite_gradient_is_reported() -> None:
    network, rollout, learner = build(6, 4, PPOConfig(hidden=16, epochs=1, minibatches=1))
    obs = torch.randn(6, 4, SHAPE.size)
    generator = torch.Generator().manual_seed(2)
    play(network, rollout, legal(6, *Op), obs, generator)
    rollout.reward_ET[0, 0] = math.nan
    assert math.isnan(learner.update(rollout, obs, torch.zeros(6), 0, generator).head_grad_norms["op"] or 0.0)


@pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16])
def test_heads_have_finite_gradients_under_autocast(precision: torch.dtype) -> None:
    network, rollout, learner = build(8, 6, PPOConfig(hidden=16))
    obs = torch.randn(8, 6, SHAPE.size)
    generator = torch.Generator().manual_seed(2)
    with torch.autocast("cpu", dtype=precision):
        play(network, rollout, legal(8, Op.GERMINATE, Op.SET_ALPHA), obs, generator)
        rollout.reward_ET.normal_(generator=generator)
        learned = learner.update(rollout, obs, torch.zeros(8), 0, generator)
    for head, norm in learned.head_grad_norms.items():
        assert norm is not None, head
        assert math.isfinite(norm), head
        assert norm > 0, head


def test_learning_rate_and_entropy_bonus_fall_linearly(monkeypatch: pytest.MonkeyPatch) -> None:
    config = PPOConfig(hidden=16, epochs=1, learning_rate=1e-3, entropy_coef=0.08)
    network, rollout, learner = build(4, 3, config, rounds=5)
    obs, generator = torch.randn(4, 3, SHAPE.size), torch.Generator().manual_seed(2)
    play(network, rollout, legal(4, *Op), obs, generator)
    bonuses: list[float] = []

    def noted(*args: Any, entropy_coef: float, **options: Any) -> PPOLoss:
        bonuses.append(entropy_coef)
        return ppo_loss(*args, entropy_coef=entropy_coef, **options)

    monkeypatch.setattr(learner_module, "ppo_loss", noted)
    rates = [learner.update(rollout, obs, torch.zeros(4), index, generator).learning_rate for index in range(5)]
    assert rates == pytest.approx([1e-3, 7.75e-4, 5.5e-4, 3.25e-4, 1e-4])
    assert bonuses[::4] == pytest.approx([0.08, 0.06, 0.04, 0.02, 0.0])


def learned_from(
    learner: PPOLearner, rollout: RolloutBuffer, obs_ETF: Tensor, monkeypatch: pytest.MonkeyPatch
) -> tuple[SequenceBatch, Tensor]:
    """Return the single minibatch of an update, and the envs in its order."""
    batches: list[SequenceBatch] = []

    def noted(evaluation: ActionEvaluation, batch: SequenceBatch, **options: Any) -> PPOLoss:
        batches.append(batch)
        return ppo_loss(evaluation, batch, **options)

    monkeypatch.setattr(learner_module, "ppo_loss", noted)
    envs = len(obs_ETF)
    learner.update(rollout, obs_ETF, torch.zeros(envs), 0, torch.Generator().manual_seed(0))
    (batch,) = batches
    return batch, torch.randperm(envs, generator=torch.Generator().manual_seed(0))


def test_update_subtracts_the_host_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    config = PPOConfig(hidden=16, epochs=1, minibatches=1, envs_per_host=4)
    network, rollout, learner = build(32, 6, config)
    obs, generator = torch.randn(32, 6, SHAPE.size), torch.Generator().manual_seed(2)
    play(network, rollout, legal(32, *Op), obs, generator)
    own_ET = torch.randn(32, 6, generator=generator)
    luck_ET = 10 * torch.randn(8, 6, generator=generator).repeat_interleave(4, 0)
    rollout.reward_ET[:] = own_ET + luck_ET
    batch, order = learned_from(learner, rollout, obs, monkeypatch)
    assert batch.return_ET.var() > 0.5  # the targets of the critic include the host effect
    judged_E = batch.advantage_ET[:, -1]
    assert torch.corrcoef(torch.stack((judged_E, own_ET[order, -1])))[0, 1] > 0.7
    assert abs(torch.corrcoef(torch.stack((judged_E, luck_ET[order, -1])))[0, 1]) < 0.3


def test_update_is_robust_to_a_breakdown(monkeypatch: pytest.MonkeyPatch) -> None:
    config = PPOConfig(hidden=16, epochs=1, minibatches=1, envs_per_host=2)
    network, rollout, learner = build(8, 6, config)
    obs, generator = torch.randn(8, 6, SHAPE.size), torch.Generator().manual_seed(2)
    play(network, rollout, legal(8, *Op), obs, generator)
    rollout.reward_ET[:] = 0.01 * torch.randn(8, 6, generator=generator)
    rollout.value_ET.zero_()
    rollout.reward_ET[0, 3], rollout.terminal_ET[0, 3], rollout.valid_ET[0, 4:] = -1.0, True, False
    batch, order = learned_from(learner, rollout, obs, monkeypatch)
    judged_ET = batch.advantage_ET
    assert judged_ET[order != 0].std() == pytest.approx(1.0, abs=0.05)
    broken_T = judged_ET[order == 0][0, :4]  # the breakdown counts most, and what came before it less and less
    assert broken_T[-1] == -MAX_ABS_ADVANTAGE
    assert (broken_T.diff() < 0).all()


def test_large_kl_stops_the_update_early() -> None:
    network, rollout, learner = build(8, 6, PPOConfig(hidden=16, learning_rate=0.1, target_kl=0.001, epochs=8))
    obs = torch.randn(8, 6, SHAPE.size)
    generator = torch.Generator().manual_seed(2)
    play(network, rollout, legal(8, *Op), obs, generator)
    rollout.reward_ET.normal_(generator=generator)
    learned = learner.update(rollout, obs, torch.zeros(8), 0, generator)
    assert learned.stopped_early
    assert learned.minibatches < 8 * 4


def test_explained_variance_has_its_closed_form() -> None:
    returns, counts = torch.tensor([[0.0, 1.0, 2.0, 9.0]]), torch.tensor([[True, True, True, False]])
    assert explained_variance(returns, returns, counts) == 1.0
    assert explained_variance(torch.zeros(1, 4), returns, counts) == 0.0
    assert math.isinf(explained_variance(returns, torch.ones(1, 4), counts))


def test_variance_within_steps_ignores_what_depends_on_the_step_only() -> None:
    own = torch.tensor([[1.0, -1.0, 7.0], [-1.0, 1.0, 0.0]])
    valid = torch.tensor([[True, True, True], [True, True, False]])
    of_step = torch.tensor([10.0, 20.0, 30.0])
    returns = subtract_step_means(own + of_step, valid)
    assert torch.equal(returns[valid], torch.tensor([1.0, -1.0, 0.0, -1.0, 1.0]))
    right_step = subtract_step_means(of_step.expand(2, 3), valid)
    assert explained_variance(of_step.expand(2, 3), own + of_step, valid) > 0.9
    assert explained_variance(right_step, returns, valid) == 0.0
    assert explained_variance(subtract_step_means(own / 2 + of_step, valid), returns, valid) == 0.75


def test_known_returns_change_nothing_that_is_learned() -> None:
    """A potential that is added to returns and critic leaves advantages and targets as they are."""
    steps, learned = 6, list[dict[str, Tensor]]()
    potential = torch.randn(8, steps + 1, generator=torch.Generator().manual_seed(4))
    potential[:, -1] = 0.0
    for weight in (0.0, 1.0):
        network, rollout, learner = build(8, steps, PPOConfig(hidden=16, gamma=1.0))
        obs = torch.randn(8, steps, SHAPE.size, generator=torch.Generator().manual_seed(3))
        generator = torch.Generator().manual_seed(2)
        play(network, rollout, legal(8, *Op), obs, generator)
        rollout.reward_ET.normal_(generator=generator)
        rollout.reward_ET += weight * potential.diff()
        rollout.known_ET[:] = -weight * potential[:, :-1]
        rollout.value_ET += rollout.known_ET
        learner.update(rollout, obs, torch.zeros(8), 0, generator)
        learned.append(network.state_dict() | learner.returns.state_dict())
    for name, value in learned[0].items():
        torch.testing.assert_close(learned[1][name], value, rtol=1e-4, atol=1e-5)


def learn_to(
    reward_of, steps: int, cue_steps: int, rounds: int = 25, learning_rate: float = 3e-3, seed: int = 4
) -> float:
    """Return the mean reward of the last round; the op is always GERMINATE, and the cue's blueprint is rewarded."""
    envs = 48
    config = PPOConfig(hidden=32, learning_rate=learning_rate, entropy_coef=0.01, gamma=0.99, envs_per_host=1)
    network, rollout, learner = build(envs, steps, config)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(rounds):
        cue = torch.randint(BLUEPRINTS, (envs,), generator=generator)
        obs = torch.zeros(envs, steps, SHAPE.size)
        obs[:, :cue_steps, :BLUEPRINTS] = torch.nn.functional.one_hot(cue, BLUEPRINTS).float().unsqueeze(1)
        obs[:, :, BLUEPRINTS] = torch.linspace(0, 1, steps)
        SHAPE.split(obs)[2][..., :BLUEPRINTS] = torch.eye(BLUEPRINTS)  # properties that tell the blueprints apart
        play(network, rollout, legal(envs, Op.GERMINATE), obs, generator)
        rollout.reward_ET[:] = reward_of(rollout.actions_ETH[:, :, HEADS.index("blueprint")], cue)
        learner.update(rollout, obs, torch.zeros(envs), 0, generator)
    return rollout.reward_ET.sum(dim=1).mean().item()


@pytest.mark.slow
def test_learner_solves_a_contextual_bandit() -> None:
    score = learn_to(lambda chosen, cue: (chosen == cue.unsqueeze(-1)).float(), steps=3, cue_steps=3)
    assert score > 2.7  # of 3; chance is 1


@pytest.mark.slow
def test_learner_solves_a_memory_task() -> None:
    def at_the_end(chosen: Tensor, cue: Tensor) -> Tensor:
        reward = torch.zeros(chosen.shape)
        reward[:, -1] = (chosen[:, -1] == cue).float()
        return reward

    # Over 60 seeds, the mean is 0.90 and the standard deviation 0.15, so that one run says little.
    scores = [learn_to(at_the_end, 4, cue_steps=1, rounds=60, learning_rate=1e-2, seed=seed) for seed in range(4, 8)]
    assert sum(scores) / len(scores) > 0.7  # chance is one third


@pytest.mark.parametrize("minibatches", [1, 4])
def test_minibatch_does_not_synchronise_with_the_device(minibatches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    config = PPOConfig(epochs=2, minibatches=minibatches, target_kl=1e9)
    network, rollout, learner = build(8, 3, config)
    generator = torch.Generator().manual_seed(0)
    obs_ETF = torch.randn(8, 3, SHAPE.size, generator=generator)
    play(network, rollout, legal(8, Op.WAIT), obs_ETF, generator)
    with device_syncs(monkeypatch) as found:
        learned = learner.update(rollout, obs_ETF, torch.randn(8), 0, generator)
    assert learned.minibatches == 2 * minibatches
    assert found.count("__float__") == 2  # the KL of each epoch
    assert found.count("cpu") == 4  # the ops, for the round and for each epoch, and the statistics of the update
    assert found.count("__int__") == 3  # numbers of envs and rounds, which are on the CPU
    assert found.count("item") == 0
