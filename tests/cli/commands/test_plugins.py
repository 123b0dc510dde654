"""A task, a policy and a blueprint of an installed package, and a policy file."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from esper.cli.main import main
from esper.cli.options import EXIT_FAILED, EXIT_OK, EXIT_USAGE
from esper.networks.seeds.blueprints import BLUEPRINTS
from esper.recordings import events as ev
from tests.runs import only_run, recorded

PLUGIN = Path(__file__).parents[2] / "plugin"
SHORT = ("--no-tui", "--envs", "1", "--steps", "3", "--rounds", "1", "--devices", "cpu:0")


BROKEN = """
number = 3

def fails(**options):
    return options["rent"]

def lacks_options(sites):
    return None

def makes_nothing(**options):
    return None
"""


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put the package on the path, and remove what it registers."""
    monkeypatch.syspath_prepend(str(PLUGIN))
    monkeypatch.chdir(tmp_path)
    yield
    BLUEPRINTS.pop("plugin_gain", None)
    for name in ("esper_plugin", "own_policy"):
        sys.modules.pop(name, None)


def planted(run: Path) -> set[str | None]:
    return {event.blueprint for event in recorded(run) if isinstance(event, ev.SeedMoved)}


def test_task_policy_and_blueprint_of_a_package_are_found(tmp_path: Path) -> None:
    assert main([*SHORT, "--task", "plugin_signs", "--policy", "plugin_first"]) == EXIT_OK
    assert planted(only_run(tmp_path)) == {"plugin_gain"}
    assert main(["evaluate", "--checkpoint", "last", "--task", "plugin_signs", "--episodes", "2", "--policies",
                 "static", "plugin_first", "--devices", "cpu:0"]) == EXIT_OK  # fmt: skip


def test_policy_file_runs_and_must_be_named_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("own_policy.py").write_text("from esper_plugin import FirstSlot as policy\n")
    assert main([*SHORT, "--task", "plugin_signs", "--policy", "own_policy.py"]) == EXIT_OK
    assert planted(only_run(tmp_path)) == {"plugin_gain"}
    capsys.readouterr()
    resume = ("--no-tui", "--resume", "last", "--rounds", "2", "--task", "plugin_signs")
    assert main([*resume]) == EXIT_USAGE
    assert "uses the policy own_policy.py; name it again: --policy own_policy.py" in capsys.readouterr().err
    assert main([*resume, "--policy", "own_policy.py"]) == EXIT_OK


@pytest.mark.parametrize(
    ("policy", "sentence"),
    [
        ("heuristik", "unknown policy 'heuristik'; did you mean heuristic?"),
        ("missing.py", "--policy missing.py: no such file"),
        ("own_policy.py:nothing", "has no attribute 'nothing'"),
        ("own_policy.py:number", "number is a int, not a function or class"),
        ("own_policy.py:fails", "KeyError: 'rent' ("),
        ("own_policy.py:lacks_options", "TypeError: lacks_options() got an unexpected keyword argument"),
        ("own_policy.py:makes_nothing", "NoneType lacks the methods begin_round, act, "),
    ],
)
def test_policy_that_cannot_be_used_is_refused(policy: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("own_policy.py").write_text(BROKEN)
    assert main([*SHORT, "--policy", policy]) == EXIT_USAGE
    text = capsys.readouterr().err
    assert sentence in text
    assert text.count("\n") == 1


def test_fault_of_a_policy_ends_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    Path("own_policy.py").write_text(
        "from esper_plugin import FirstSlot\n\n\nclass policy(FirstSlot):\n    def act(self, step, views):\n"
        "        return views[7]\n"
    )
    assert main([*SHORT, "--task", "plugin_signs", "--policy", "own_policy.py"]) == EXIT_FAILED
    error = capsys.readouterr().err
    assert "the policy failed: IndexError: list index out of range" in error
    assert "Traceback" not in error


def test_policy_of_the_documentation_runs(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "your-own-network.md").read_text()
    program = re.search(r"(?ms)^```python\n# my_policy.py\n(.*?)^```", page)
    assert program
    Path("own_policy.py").write_text(program.group(1))
    assert (
        main([*SHORT, "--task", "digits", "--policy", "own_policy.py", "--training.host-learning-rate", "5"]) == EXIT_OK
    )
    assert planted(only_run(tmp_path))
