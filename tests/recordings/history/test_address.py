"""Addresses survive formatting and parsing; invalid ones are rejected with one sentence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.common.configuration.config import ConfigError
from esper.recordings.history.address import MOMENT_KEYS, ViewAddress, parse_address

RUNS = st.text(st.characters(blacklist_categories=("Cs",)), min_size=1)
ADDRESSES = st.builds(
    ViewAddress,
    RUNS,
    st.builds("{}:{}".format, st.sampled_from(MOMENT_KEYS), st.integers(0, 10**9)),
    st.none() | st.integers(0, 999),
    st.none() | st.sampled_from(["overview", "env"]),
)


@given(ADDRESSES)
def test_address_round_trip_is_equal(address: ViewAddress) -> None:
    assert parse_address(str(address)) == address


def test_address_accepts_common_spellings() -> None:
    assert parse_address("night#step=812&env=17&view=numerics") == ViewAddress("night", "step:812", 17, "numerics")
    assert str(ViewAddress("night", "step:812", 17, "numerics")) == "night#step=812&env=17&view=numerics"
    assert parse_address("runs/night") == ViewAddress("runs/night")
    assert str(ViewAddress("my runs/#1 50%", "step:2")) == "my%20runs/%231%2050%25#step=2"
    assert parse_address("a#b#env=3") == ViewAddress("a#b", None, 3, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("night#", "invalid part '' in 'night#'; expected an address such as RUN#step=812"),
        ("night#step=x", "'step=x' of"),
        ("night#setp=3", "unknown key in 'setp=3' of 'night#setp=3'; did you mean step?"),
        ("night#env=-1", "invalid value in 'env=-1' of 'night#env=-1'; env must be a whole number"),
        ("night#step=²", "'step=²' of"),
        ("night#env=1&env=2", "contains env twice; remove one"),
        ("night#step=1&round=2", "contains two moments, round and step; remove one"),
        ("night#step", "'step' in"),
    ],
)
def test_invalid_address_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_address(text)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
