import itertools

import pytest
import torch

from esper.common.domain import Stage
from esper.networks.seeds.blend import Blend
from esper.networks.seeds.lifecycle import GateConfig
from esper.networks.seeds.network import GrowingNetwork
from esper.networks.tasks.builtin.conv_host import ConvHost
from tests.networks.seeds.hosts import generator, grow, network, pictures, site


def warmed(net: GrowingNetwork) -> GrowingNetwork:
    """Return `net` in evaluation mode, with batch-norm statistics other than the initial ones."""
    net.train()
    with torch.no_grad():
        net(pictures(32, seed=9), net.alphas())
    return net.eval()


def test_network_rejects_unknown_modules() -> None:
    host = ConvHost(in_channels=1, widths=(4, 8), kernel_size=1, pools=2, pool_before="conv", classes=10)
    with pytest.raises(AttributeError, match="7"):
        GrowingNetwork(host, [site("late", 16, module="segments.7")], GateConfig())


@pytest.mark.parametrize("slots", [("only",), ("early", "mid", "late"), ("a", "b", "c", "d", "e")])
def test_forward_ablations_equals_separate_forwards(slots: tuple[str, ...]) -> None:
    net = network(slots)
    blends = itertools.cycle(Blend)
    stages = itertools.cycle((Stage.PROBATIONARY, Stage.FOSSILIZED, Stage.BLENDING))
    for i, slot in enumerate(net.slots):
        grow(slot, next(stages), blend=next(blends), target=0.7, seed=10 * i)
    net = warmed(net).double()
    x, alphas = pictures().double(), net.alphas()
    indices = range(len(slots))
    with torch.no_grad():
        for size in range(len(slots) + 1):
            for ablate in itertools.combinations(indices, size):
                shared = net.forward_ablations(x, alphas, ablate)
                assert [output.shape for output in shared] == [(6, 10)] * (1 + size)
                torch.testing.assert_close(shared[0], net(x, alphas))
                for v, i in enumerate(ablate, start=1):
                    without = [0.0 if j == i else alpha for j, alpha in enumerate(alphas)]
                    naive = net(x, without)
                    assert not torch.allclose(naive, shared[0])
                    torch.testing.assert_close(shared[v], naive)


@pytest.mark.parametrize("slots", [("early", "mid", "late"), ("a", "b", "c", "d", "e")])
def test_forward_subsets_equals_separate_forwards(slots: tuple[str, ...]) -> None:
    net = network(slots)
    blends = itertools.cycle(Blend)
    for i, slot in enumerate(net.slots):
        grow(slot, Stage.PROBATIONARY, blend=next(blends), target=0.7, seed=10 * i)
    net = warmed(net).double()
    x, alphas = pictures().double(), net.alphas()
    with torch.no_grad():
        for chosen in ((), (1,), (0, len(slots) - 1), tuple(range(len(slots)))):
            shared = net.forward_subsets(x, alphas, chosen)
            assert [output.shape for output in shared] == [(6, 10)] * 2 ** len(chosen)
            for index, logits in enumerate(shared):
                off = {slot for bit, slot in enumerate(chosen) if index >> bit & 1}
                naive = net(x, [0.0 if i in off else alpha for i, alpha in enumerate(alphas)])
                torch.testing.assert_close(logits, naive)
                assert not off or not torch.allclose(logits, shared[0])


def test_counterfactual_forwards_compute_prefix_once() -> None:
    net = network()
    for slot in net.slots:
        grow(slot, Stage.PROBATIONARY)
    net = warmed(net)
    rows: list[int] = []
    assert isinstance(net.host, ConvHost)
    for segment in net.host.segments:
        segment.register_forward_pre_hook(lambda module, args: rows.append(len(args[0])))
    net.forward_ablations(pictures(), net.alphas(), [1, 2])
    assert rows == [6, 6, 12]
    rows.clear()
    net.forward_subsets(pictures(), net.alphas(), [0, 1, 2])
    assert rows == [6, 12, 24]


@pytest.mark.parametrize("blend", Blend)
@pytest.mark.parametrize("poison", [None, float("nan")])
def test_training_seed_leaves_host_bit_equal(blend: Blend, poison: float | None) -> None:
    """Values and gradients are bit-equal with and without a seed in TRAINING, even if it is NaN."""
    plain, seeded = network(), network()
    for i in (0, 2):
        grow(seeded.slots[i], Stage.TRAINING, blend=blend)
        if poison is not None:
            with torch.no_grad():
                next(seeded.slots[i].parameters()).fill_(poison)
    x = pictures(16)
    results = []
    for net in (plain.train(), seeded.train()):
        logits = net(x, [0.0, 0.0, 0.0])
        logits.square().sum().backward()
        results.append(logits)
    assert torch.equal(*results)
    for mine, other in zip(plain.host_parameters(), seeded.host_parameters(), strict=True):
        assert mine.grad is not None
        assert other.grad is not None
        assert torch.equal(mine.grad, other.grad)
    for key, value in plain.state_dict().items():
        assert torch.equal(value, seeded.state_dict()[key]), key


@pytest.mark.parametrize("blend", Blend)
def test_training_seed_gets_gradient_with_detached_input(blend: Blend) -> None:
    net = network()
    slot = net.slots[1]
    grow(slot, Stage.TRAINING, blend=blend, scramble=False)
    slot.train()
    features = torch.randn(5, 8, 4, 4, generator=generator(), requires_grad=True)
    slot(features, 0.0).square().sum().backward()
    assert features.grad is not None
    assert torch.equal(features.grad, 2 * features.detach())
    gradients = [parameter.grad for parameter in slot.parameters()]
    assert any(gradient is not None and gradient.any() for gradient in gradients)


@pytest.mark.parametrize("stage", [Stage.GERMINATED, Stage.TRAINING])
def test_unblended_seed_is_not_called_in_eval_mode(stage: Stage) -> None:
    net = network()
    plain = warmed(net)(pictures(), net.alphas())
    grow(net.slots[0], stage)
    assert net.slots[0].seed is not None
    net.slots[0].seed.register_forward_pre_hook(lambda module, args: pytest.fail("the seed was called"))
    assert torch.equal(net(pictures(), [1.0, 1.0, 1.0]), plain)


def test_new_seed_leaves_output_unchanged_when_blending_starts() -> None:
    for blend in Blend:
        net = network()
        plain = warmed(net)(pictures(), net.alphas())
        grow(net.slots[1], Stage.BLENDING, blend=blend, scramble=False)
        assert net.alphas()[1] > 0
        torch.testing.assert_close(net(pictures(), net.alphas()), plain)


def test_parameters_belong_to_host_or_exactly_one_slot() -> None:
    net = network()
    grow(net.slots[0], Stage.FOSSILIZED, "conv_light")
    grow(net.slots[2], Stage.TRAINING, "conv_small", Blend.GATE)
    groups = [net.host_parameters(), *(list(net.slots[i].parameters()) for i in range(3))]
    identities = [id(parameter) for group in groups for parameter in group]
    assert len(identities) == len(set(identities)) == len(list(net.parameters()))
    seeds = (9 * 4 * 4 + 2 * 4) + (16 * 16 + 2 * 16) + (16 * 8 + 8 + 8 + 1)
    assert net.parameter_ratio == (net.host_parameter_count + seeds) / net.host_parameter_count
    for slot in net.slots:
        slot.reset()
    assert net.parameter_ratio == 1.0
    assert len(list(net.parameters())) == len(net.host_parameters())
