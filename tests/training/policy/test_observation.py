"""The observation: the position of each slot's features, and finite values only."""

import math

import pytest
import torch

from esper.common.domain import AlphaCurve, Op
from esper.networks.seeds.blend import BLEND_STYLES
from esper.training.policy.actions import Action
from esper.training.policy.masks import ActionMasks, write_masks
from esper.training.policy.observation import (
    BASE_FEATURES,
    BLUEPRINT_FEATURES,
    PLACE_FEATURES,
    SLOT_FEATURES,
    ObservationShape,
    write_observation,
)
from tests.training.policy.scripted import BLUEPRINTS, SLOTS, ScriptedEnv

SHAPE = ObservationShape(len(SLOTS), len(BLUEPRINTS))
SLOT_PART = slice(BASE_FEATURES, BASE_FEATURES + len(SLOTS) * SLOT_FEATURES)


def observe(env: ScriptedEnv) -> tuple[torch.Tensor, torch.Tensor]:
    obs, blueprints = torch.full((1, SHAPE.size), math.nan), torch.full((1, len(SLOTS)), -1)
    write_observation([env.view], obs, blueprints, BLUEPRINTS)
    return obs[0], blueprints[0]


def slot_slice(slot: int) -> slice:
    """Return the range of the features of a slot."""
    start = BASE_FEATURES + slot * SLOT_FEATURES
    return slice(start, start + SLOT_FEATURES)


def without_places(obs: torch.Tensor) -> torch.Tensor:
    """Return an observation without the features of the slots' places, which an empty slot has too."""
    changed = obs.clone()
    for slot in range(len(SLOTS)):
        changed[slot_slice(slot).start : slot_slice(slot).start + PLACE_FEATURES] = 0.0
    return changed


def grown(*slots: int) -> ScriptedEnv:
    """Return an env with a seed in BLENDING in each of these slots."""
    env = ScriptedEnv()
    for slot in slots:
        env.apply(Action(Op.GERMINATE, slot, blueprint=5))
    for _ in range(3):
        env.end_epoch()
    for slot in slots:
        env.apply(Action(Op.ADVANCE, slot))
    env.end_epoch()
    return env


def test_observation_parts_cover_the_observation() -> None:
    properties = len(SLOTS) * len(BLUEPRINTS) * BLUEPRINT_FEATURES
    assert slot_slice(len(SLOTS) - 1).stop + properties == SHAPE.size


@pytest.mark.parametrize("slot", range(len(SLOTS)))
def test_new_seed_changes_only_its_slice(slot: int) -> None:
    env = ScriptedEnv()
    before, codes = observe(env)
    assert not without_places(before)[SLOT_PART].any()
    assert not codes.any()
    env.apply(Action(Op.GERMINATE, slot, blueprint=4))
    after, codes = observe(env)
    for other in range(len(SLOTS)):
        assert bool(without_places(after)[slot_slice(other)].any()) == (other == slot)
    assert codes.tolist() == [5 if other == slot else 0 for other in range(len(SLOTS))]


@pytest.mark.parametrize("slot", range(len(SLOTS)))
def test_seed_measurements_change_only_its_slice(slot: int) -> None:
    env = grown(0, 1, 2)
    before, _ = observe(env)
    seed = env.slots[slot]
    seed.record_dependence(-0.3, 0.01)
    seed.grad_norm = 7.0
    seed.set_alpha(0.5, 5, AlphaCurve.LINEAR) if seed.can_set_alpha else seed.tick()
    after, _ = observe(env)
    moved = torch.zeros_like(before, dtype=torch.bool)
    moved[slot_slice(slot)] = True
    assert torch.equal(before[~moved], after[~moved])
    assert not torch.equal(before[moved], after[moved])


def test_culled_slot_shows_embargo_then_empty() -> None:
    env = grown(1)
    for _ in range(3):
        env.end_epoch()
    env.apply(Action(Op.CULL, 1))
    assert without_places(observe(env)[0])[slot_slice(1)].any()
    for _ in range(6):
        env.end_epoch()
    assert not without_places(observe(env)[0])[slot_slice(1)].any()


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_diverged_env_has_a_finite_observation(broken: float) -> None:
    env = grown(0)
    env.view.losses = [2.0, broken, broken]
    env.view.train_loss, env.view.train_score = broken, broken
    env.slots[0].grad_norm = broken
    observed, _ = observe(env)
    assert torch.isfinite(observed).all()
    env.view.losses, env.view.train_loss, env.slots[0].grad_norm = [2.0, 2.0, 2.0], 2.0, 1.0
    assert not torch.equal(observed, observe(env)[0])


