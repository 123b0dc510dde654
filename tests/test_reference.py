"""The reference of `esper`: an entry, a docstring and an example for each name, and examples that run."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import subprocess
import sys
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest

import esper

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
NAMES = sorted(dir(esper))
_BEFORE, *_PARTS = re.split(r"(?m)^::: esper\.(\w+)$", PAGE)
ENTRIES = dict(zip(_PARTS[::2], _PARTS[1::2], strict=True))
"""Text below the directive of each name, up to the next name."""


def test_reference_has_an_entry_for_each_name() -> None:
    assert sorted(ENTRIES) == NAMES


def test_each_entry_has_an_example() -> None:
    assert [name for name, text in ENTRIES.items() if "\n```pycon\n>>> " not in text] == []


@pytest.mark.parametrize("name", NAMES)
def test_docstring_describes_each_argument(name: str) -> None:
    docstring = written_docstring(name)

    assert docstring
    undescribed = [argument for argument in arguments(name) if not re.search(rf"(?m)^ +{argument}: ", docstring)]
    assert undescribed == []


def written_docstring(name: str) -> str:
    """Return the docstring in the source: of a constant, the text below it. A dataclass without one makes one up."""
    value = getattr(esper, name)
    if inspect.isclass(value) or inspect.isfunction(value):
        docstring = vars(value)["__doc__"] or "" if inspect.isclass(value) else value.__doc__ or ""
        return "" if docstring.startswith(f"{name}(") else docstring
    stub = ast.parse((ROOT / "src" / "esper" / "__init__.pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    [module] = [node.module for node in imports if any(alias.name == name for alias in node.names)]
    spec = find_spec(f"esper.{module}")
    assert spec is not None
    assert spec.origin is not None
    body = ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body
    [below] = [after for node, after in pairwise(body) if ast.unparse(node).startswith(f"{name} = ")]
    return str(below.value.value) if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) else ""


def arguments(name: str) -> list[str]:
    value = getattr(esper, name)
    if inspect.isclass(value) and dataclasses.is_dataclass(value):
        return [field.name for field in dataclasses.fields(value)]
    return list(inspect.signature(value).parameters) if inspect.isfunction(value) else []


@pytest.mark.slow
def test_examples_run(tmp_path: Path) -> None:
    """In a process of its own, because they register a blueprint and change what is imported."""
    for file, text in re.findall(r"(?ms)^```python\n# (\w+\.py)\n(.*?)^```", PAGE):
        (tmp_path / file).write_text(text, encoding="utf-8")
    examples = "\n".join(re.findall(r"(?ms)^```pycon\n(.*?)^```", PAGE))
    (tmp_path / "examples.txt").write_text(examples, encoding="utf-8")

    command = [sys.executable, "-m", "doctest", "-o", "ELLIPSIS", "examples.txt"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
