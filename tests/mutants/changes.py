"""The changes that make mutants of a source file. Each changes one expression or statement and no line number."""

from __future__ import annotations

import ast
import re
from collections import Counter
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

_OTHER_OPERATORS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "and": "or", "or": "and",
    "is": "is not", "is not": "is", "in": "not in", "not in": "in",
}  # fmt: skip
_OPERATOR = re.compile(r"[\s)]*(?P<operator>[<>=!]=?|is\s+not|is|not\s+in|in|and|or)[\s(]*")
_UNCHANGED_ARGUMENTS = {"daemon", "strict"}
"""Keyword arguments whose change tests can hardly notice."""


@dataclass(frozen=True)
class Change:
    """A change of one place of a source file."""

    file: str
    """Path of the file, relative to the tree."""
    line: int
    function: str
    """Qualified name of the function or class; empty at the top of the module."""
    source: str
    """Text of the line."""
    before: str
    after: str
    occurrence: int = 0
    """Number of earlier changes that are equal to this one in function and texts."""
    span: tuple[int, int] = (0, 0)
    """Bytes of the file that are replaced."""
    reach: tuple[int, ...] = ()
    """A test must run one of these lines; empty for a change at the top of a module or class, which an import runs."""
    names: tuple[str, ...] = ()
    """Names that the statement assigns."""

    @property
    def key(self) -> tuple[str, str, str, str, int]:
        """Identity of the change in another state of the code, where files and lines have moved."""
        return self.function, self.source, self.before, self.after, self.occurrence

    def apply(self, source: bytes) -> bytes:
        """Return the changed source, which has as many lines."""
        start, end = self.span
        removed_lines = source[start:end].count(b"\n") - self.after.count("\n")
        text, closing = (self.after[:-1], ")") if self.after.endswith(")") else (self.after, "")
        return source[:start] + (text + "\n" * removed_lines + closing).encode() + source[end:]


def changes_of(file: str, source: str) -> list[Change]:
    """Return all changes of a source file, in their order in the file."""
    finder = _Finder(file, source.encode())
    finder.visit(ast.parse(source))
    counts: Counter[tuple[str, str, str, str, int]] = Counter()
    found: list[Change] = []
    for change in sorted(finder.changes, key=lambda change: change.span):
        found.append(replace(change, occurrence=counts[change.key]))
        counts[change.key] += 1
    return found


class _Finder(ast.NodeVisitor):
    """Collects changes. Strings, annotations, decorators, assertions and raised errors stay as they are."""

    def __init__(self, file: str, source: bytes) -> None:
        self.changes: list[Change] = []
        self._file = file
        self._source = source
        self._lines = source.splitlines(keepends=True)
        self._starts = [0, *accumulate(map(len, self._lines))]
        self._scope: list[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef] = []
        self._reach = self._names = ()

    # Places

    def visit(self, node: ast.AST) -> None:
        """Visit a node. The names are those of the visited syntax."""
        if isinstance(node, ast.stmt):
            is_in_function = bool(self._scope) and not isinstance(self._scope[-1], ast.ClassDef)
            body: list[ast.stmt] = getattr(node, "body", [])
            end = body[0].lineno if body else (node.end_lineno or node.lineno) + 1
            self._reach = tuple(range(node.lineno, max(end, node.lineno + 1))) if is_in_function else ()
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            self._names = tuple(target.id for target in targets if isinstance(target, ast.Name))
        super().visit(node)

    def _visit_scope(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        if node.name == "__repr__":
            return
        if not isinstance(node, ast.ClassDef):
            self._reach = tuple(range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1))
            for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
                self.visit(default)
        self._scope.append(node)
        for statement in node.body:
            self.visit(statement)
        self._scope.pop()

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _visit_scope

    # Nodes without changes

    def _skip(self, node: ast.AST) -> None:
        """Leave a node as it is."""

    visit_JoinedStr = visit_Raise = visit_Assert = visit_MatchValue = _skip

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg not in _UNCHANGED_ARGUMENTS:
            self.generic_visit(node)

    # Nodes with changes

    def visit_Compare(self, node: ast.Compare) -> None:
        self._change_operators([node.left, *node.comparators])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self._change_operators(node.values)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self._change(node, repr(not value))
        elif isinstance(value, int | float):
            self._change(node, repr(value + 1 if isinstance(value, int) else value * 2 or 1.0))

    def _visit_condition(self, node: ast.If | ast.While | ast.IfExp | ast.comprehension) -> None:
        for test in node.ifs if isinstance(node, ast.comprehension) else [node.test]:
            is_comparison = isinstance(test, ast.Compare) and len(test.ops) == 1  # whose operator is changed
            if not is_comparison and not (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"):
                self._change(test, f"(not ({self._text(test)}))")
        self.generic_visit(node)

    visit_If = visit_While = visit_IfExp = visit_comprehension = _visit_condition

    def visit_Return(self, node: ast.Return) -> None:
        is_falsy = isinstance(node.value, ast.Constant) and not node.value.value  # callers treat it like None
        if node.value is not None and not is_falsy:
            self._change(node, "return None")
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        called = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(called, ast.Call):
            self._change(node, "pass")
        self.generic_visit(node)

    def _change_operators(self, operands: list[ast.expr]) -> None:
        for left, right in pairwise(operands):
            start, end = self._span(left)[1], self._span(right)[0]
            match = _OPERATOR.fullmatch(self._source[start:end].decode())
            if match is not None:  # else a comment stands between them
                span = start + match.start("operator"), start + match.end("operator")
                self._add(right.lineno, span, _OTHER_OPERATORS[" ".join(match["operator"].split())])

    def _change(self, node: ast.expr | ast.stmt, after: str) -> None:
        self._add(node.lineno, self._span(node), after)

    def _add(self, line: int, span: tuple[int, int], after: str) -> None:
        scope = ".".join(node.name for node in self._scope)
        source = self._lines[line - 1].decode().strip()
        before = self._source[slice(*span)].decode()
        self.changes.append(
            Change(self._file, line, scope, source, before, after, span=span, reach=self._reach, names=self._names)
        )

    def _text(self, node: ast.expr) -> str:
        return self._source[slice(*self._span(node))].decode()

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self._starts[node.lineno - 1] + node.col_offset,
            self._starts[node.end_lineno - 1] + node.end_col_offset,
        )
