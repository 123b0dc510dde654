"""Tasks of these tests register blueprints, which other tests must not be offered."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from esper.networks.seeds.blueprints import BLUEPRINTS


@pytest.fixture(scope="module", autouse=True)
def _registered_blueprints() -> Iterator[None]:
    before = set(BLUEPRINTS)
    yield
    for name in BLUEPRINTS.keys() - before:
        del BLUEPRINTS[name]
