"""Which tests run a line, measured with coverage.py and kept until the package or the tests change."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from coverage import CoverageData

from tests.mutants.changes import Change
from tests.mutants.tree import TreeCopy

_SETTINGS = """\
[run]
core = ctrace
parallel = true
sigterm = true
patch = _exit
data_file = {root}/../data
include = {root}/src/*
context = ${{PYTEST_CURRENT_TEST-}}
"""
"""Settings of coverage.py. The lines of a process belong to the test that starts it, which pytest names there."""


class CoverageMap:
    """Which tests run a line. Measures what was not measured before, which may take as long as the tests.

    Args:
        tree: The tree; its `.pytest_cache` keeps the measurements.
        copy: Copy of the tree, in which tests run.
        paths: Files and directories of tests, relative to the tree.
    """

    def __init__(self, tree: Path, copy: TreeCopy, paths: Sequence[str]) -> None:
        self.seconds: dict[str, float] = {}
        """Duration of each test that passes."""
        self._root = copy.root
        self._measured: list[CoverageData] = []
        cache = tree / ".pytest_cache" / "mutants"
        cache.mkdir(parents=True, exist_ok=True)
        for directory, files in _by_directory(copy.root, paths).items():
            lines_file = cache / f"{directory.replace('/', '.')}-{_digest(copy.root, files)}.coverage"
            times_file = lines_file.with_suffix(".json")
            if not times_file.exists():
                print(f"measuring {len(files)} test files of {directory}", file=sys.stderr, flush=True)
                times_file.write_text(json.dumps(_measure(copy, files, lines_file)))
            if lines_file.exists():
                self.seconds |= json.loads(times_file.read_text())
                self._measured.append(_read(lines_file))

    def tests_of(self, change: Change) -> list[str]:
        """Return the tests that run a change, the fastest first.

        Tests run no line that was run at import. Those of an assignment are the tests that run a line with its name, in
        the same file or else anywhere; those of another line are the tests that run any line of the file.
        """
        if change.reach:
            found = self._tests(change.file, change.reach)
        elif not change.names:
            found = self._tests(change.file, None)
        else:
            name = re.compile(rf"\b({'|'.join(change.names)})\b")
            found = self._tests(change.file, _matching_lines(self._root / change.file, name))
            if not found:
                for path in (self._root / "src").rglob("*.py"):
                    found |= self._tests(str(path.relative_to(self._root)), _matching_lines(path, name))
        return sorted(found & self.seconds.keys(), key=lambda test: self.seconds[test])

    def _tests(self, file: str, lines: Iterable[int] | None) -> set[str]:
        """Return the tests that run one of the lines of a file; any line for None."""
        found: set[str] = set()
        for data in self._measured:
            contexts = data.contexts_by_lineno(file)
            for line in contexts if lines is None else lines:
                found.update(context.rpartition(" (")[0] or context for context in contexts.get(line, ()))
        return found


def _matching_lines(path: Path, pattern: re.Pattern[str]) -> list[int]:
    return [number for number, line in enumerate(path.read_text().splitlines(), 1) if pattern.search(line)]


def _by_directory(root: Path, paths: Sequence[str]) -> dict[str, list[str]]:
    """Return the test files of each directory of tests."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in paths:
        for file in [root / path] if (root / path).is_file() else (root / path).rglob("test_*.py"):
            found[str(file.parent.relative_to(root))].add(str(file.relative_to(root)))
    return {directory: sorted(files) for directory, files in sorted(found.items())}


def _digest(root: Path, files: Sequence[str]) -> str:
    """Return a digest of the package, of the test files, and of all that they may import."""
    digest = hashlib.sha256()
    own = Path(__file__).parent.name
    helpers = (
        path for path in (root / "tests").rglob("*.py") if not path.name.startswith("test_") and path.parent.name != own
    )
    for path in sorted([*(root / "src").rglob("*.py"), *helpers, *(root / file for file in files)]):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _read(file: Path) -> CoverageData:
    data = CoverageData(str(file))
    data.read()  # else the first use erases it
    return data


def _measure(copy: TreeCopy, files: Sequence[str], target: Path) -> dict[str, float]:
    """Run tests, write which lines each runs, and return the duration of each that passes."""
    settings = copy.root.parent / "coverage.ini"
    settings.write_text(_SETTINGS.format(root=copy.root))
    run = copy.run_tests(files, COVERAGE_PROCESS_START=str(settings))
    if run.code not in {0, 1}:
        raise RuntimeError(f"the tests cannot run without a change:\n{copy.output.read_text()[-2000:]}")
    lines = CoverageData(str(target))
    for part in copy.root.parent.glob("data.*"):
        data = _read(part)
        lines.update(data, map_path=lambda path: str(Path(path).relative_to(copy.root)))
        data.close()
        part.unlink()
    lines.close()
    for test in run.failed:
        print(f"left out, because it fails without a change: {test}", file=sys.stderr)
    return {test: seconds for test, seconds in run.seconds.items() if test not in run.failed}
