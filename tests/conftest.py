"""Settings of all tests: one intra-op thread, as in a lane; validated masks; repeatable, untimed properties; and, for
programs that tests start, the environment of a user.
"""

import gc
import os
import signal

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

# Absent for users: pytest -n sets the terminal size, and without stored bytecode, every program compiles torch again.
for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED", "COLUMNS", "LINES"):
    os.environ.pop(name, None)
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:  # under nohup: programs started by tests would inherit it
        signal.signal(number, handler)
# Properties read and write files and train, on machines that run other work: their duration means nothing.
settings.register_profile(
    "search", deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
# The examples are the same in every run; search for new ones with --hypothesis-profile=search.
settings.register_profile("thorough", settings.get_profile("search"), derandomize=True, max_examples=100)
settings.register_profile("quick", settings.get_profile("thorough"), max_examples=20)
settings.load_profile("quick")


def pytest_configure(config: pytest.Config) -> None:
    """Search properties with many examples among the slow tests."""
    if _runs_slow_tests(config) and not config.getoption("hypothesis_profile", None):
        settings.load_profile("thorough")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run the properties again among the slow tests."""
    if _runs_slow_tests(config):
        for item in items:
            if is_hypothesis_test(getattr(item, "obj", None)):
                item.add_marker(pytest.mark.slow)


def _runs_slow_tests(config: pytest.Config) -> bool:
    return config.getoption("markexpr") == "slow"


def pytest_collection_finish() -> None:
    """Collect garbage rarely, without the modules and the collected tests: it is a third of the dashboard's time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000)


def pytest_sessionfinish() -> None:
    """Collect garbage once at the end: pytest collects it five times, which takes seconds, if nothing is frozen."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    import torch  # not at the top: pytest -n also loads this file into the process that runs no test

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _own_caches(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Give the tests a cache of their own in place of the user's."""
    directory = tmp_path_factory.getbasetemp() / "cache"
    for module in ("history.run_cache", "effects.store"):
        monkeypatch.setattr(f"esper.recordings.{module}.user_cache_path", lambda _: directory)


@pytest.fixture(autouse=True)
def _validated_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esper.training.policy.masks.validate_masks", True)
