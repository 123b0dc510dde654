"""Architecture: allowed imports, and limits on the size of files and functions."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from esper.cli.commands import COMMANDS
from esper.sanctum.bindings import SCREEN_INFO

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
FILE_LINES, FUNCTION_LINES = 600, 60


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the name and the length of every function of a file, including decorators and docstring."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            yield f"{name(path)}:{node.lineno} {node.name}", node.end_lineno - first + 1


def test_imports_obey_the_layer_contracts() -> None:
    """Run import-linter on the contracts in pyproject.toml."""
    linter = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    done = subprocess.run([*linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "0 broken" in done.stdout


def test_files_have_at_most_600_lines() -> None:
    assert len(SOURCES) > 50
    lengths = {name(path): path.read_text().count("\n") for path in SOURCES}
    assert {file: length for file, length in lengths.items() if length > FILE_LINES} == {}


def test_functions_have_at_most_60_lines() -> None:
    lengths = dict(function for path in SOURCES for function in functions(path))
    assert len(lengths) > 400
    assert {function: length for function, length in lengths.items() if length > FUNCTION_LINES} == {}


def modules(*packages: str) -> list[str]:
    """Return the dotted names of all modules of some packages."""
    found = [path.relative_to(ROOT / "src").with_suffix("") for path in SOURCES]
    dotted = [".".join(path.parts).removesuffix(".__init__") for path in found]
    return [module for module in dotted if any(f"{module}.".startswith(f"esper.{package}.") for package in packages)]


@pytest.mark.parametrize(
    ("packages", "forbidden"),
    [
        (
            ("telemetry", "health", "recording", "history", "attach", "control", "config", "engine.thread", "cli"),
            {"torch", "textual"},
        ),
        (("sanctum",), {"torch"}),
        (("tasks.registry", "tasks.settings", "checkpoint.manifest", "checkpoint.catalog"), {"torch", "textual"}),
    ],
)
def test_fast_commands_import_no_slow_library(packages: tuple[str, ...], forbidden: set[str]) -> None:
    """Import in a fresh interpreter, because the contracts do not see imports made by other libraries."""
    chosen = modules(*packages)
    assert len(chosen) >= len(packages)
    script = f"import sys, {', '.join(chosen)}; print(*{forbidden} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_commands_and_screens_are_imported_on_demand() -> None:
    """The first frame of a replay waits only for the modules it needs."""
    waiting = {f"esper.cli.commands.{target.split(':')[0]}" for target in COMMANDS.values()}
    waiting |= {f"esper.sanctum.screens.{place}" for place in SCREEN_INFO}
    script = f"import sys, esper.cli.main, esper.sanctum.app; print(*{waiting} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