def test_observation_distinguishes_missing_from_zero() -> None:
    env = grown(0)
    env.slots[0].dependence = None
    missing, _ = observe(env)
    env.slots[0].dependence = 0.0
    zero, _ = observe(env)
    assert not torch.equal(missing, zero)


def test_envs_fill_their_own_rows() -> None:
    """The second env has fewer slots than the others, the third a larger host."""
    envs = [grown(0), grown(1), ScriptedEnv(), grown(2)]
    envs[1].view.slots = envs[1].view.slots[:2]
    envs[2].view.host_parameters *= 10
    views = [env.view for env in envs]
    obs, codes = torch.full((4, SHAPE.size), math.nan), torch.full((4, len(SLOTS)), -1)
    write_observation(views, obs, codes, BLUEPRINTS)
    masks, mask_alone = (
        ActionMasks(*map(torch.ones_like, ActionMasks.empty(envs, slots=len(SLOTS), blueprints=len(BLUEPRINTS))))
        for envs in (4, 1)
    )
    write_masks(views, masks, BLUEPRINTS)
    for index, env in enumerate(envs):
        alone, code_alone = observe(env)
        write_masks([env.view], mask_alone, BLUEPRINTS)
        assert torch.equal(obs[index], alone)
        assert torch.equal(codes[index], code_alone)
        assert all(torch.equal(mask[index], row[0]) for mask, row in zip(masks, mask_alone, strict=True))
    assert not torch.equal(obs[0], obs[3])


def test_place_of_a_slot_is_observed_and_missing_slots_are_zeros() -> None:
    """The digits have 8 × 8 pixels, with a pool before the second and the third block."""
    obs = torch.full((1, ObservationShape(len(SLOTS) + 1, len(BLUEPRINTS)).size), math.nan)
    codes = torch.full((1, len(SLOTS) + 1), -1)
    write_observation([ScriptedEnv().view], obs, codes, BLUEPRINTS)
    places = [obs[0, slot_slice(slot)][:PLACE_FEATURES].exp().tolist() for slot in range(len(SLOTS))]
    e = math.e
    expected = [(e, 4, 64), (e, 8, 16), (e, 16, 4)]
    for index, (place, values) in enumerate(zip(places, expected, strict=True), start=1):
        assert place == pytest.approx((*values, math.exp(index / 3)))
    assert not obs[0, slot_slice(len(SLOTS))].any()
    assert codes[0].tolist() == [0] * (len(SLOTS) + 1)


def test_blend_and_curve_of_a_seed_are_observed() -> None:
    envs = [ScriptedEnv() for _ in BLEND_STYLES]
    for style, env in enumerate(envs):
        env.apply(Action(Op.GERMINATE, 0, style=style))
    observed = [tuple(observe(env)[0][slot_slice(0)].tolist()) for env in envs]
    assert len(set(observed)) == len(BLEND_STYLES)


def test_host_data_and_rent_are_observed() -> None:
    changes = {"rent_weight": 0.01, "host_parameters": 400, "kernel_size": 3, "train_samples": 128}
    before, _ = observe(ScriptedEnv())
    for name, value in changes.items():
        env = ScriptedEnv()
        setattr(env.view, name, value)
        changed = (observe(env)[0] != before)[:BASE_FEATURES]
        assert int(changed.sum()) == 1, name


def test_growth_without_rent_is_observed_as_the_lowest_rent() -> None:
    rents = [0.0, 1e-4, 1e-3, 1.0]
    observed: list[torch.Tensor] = []
    for rent in rents:
        env = ScriptedEnv()
        env.view.rent_weight = rent
        observed.append(observe(env)[0])
    (feature,) = (observed[1] != observed[2]).nonzero()
    assert observed[0][feature] == observed[1][feature] < observed[2][feature] < observed[3][feature]


def test_blueprints_are_described_by_their_properties_relative_to_the_host() -> None:
    env = ScriptedEnv()
    before = SHAPE.split(observe(env)[0])[2]
    env.view.host_parameters *= 10
    after = SHAPE.split(observe(env)[0])[2]
    offered = torch.tensor([[name in slot.site.blueprints for name in BLUEPRINTS] for slot in env.slots])
    assert torch.equal(before[..., 0] > 0, offered)
    assert not before[~offered].any()
    assert bool((after[offered][:, 1] < before[offered][:, 1]).all())
    assert torch.equal(after[..., 2:], before[..., 2:])
    assert len({tuple(row) for row in before[0].tolist()}) == len(BLUEPRINTS)
