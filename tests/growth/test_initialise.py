import threading

import pytest
import torch
from torch import nn

from esper.growth.initialise import initialise, zero_start
from tests.growth.hosts import generator, network


def test_values_come_from_the_generator_alone() -> None:
    """Neither the global stream, nor the thread, nor what the module held before has a say."""
    torch.manual_seed(1)
    first = network(seed=7).state_dict()
    torch.manual_seed(2)
    torch.randn(100)
    others = []
    thread = threading.Thread(target=lambda: others.append(network(seed=7)))
    thread.start()
    thread.join()
    second = others[0]
    with torch.no_grad():
        for parameter in second.parameters():
            parameter.fill_(9.0)
    second.host.segments[0].norm.running_mean.fill_(5.0)
    second.reset(generator(7))
    for key, value in second.state_dict().items():
        assert torch.equal(value, first[key]), key


def test_building_and_germinating_leave_no_trace_of_the_global_stream() -> None:
    from esper.growth.stages import Stage
    from tests.growth.hosts import grow

    states = []
    for global_seed in (1, 2):
        torch.manual_seed(global_seed)
        net = network()
        grow(net.slots[0], Stage.GERMINATED)
        states.append(net.state_dict())
    assert states[0].keys() == states[1].keys()
    for key in states[0]:
        assert torch.equal(states[0][key], states[1][key]), key


def test_other_generators_give_other_values() -> None:
    one, other = network(seed=1), network(seed=2)
    assert not torch.equal(one.host_parameters()[0], other.host_parameters()[0])


def test_kaiming_bound_and_zero_start() -> None:
    plain, zero = nn.Conv2d(16, 64, 3), zero_start(nn.Conv2d(16, 64, 3))
    initialise(plain, generator())
    initialise(zero, generator())
    bound = (6 / (16 * 9)) ** 0.5
    assert 0.99 * bound < plain.weight.abs().max() <= bound
    assert plain.bias is not None
    assert not plain.bias.any()
    assert not zero.weight.any()


def test_unknown_layers_are_refused() -> None:
    with pytest.raises(TypeError, match="Embedding"):
        initialise(nn.Sequential(nn.ReLU(), nn.Embedding(3, 3)), generator())
