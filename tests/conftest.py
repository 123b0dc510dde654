"""What every test runs under: one intra-op thread, as in a lane, and masks that are checked."""

import pytest
import torch

from esper.policy import distributions


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _validated_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributions, "validate", True)
