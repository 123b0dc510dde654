"""Growths on noise, through `esper.grow`: they must not name a better network."""

from __future__ import annotations

import pytest
from benchmarks import calibration

UNLUCKY = (21, 22, 37, 1014, 1019)
"""Random seeds of growths on random labels, which also draw the data. With the hosts as the only source of chance, all
of these growths name a better network on the machine on which they were found."""


@pytest.mark.slow
def test_growths_on_random_labels_name_no_better_network() -> None:
    answers = [calibration.grow("random_labels", number, "score", trials=6, steps=8) for number in UNLUCKY]
    assert sum(bool(answer.hosts_only) for answer in answers) >= 3
    assert not any(answer.named for answer in answers)
