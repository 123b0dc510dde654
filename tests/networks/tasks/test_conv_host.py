"""The convolutional host of the built-in tasks."""

import pytest
import torch
import torch.nn.functional as F

from esper.networks.tasks.builtin.conv_host import ConvBlock, ConvHost, PoolBefore
from tests.networks.seeds.hosts import pictures


@pytest.mark.parametrize(("pool_before", "sizes"), [("conv", [8, 4, 2, 2]), ("norm", [4, 2, 2, 2])])
def test_conv_host_pools_the_given_number_of_times(pool_before: PoolBefore, sizes: list[int]) -> None:
    widths = (4, 4, 4, 4)
    host = ConvHost(in_channels=1, widths=widths, kernel_size=3, pools=2, pool_before=pool_before, classes=10)
    h = pictures()
    for segment, size in zip(host.segments, sizes, strict=True):
        h = segment(h)
        assert h.shape[2:] == (size, size)


def test_pool_before_norm_equals_pool_after_block() -> None:
    pooled, whole = ConvBlock(1, 4, 3, pool_before="norm"), ConvBlock(1, 4, 3, pool_before=None)
    whole.load_state_dict(pooled.state_dict())
    x = pictures()
    torch.testing.assert_close(pooled.eval()(x), F.max_pool2d(whole.eval()(x), 2))
