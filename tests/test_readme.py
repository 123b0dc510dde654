"""The one-liners of the README, as they stand there, over the recording that ships with the package."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import zstandard

ROOT = Path(__file__).parent.parent
LINES = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
DUCKDB = [line.removeprefix('duckdb -c "').removesuffix('"') for line in LINES if line.startswith('duckdb -c "')]
JQ = [line.partition(" | ") for line in LINES if " | jq " in line]


def test_there_are_one_liners() -> None:
    assert len(DUCKDB) == len(JQ) == 2


@pytest.mark.parametrize("query", DUCKDB)
def test_duckdb_reads_a_recording_as_it_is(query: str, monkeypatch: pytest.MonkeyPatch) -> None:
    duckdb = pytest.importorskip("duckdb")
    monkeypatch.chdir(ROOT)

    rows = duckdb.sql(query).fetchall()

    assert len(rows) > 3
    assert all(value is not None for row in rows for value in row)


def test_duckdb_takes_the_words_for_numbers_that_are_not_finite(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    words = ('"NaN"', "0.5", '"Infinity"', '"-Infinity"')
    lines = "".join(f'{{"type":"EpisodeEnded","round":1,"accuracy":{word}}}\n' for word in words)
    (tmp_path / "events-00001.jsonl").write_text(lines)

    query = DUCKDB[-1].replace("telemetry/demo", str(tmp_path)).replace("median(accuracy)", "list(accuracy)")

    [(_, values, _)] = duckdb.sql(query).fetchall()
    assert repr(values) == "[nan, 0.5, inf, -inf]"


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
@pytest.mark.parametrize(("source", "filtering"), [(source, filtering) for source, _, filtering in JQ])
def test_jq_reads_a_recording_line_by_line(source: str, filtering: str) -> None:
    assert source.split()[0] in ("tail", "zstdcat")
    [file] = (ROOT / "telemetry" / "demo").glob("*.zst")
    plain = zstandard.ZstdDecompressor().stream_reader(file.read_bytes(), read_across_frames=True).read()

    done = subprocess.run(["bash", "-c", filtering], input=plain, capture_output=True, check=False)

    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.count(b"\n") > 3
