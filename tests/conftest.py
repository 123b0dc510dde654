"""What every test runs under: one intra-op thread, as in a lane, masks that are checked, properties that repeat and are
not timed, and for programs the environment that users have.
"""

import os
import signal

import pytest
import torch
from hypothesis import HealthCheck, settings

from esper.policy import masks

for name in ("PYTHONUNBUFFERED", "COLUMNS", "LINES"):  # users do not have them; pytest -n sets the size of a terminal
    os.environ.pop(name, None)
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:  # as under nohup: then programs that tests start would ignore it too
        signal.signal(number, handler)
# They read and write files and train, beside other tests and on machines that others use too: their time says nothing.
settings.register_profile(
    "search", deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
# What fails for one fails for all, and again: new examples are looked for with --hypothesis-profile=search.
settings.register_profile("repeatable", settings.get_profile("search"), derandomize=True)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _validated_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "validate_masks", True)
