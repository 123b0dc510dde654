"""Architecture: allowed imports, limits on the size of files and functions, and names in prose that exist."""

from __future__ import annotations

import ast
import builtins
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from esper.cli.commands import COMMANDS
from esper.sanctum.keys import SCREEN_INFO

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
FILE_LINES, FUNCTION_LINES = 600, 60


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def nodes(path: Path) -> list[ast.AST]:
    """Return all nodes of the syntax tree of a file."""
    return list(ast.walk(ast.parse(path.read_text())))


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the name and the length of every function of a file, including decorators and docstring."""
    for node in nodes(path):
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
            (
                *("recordings", "common.control", "common.configuration", "training.engine.thread", "cli"),
                *("networks.tasks.registry", "networks.tasks.settings"),
            ),
            {"torch", "textual", "optuna"},
        ),
        (("sanctum",), {"torch", "optuna"}),
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


# Names in docstrings and comments

REFERENCE = re.compile(r"`((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?:\(\))?`")
OTHER_LIBRARIES = {"argparse", "torch", "nn", "F"}
OTHER_NAMES = {
    *("decision_tempo_choice", "linear_add"),  # built from parts
    *("compute_90", "sm_86", "sm_90a"),  # architectures of GPUs
    *("f5", "null", "rbf"),  # a key, a JSON value, a kernel
    *("Optimizer.step", "getpreferredencoding", "named_modules", "record_stream"),
}
FILE_SUFFIXES = {"json", "pt2", "py", "pyi", "tcss", "toml"}


def identifiers(node: ast.AST) -> set[str]:
    """Return the names that a node of a syntax tree contains itself, including strings that look like names."""
    match node:
        case ast.Name(id=found) | ast.Attribute(attr=found) | ast.arg(arg=found) | ast.keyword(arg=str(found)):
            return {found}
        case ast.FunctionDef(name=found) | ast.AsyncFunctionDef(name=found) | ast.ClassDef(name=found):
            return {found}
        case ast.alias(name=found, asname=alias):
            return {*found.split("."), alias or found}
        case ast.Constant(value=str(found)) if found.isidentifier():
            return {found}
    return set()


def references(path: Path) -> Iterator[str]:
    """Yield the names in backticks in the docstrings and comments of a file."""
    for node in nodes(path):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from REFERENCE.findall(node.value.value)
    for line in path.read_text().splitlines():
        yield from REFERENCE.findall(line.partition("#")[2])


def test_names_in_docstrings_and_comments_exist() -> None:
    """`Class.member` and `module.CONSTANT` must be names of that class or module; other names, of any file."""
    known, members = set(dir(builtins)), defaultdict[str, set[str]](set)
    for path in SOURCES:
        found = {word for node in nodes(path) for word in identifiers(node)}
        known |= {*found, *path.parts, path.stem}
        members[path.parent.name if path.stem == "__init__" else path.stem] |= found
        for node in nodes(path):
            if isinstance(node, ast.ClassDef):
                members[node.name] |= {word for part in ast.walk(node) for word in identifiers(part)}

    def exists(reference: str) -> bool:
        *owners, last = reference.split(".")
        if reference in OTHER_NAMES or last in FILE_SUFFIXES or (owners and owners[0] in OTHER_LIBRARIES):
            return True
        if owners and owners != ["esper"] and (owners[-1][0].isupper() or last[0].isupper()):
            return last in members.get(owners[-1], ())
        return {*owners, last} - OTHER_NAMES <= known

    found = {(name(path), reference) for path in SOURCES for reference in references(path)}
    assert len(found) > 500
    assert sorted((file, reference) for file, reference in found if not exists(reference)) == []
