"""A copy of a tree, in which tests run on changed code."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.mutants import plugin
from tests.mutants.changes import Change


class TestRun(NamedTuple):
    """A run of pytest."""

    __test__ = False
    code: int | None
    """Exit code; None if the time was up."""
    collected: int
    """Number of tests; 0 if they could not be collected."""
    seconds: dict[str, float]
    """Duration of each test, in the order of their runs."""
    failed: list[str]
    """Tests that failed."""


class TreeCopy:
    """A copy of `src` and `tests` of a tree, in a folder where everything else is a link.

    Args:
        folder: Directory for the copy and the files of its tests' runs.
    """

    def __init__(self, tree: Path, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "tree"
        self.root.mkdir()
        for path in tree.iterdir():
            if path.name in {"src", "tests"}:
                shutil.copytree(path, self.root / path.name, ignore=shutil.ignore_patterns("__pycache__"))
            elif path.name != ".git":
                (self.root / path.name).symlink_to(path)
        own = self.root / "tests" / "mutants"  # an older tree lacks the plugin
        own.mkdir(exist_ok=True)
        for file in ("__init__.py", Path(plugin.__file__).name):
            shutil.copy(Path(__file__).with_name(file), own)
        self.output = folder / "output.txt"
        """Output of the last run of pytest."""
        self._modified = time.time()

    @contextmanager
    def changed(self, change: Change) -> Iterator[None]:
        """Apply a change, and take it back at the end."""
        path = self.root / change.file
        original = path.read_bytes()
        self._write(path, change.apply(original))
        try:
            yield
        finally:
            self._write(path, original)

    def _write(self, path: Path, content: bytes) -> None:
        path.write_bytes(content)
        self._modified += 2  # Python uses the bytecode that it stored for a file of the same size and second
        os.utime(path, (self._modified, self._modified))

    def can_import(self, file: str) -> bool:
        """Return True if a file of the package can be imported."""
        module = ".".join(Path(file).with_suffix("").parts[1:])
        command = [sys.executable, "-c", f"import {module}"]
        return subprocess.run(command, env=self._environment({}), capture_output=True, check=False).returncode == 0

    def run_tests(self, arguments: Sequence[str], timeout: float | None = None, **variables: str) -> TestRun:
        """Run pytest.

        Args:
            timeout: Seconds after which pytest and its children are killed.
            variables: Further environment variables.
        """
        report = self.folder / "report.jsonl"
        report.write_text("")
        command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", plugin.__name__, "-p", "no:cacheprovider"]
        environment = self._environment({**variables, plugin.REPORT: str(report)})
        code = None
        with (
            self.output.open("wb") as output,
            subprocess.Popen(
                [*command, *arguments],
                cwd=self.root,
                env=environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            ) as process,
        ):
            try:
                code = process.wait(timeout)
            except BaseException as error:
                os.killpg(process.pid, signal.SIGKILL)
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
        return _read_report(code, [json.loads(line) for line in report.read_text().splitlines()])

    def _environment(self, further: dict[str, str]) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
        return {**inherited, "PYTHONPATH": str(self.root / "src"), **further}


def _read_report(code: int | None, lines: list[dict[str, Any]]) -> TestRun:
    seconds: dict[str, float] = {}
    for line in lines[1:]:
        seconds[line["test"]] = seconds.get(line["test"], 0.0) + line["seconds"]
    failed = [line["test"] for line in lines[1:] if line["failed"]]
    return TestRun(code, lines[0]["collected"] if lines else 0, seconds, failed)
