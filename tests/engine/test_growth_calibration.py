"""Growths on noise, through `esper.grow`: they must not name a better network."""

from __future__ import annotations

import pytest

from benchmarks import calibration

GROWTHS = 12


@pytest.mark.slow
def test_growths_on_random_labels_name_no_better_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """With few validation samples, a rule that knows only the hosts takes their accident for a property of a network."""
    monkeypatch.setitem(calibration.SPLITS, "random_labels", (512, 80))
    answers = [calibration.grow("random_labels", number, "score", trials=6, steps=8) for number in range(GROWTHS)]
    assert sum(bool(answer.hosts_only) for answer in answers) >= 2
    assert sum(bool(answer.named) for answer in answers) <= 1
