"""Draws mutants: `python -m tests.mutants --number 100 --seed 1`.

A mutant is the package with one change: another comparison or constant, a negated condition, None in place of a
returned value, or a call left out. The tests that run the changed line should notice it. A mutant that survives shows a
line whose effect no test asserts, or a change without effect.

Tests run in a copy of the tree. A first run measures which tests run which lines (`coverage_map.py`).
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from esper.common.printed_table import PrintedTable
from tests.mutants import plugin
from tests.mutants.changes import Change, changes_of
from tests.mutants.coverage_map import CoverageMap
from tests.mutants.tree import TreeCopy

START_S = 60.0
"""Seconds for the start of pytest, after which a mutant counts as a hang."""
SLOWDOWN = 5.0
"""Factor on the measured duration of the tests of a mutant, after which it counts as a hang."""
FOUND, SURVIVED, NOT_COVERED, GONE = "found", "survived", "no test covers it", "gone"


class Result(NamedTuple):
    """Result of a mutant."""

    change: Change
    verdict: str
    test: str
    """The test that found it."""
    seconds: float

    def row(self) -> dict[str, Any]:
        """Return the row of the file of results."""
        change = self.change
        return {
            "file": change.file,
            "line": change.line,
            "key": change.key,
            "verdict": self.verdict,
            "test": self.test,
            "seconds": round(self.seconds, 1),
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw mutants or repeat those of a file, and print their results."""
    options = _parser().parse_args(arguments)
    tree = options.tree.resolve()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = TreeCopy(tree, Path(folder))
        files = [str(file) for file in options.files] or _package_files(tree)
        known = [change for file in files for change in changes_of(file, (tree / file).read_text())]
        coverage = CoverageMap(tree, copy, options.tests)
        if options.repeat is None:
            results = draw(copy, coverage, known, options.number, options.seed, options.limit)
        else:
            results = repeat(copy, coverage, known, options.repeat, options.limit)
        done: list[Result] = []
        for result in results:
            done.append(result)
            print(
                f"{len(done)}. {result.change.file}:{result.change.line} {result.verdict}", file=sys.stderr, flush=True
            )
            if options.save is not None:
                with options.save.open("a") as file:
                    file.write(json.dumps(result.row()) + "\n")
    print("\n".join(report(done)))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description="Draw mutants and run their tests.")
    parser.add_argument("--number", type=int, default=100, help="number of mutants (default: 100)")
    parser.add_argument("--seed", type=int, default=0, help="random seed of the draw (default: 0)")
    parser.add_argument("--files", nargs="+", default=[], metavar="FILE", help="files to change (default: all of src)")
    parser.add_argument("--tests", nargs="+", default=["tests"], metavar="PATH", help="tests to run (default: all)")
    parser.add_argument(
        "--limit", type=float, default=60.0, metavar="S", help="seconds of tests per mutant (default: 60)"
    )
    parser.add_argument("--save", type=Path, metavar="FILE", help="append the results to a file, for --from")
    parser.add_argument(
        "--from", dest="repeat", type=Path, metavar="FILE", help="repeat the mutants of a file of --save"
    )
    parser.add_argument(
        "--tree", type=Path, default=Path(__file__).parents[2], help="checkout to test (default: this one)"
    )
    return parser


def _package_files(tree: Path) -> list[str]:
    return sorted(str(path.relative_to(tree)) for path in (tree / "src").rglob("*.py"))


def draw(
    copy: TreeCopy, coverage: CoverageMap, known: Sequence[Change], number: int, seed: int, limit: float
) -> Iterator[Result]:
    """Yield the results of mutants that can be imported, at most one of each line."""
    changed: set[tuple[str, int]] = set()
    for change in random.Random(seed).sample(known, len(known)):
        if len(changed) == number:
            return
        if (change.file, change.line) not in changed:
            result = run_mutant(copy, coverage, change, limit)
            if result is not None:
                changed.add((change.file, change.line))
                yield result


def repeat(
    copy: TreeCopy, coverage: CoverageMap, known: Sequence[Change], results: Path, limit: float
) -> Iterator[Result]:
    """Yield the results of the mutants of a file, where the code still exists."""
    for line in results.read_text().splitlines():
        row = json.loads(line)
        file, key = Path(row["file"]), tuple(row["key"])
        same = [change for change in known if change.key == key]
        # Files move: the same path is best, then the same name.
        same.sort(key=lambda change: (change.file != row["file"], Path(change.file).name != file.name))
        result = run_mutant(copy, coverage, same[0], limit) if same else None
        yield result or Result(Change(row["file"], row["line"], *key), GONE, "", 0.0)


def run_mutant(copy: TreeCopy, coverage: CoverageMap, change: Change, limit: float) -> Result | None:
    """Run the tests of a mutant, and return the result; None if the changed file cannot be imported.

    Args:
        limit: Seconds. The fastest tests that take as long together are run, and at least one.
    """
    start = time.monotonic()
    tests, seconds = [], 0.0
    for test in coverage.tests_of(change):
        seconds += coverage.seconds[test]
        if tests and seconds > limit:
            break
        tests.append(test)
    with copy.changed(change):
        if not change.reach and not copy.can_import(change.file):
            return None
        if not tests:
            return Result(change, NOT_COVERED, "", 0.0)
        files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
        tests.sort(key=lambda test: files.index(test.partition("::")[0]))  # the fixtures of a file are made once
        selected = copy.root.parent / "selected.json"
        selected.write_text(json.dumps(tests))
        run = copy.run_tests(["-x", *files], START_S + SLOWDOWN * seconds, **{plugin.SELECTED_TESTS: str(selected)})
    if not run.collected:
        return None
    verdict = SURVIVED if run.code == 0 else FOUND
    ended = "the time was up" if run.code is None else f"pytest ended with {run.code}"
    test = "" if run.code == 0 else run.failed[0] if run.failed else f"{ended}, after {list(run.seconds)[-1:]}"
    return Result(change, verdict, test, time.monotonic() - start)


def report(results: Sequence[Result]) -> Iterator[str]:
    """Yield the lines of the table of mutants, and the sums."""
    cells = [
        (
            result.change.file,
            str(result.change.line),
            f"{_short(result.change.before)} → {_short(result.change.after)}",
            result.test if result.verdict == FOUND else result.verdict,
            f"{result.seconds:.0f}",
        )
        for result in results
    ]
    yield from PrintedTable.from_cells(("file", "line", "change", "found by", "s"), cells, right={1, 4}).lines()
    counts = Counter(result.verdict for result in results)
    yield ""
    sums = (f"{counts[verdict]} {verdict}" for verdict in (FOUND, SURVIVED, NOT_COVERED, GONE))
    yield f"{len(results)} mutants: {', '.join(sums)}"


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 40 else f"{text[:39]}…"


if __name__ == "__main__":
    sys.exit(main())
