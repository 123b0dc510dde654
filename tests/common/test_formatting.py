"""Words and tables as text."""

from __future__ import annotations

from esper.common.formatting import pluralise


def test_counts_of_one_are_singular() -> None:
    assert [pluralise(count, "env") for count in (0, 1, 2)] == ["0 envs", "1 env", "2 envs"]
    assert [pluralise(count, "quantity", "quantities") for count in (1, 2)] == ["1 quantity", "2 quantities"]
