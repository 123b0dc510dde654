"""Docstrings below the fields of structs. Python discards them, so they are read from the source."""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from collections.abc import Iterator

import msgspec


def field_docstrings(struct: type[msgspec.Struct]) -> dict[str, str]:
    """Return the docstring of each field that has one, keyed by field; those of inherited fields come first."""
    classes = struct.__mro__[: struct.__mro__.index(msgspec.Struct)]
    documented = (_docstrings_of(base.__module__)[base.__name__] for base in reversed(classes))
    return {field: text for texts in documented for field, text in texts.items()}


@functools.cache
def _docstrings_of(module: str) -> dict[str, dict[str, str]]:
    """Return the docstrings of the fields of a module, keyed by class and field."""
    body = ast.parse(inspect.getsource(sys.modules[module])).body
    return {node.name: dict(_docstrings_in(node)) for node in body if isinstance(node, ast.ClassDef)}


def _docstrings_in(body: ast.ClassDef) -> Iterator[tuple[str, str]]:
    name = None
    for node in body.body:
        match node:
            case ast.AnnAssign(target=ast.Name(id=name)):
                pass
            case ast.Expr(value=ast.Constant(value=str(text))) if name is not None:
                yield name, inspect.cleandoc(text)
            case _:
                name = None
