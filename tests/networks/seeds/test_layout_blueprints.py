"""Seeds for features and sequences: identity at the start, closed forms, parameter counts, and no look ahead."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from esper.common.domain import AlphaCurve, Stage
from esper.networks.seeds.blend import BLEND_STYLES, Blend, BlendGate
from esper.networks.seeds.blueprints import BLUEPRINTS, blueprint, build_seed, offered_blueprints
from esper.networks.seeds.blueprints.features import LowRankSeed, MlpSeed
from esper.networks.seeds.blueprints.registry import Implementation
from esper.networks.seeds.blueprints.sequences import SelfAttentionSeed, TokenConvSeed
from esper.networks.seeds.layers import initialise_, starts_at_zero
from esper.networks.seeds.layouts import Layout
from esper.networks.seeds.lifecycle import GateConfig
from esper.networks.seeds.slot import Slot
from esper.training.envs.env_state import load_tensors
from tests.networks.seeds.hosts import generator, grow, network, pictures, site

SHAPES = {Layout.BC: (5, 16), Layout.BTC: (3, 7, 16), Layout.BCL: (3, 16, 7), Layout.BCHW: (3, 16, 6, 6)}
ALL = [(name, layout) for name, implementations in BLUEPRINTS.items() for layout in implementations]
CAUSAL = [name for name in BLUEPRINTS if name in offered_blueprints(Layout.BTC, is_causal=True)]

CHANNELS = [1, 3, 4, 16, 48]
PARAMETERS = {
    ("norm", Layout.BCHW): lambda c: 2 * c,
    ("attention", Layout.BCHW): lambda c: 2 * c * max(1, c // 4) + max(1, c // 4) + c,
    ("depthwise", Layout.BCHW): lambda c: 9 * c + c * c + 2 * c,
    ("bottleneck", Layout.BCHW): lambda c: 2 * c * max(4, c // 4) + 9 * max(4, c // 4) ** 2 + 4 * max(4, c // 4) + c,
    ("conv_small", Layout.BCHW): lambda c: c * c + 2 * c,
    ("conv_light", Layout.BCHW): lambda c: 9 * c * c + 2 * c,
    ("conv_heavy", Layout.BCHW): lambda c: 18 * c * c + 4 * c,
    ("norm", Layout.BC): lambda c: 2 * c,
    ("norm", Layout.BTC): lambda c: 2 * c,
    ("norm", Layout.BCL): lambda c: 2 * c,
    ("linear_lowrank", Layout.BC): lambda c: 2 * c * max(1, c // 8),
    ("mlp", Layout.BTC): lambda c: 2 * c + 2 * c * c + 2 * c + 2 * c * c + c,
    ("self_attention", Layout.BTC): lambda c: 2 * c + 3 * c * c + c * c + c,
    ("depthwise", Layout.BTC): lambda c: 2 * c + 3 * c + c * c + c,
    ("conv_light", Layout.BTC): lambda c: 2 * c + 3 * c * c + c,
    ("attention", Layout.BCL): lambda c: 2 * c * max(1, c // 4) + max(1, c // 4) + c,
    ("depthwise", Layout.BCL): lambda c: 3 * c + c * c + 2 * c,
    ("conv_light", Layout.BCL): lambda c: 3 * c * c + 2 * c,
    ("conv_heavy", Layout.BCL): lambda c: 6 * c * c + 4 * c,
}


def seed_of(name: str, layout: Layout, channels: int = 16, *, causal: bool = False) -> nn.Module:
    return build_seed(name, layout, channels, causal, generator(channels))


@torch.no_grad()
def scrambled(module: nn.Module) -> nn.Module:
    noise = generator(5)
    for parameter in module.parameters():
        parameter.add_(0.5 * torch.randn(parameter.shape, generator=noise))
    return module


@pytest.mark.parametrize(("name", "layout"), ALL)
def test_new_seed_is_exactly_the_identity(name: str, layout: Layout) -> None:
    for channels in CHANNELS:
        shape = [channels if size == 16 else size for size in SHAPES[layout]]
        x = torch.randn(shape, generator=generator())
        assert torch.equal(seed_of(name, layout, channels)(x), x)
        assert not torch.equal(scrambled(seed_of(name, layout, channels))(x), x)


@pytest.mark.parametrize(("name", "layout"), PARAMETERS)
def test_parameter_count_equals_closed_form(name: str, layout: Layout) -> None:
    for channels in CHANNELS:
        count = sum(parameter.numel() for parameter in seed_of(name, layout, channels).parameters())
        assert count == PARAMETERS[name, layout](channels)


class NoiseSeed(nn.Module):
    """A seed with values of its own, and a buffer that its forward pass enlarges."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(channels))
        self.register_buffer("seen", torch.rand(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.seen = torch.cat((self.seen, x.mean()[None]))
        return x * self.scale.view(-1, *[1] * (x.dim() - 2))


@pytest.mark.parametrize(("name", "layout"), [*ALL, ("test_only", Layout.BC), ("test_only", Layout.BCHW)])
def test_seed_planted_again_keeps_addresses_and_equals_a_new_one(
    name: str, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Implementation(NoiseSeed, "always", None)
    monkeypatch.setitem(BLUEPRINTS, "test_only", {Layout.BC: own, Layout.BCHW: own})
    slot = Slot(site("mid", 16, layout=layout), GateConfig())
    addresses: list[int] = []
    for random_seed in (3, 4):
        slot.germinate(name, Blend.GATE, AlphaCurve.LINEAR, 3, 1.0, generator(random_seed))
        seed, gate = slot.planted
        if random_seed == 3:
            addresses = [parameter.data_ptr() for parameter in slot.parameters()]
            scrambled(slot)
            slot.stage = Stage.BLENDING
            slot.eval()(torch.randn(SHAPES[layout], generator=generator()), 0.5)
            slot.remove_seed("test")
            assert not [*slot.parameters(), *slot.buffers()]
            assert copy.deepcopy(slot).kept.get_seed(name, None, training=False) is not seed
            slot.train().reset()
    assert seed.training
    assert gate.training
    assert [parameter.data_ptr() for parameter in slot.parameters()] == addresses
    other = generator(4)
    fresh = build_seed(name, layout, 16, False, other)
    initial_gate = BlendGate(16, layout)
    initialise_(initial_gate, generator(int(torch.randint(2**62, (), generator=other))))
    for planted, expected in ((seed, fresh), (gate, initial_gate)):
        found = dict([*planted.named_parameters(), *planted.named_buffers()])
        torch.testing.assert_close(
            found, dict([*expected.named_parameters(), *expected.named_buffers()]), rtol=0, atol=0
        )


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("blend", [style.blend for style in BLEND_STYLES[1:]])
@pytest.mark.parametrize("layout", [Layout.BTC, Layout.TBC])
def test_causal_seed_and_blend_never_look_ahead(name: str, blend: Blend, layout: Layout) -> None:
    """A change of position t leaves all earlier outputs equal to the bit, and changes a later one."""
    slot = Slot(site("mid", 16, layout=layout, is_causal=True), GateConfig())
    grow(slot, Stage.PROBATIONARY, name, blend, seed=3)
    scrambled(slot)
    x_BTC = torch.randn(2, 9, 16, generator=generator())
    changed_BTC = x_BTC.clone()
    changed_BTC[:, 5] += 1.0
    before, after = (layout.to_canonical(slot(layout.from_canonical(x), 0.7)) for x in (x_BTC, changed_BTC))
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.equal(before[:, 5:], after[:, 5:])


def test_attention_that_is_not_causal_looks_ahead() -> None:
    seed = scrambled(seed_of("self_attention", Layout.BTC))
    x_BTC = torch.randn(2, 9, 16, generator=generator())
    changed_BTC = x_BTC.clone()
    changed_BTC[:, 5] += 1.0
    assert not torch.equal(seed(x_BTC)[:, :5], seed(changed_BTC)[:, :5])


def test_gate_that_pools_is_not_offered_to_causal_sites() -> None:
    gated = [style.blend is Blend.GATE for style in BLEND_STYLES]
    assert site("a", 4, layout=Layout.BCL, is_causal=True).styles == tuple(not gate for gate in gated)
    assert all(site("a", 4, layout=Layout.BTC, is_causal=True).styles)
    assert all(site("a", 4, layout=Layout.BCHW).styles)


def test_low_rank_and_mlp_equal_their_formulas() -> None:
    x = torch.randn(4, 16, generator=generator())
    low_rank = scrambled(seed_of("linear_lowrank", Layout.BC))
    assert isinstance(low_rank, LowRankSeed)
    torch.testing.assert_close(low_rank(x), x + x @ (low_rank.up.weight @ low_rank.down.weight).T)
    mlp = scrambled(seed_of("mlp", Layout.BC))
    assert isinstance(mlp, MlpSeed)
    hidden = F.gelu(
        F.linear(F.layer_norm(x, (16,), mlp.norm.weight, mlp.norm.bias), mlp.hidden.weight, mlp.hidden.bias)
    )
    torch.testing.assert_close(mlp(x), x + F.linear(hidden, mlp.out.weight, mlp.out.bias))


@pytest.mark.parametrize("causal", [False, True])
def test_attention_equals_multihead_attention_of_pytorch(causal: bool) -> None:
    seed = scrambled(seed_of("self_attention", Layout.BTC, 32, causal=causal))
    assert isinstance(seed, SelfAttentionSeed)
    assert seed.heads == 2
    theirs = nn.MultiheadAttention(32, seed.heads, bias=True, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(seed.project_in.weight)
        theirs.out_proj.load_state_dict(seed.project_out.state_dict())
    x_BTC = torch.randn(2, 6, 32, generator=generator())
    mask = torch.triu(torch.ones(6, 6, dtype=torch.bool), 1) if causal else None
    normed = seed.norm(x_BTC)
    mixed, _ = theirs(normed, normed, normed, attn_mask=mask, need_weights=False)
    torch.testing.assert_close(seed(x_BTC), x_BTC + mixed, rtol=1e-4, atol=1e-5)


def test_causal_convolution_reads_the_present_and_two_earlier_positions() -> None:
    seed = scrambled(seed_of("conv_light", Layout.BTC, 4, causal=True))
    assert isinstance(seed, TokenConvSeed)
    x_BTC = torch.randn(1, 5, 4, generator=generator())
    normed_TC = seed.norm(x_BTC)[0]
    padded = torch.cat((torch.zeros(2, 4), normed_TC))
    bias = seed.conv.bias
    assert bias is not None
    expected: list[Tensor] = [
        sum((seed.conv.weight[:, :, k] @ padded[t + k] for k in range(3)), start=bias) for t in range(5)
    ]
    torch.testing.assert_close(seed(x_BTC)[0], x_BTC[0] + F.silu(torch.stack(expected)))


def test_user_blueprint_keeps_its_own_initial_values() -> None:
    @blueprint("test_only", "BC", causal="always")
    class Own(nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.randn(channels))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.scale

    try:
        first, again, other = (build_seed("test_only", Layout.BC, 4, False, generator(n)) for n in (1, 1, 2))
        assert isinstance(first, Own)
        assert torch.equal(next(first.parameters()), next(again.parameters()))
        assert not torch.equal(next(first.parameters()), next(other.parameters()))
        with torch.device("meta"):  # as a harvest does before it loads the weights
            shapes = build_seed("test_only", Layout.BC, 4, False, generator(1))
        assert [(value.shape, value.is_meta) for value in shapes.parameters()] == [
            (value.shape, True) for value in first.parameters()
        ]
        with pytest.raises(ValueError, match="already registered for BC"):
            blueprint("test_only", "BC")(Own)
        with pytest.raises(ValueError, match="did you mean BTC"):
            blueprint("test_only", "BTX")(Own)
    finally:
        del BLUEPRINTS["test_only"]


def test_own_seed_with_a_last_layer_at_zero_begins_as_the_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.last = starts_at_zero(nn.Linear(channels, channels))

        def forward(self, x: Tensor) -> Tensor:
            return x + self.last(x.tanh())

    monkeypatch.setitem(BLUEPRINTS, "test_only", {})
    blueprint("test_only", "BC")(Own)
    x = torch.randn(SHAPES[Layout.BC], generator=generator())

    assert torch.equal(build_seed("test_only", Layout.BC, 16, False, generator())(x), x)


def test_frozen_parameters_of_a_seed_belong_to_its_state() -> None:
    """They are drawn when the seed germinates, unlike those of the host, which is built again."""

    @blueprint("test_only", "BCHW")
    class RandomFeatures(nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.features = nn.Parameter(torch.randn(channels, 1, 1), requires_grad=False)
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            return x + self.features * self.scale

    try:
        first, second = network(("mid",)).eval(), network(("mid",)).eval()
        grow(first.slots[0], Stage.FOSSILIZED, "test_only", scramble=False)
        second.slots[0].load_lifecycle_state(first.slots[0].lifecycle_state())
        load_tensors(second.state_tensors(), first.state_tensors())
        assert torch.equal(first(pictures(), first.alphas()), second(pictures(), second.alphas()))
    finally:
        del BLUEPRINTS["test_only"]


@pytest.mark.parametrize("layout", [Layout.TBC, Layout.BHWC])
def test_layout_conversion_round_trip_and_equal_result(layout: Layout) -> None:
    """A slot on a transposed layout computes the same as on the canonical one."""
    canonical = layout.canonical
    one, other = (Slot(site("mid", 16, layout=kind), GateConfig()) for kind in (canonical, layout))
    for slot in (one, other):
        grow(slot, Stage.PROBATIONARY, "conv_light", Blend.GATE)
    x = torch.randn(SHAPES[canonical], generator=generator())
    assert torch.equal(layout.to_canonical(layout.from_canonical(x)), x)
    torch.testing.assert_close(layout.to_canonical(other(layout.from_canonical(x), 0.5)), one(x, 0.5))


@pytest.mark.parametrize("name", ["cull", "wait", "my seed", "conv:1", "a@b", "a,b", "a=b", ""])
def test_blueprint_whose_name_a_plan_cannot_contain_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="the name must not be that of an op"):
        blueprint(name, "BC")(nn.Identity)
    assert name not in BLUEPRINTS
