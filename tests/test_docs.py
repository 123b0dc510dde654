"""README, CONTRIBUTING, CHANGELOG and docs/: their commands run, their options and links exist."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path

import pytest
import zstandard

from esper.cli.main import main
from esper.common.domain import VERSION
from esper.networks.seeds.blueprints import BLUEPRINTS
from tests.doc_tables import COMMAND, PAGE, render

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
}
BLOCKS = [block for page in PAGES.values() for block in re.findall(r"(?ms)^```\w*\n(.*?)^```", page)]
LINES = [line for block in BLOCKS for line in block.replace("\\\n", " ").splitlines()]
DUCKDB = [line.removeprefix('duckdb -c "').removesuffix('"') for line in LINES if line.startswith('duckdb -c "')]
JQ = [line.partition(" | ") for line in LINES if " | jq " in line]
PYTHON = re.findall(r"(?ms)^```python\n(.*?)^```", PAGES["docs/recordings.md"])
PROGRAM = re.compile(r"(?:^|\s)(?:esper-sanctum|-m esper)(?:\s|$)(.*)")
CALLS = sorted({found[1].strip() for line in LINES if (found := PROGRAM.search(line))})
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")


def test_readme_has_at_most_120_lines() -> None:
    assert len(README.splitlines()) <= 120


def test_citation_names_the_version_of_the_package() -> None:
    assert f"\nversion: {VERSION}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_readme_begins_with_the_two_commands() -> None:
    opening = README.partition("```\n")[2].splitlines()[:2]
    last_of_ci = (ROOT / ".ci" / "run").read_text().splitlines()[-1].replace(" --quiet", "")

    assert [line.partition("#")[0].strip() for line in opening] == [
        "pip install uv && uv run esper-sanctum",
        "pip install uv && uv run --group test pytest -n 2",
    ]
    assert opening[1].startswith(last_of_ci)


def test_dashboard_page_has_the_keys_and_symbols_of_the_code() -> None:
    page = PAGE.read_text(encoding="utf-8")

    assert page == render(page), f"{PAGE.name} is out of date: {COMMAND}"


def test_every_blueprint_has_its_row_and_its_layouts() -> None:
    table = PAGES["docs/your-own-network.md"].partition("| blueprint | ")[2].partition("\n\n")[0]
    headings, _, *rows = [[cell.strip() for cell in row.split("|")] for row in table.splitlines()]
    documented: dict[str, set[str]] = {}
    for _, names, *cells, _ in rows:
        for name in re.findall(r"`(\w+)`", names):
            documented[name] = {layout for layout, cell in zip(headings, cells, strict=False) if cell}
    built_in = {name: {layout.value for layout in layouts} for name, layouts in BLUEPRINTS.items()}
    assert documented == built_in


@pytest.mark.parametrize("name", PAGES)
def test_links_of_a_page_resolve(name: str) -> None:
    broken = []
    for link in LINK.findall(PAGES[name]):
        file, _, anchor = link.partition("#")
        if file.startswith(("http:", "https:")):
            continue
        target = (ROOT / name).parent / file if file else ROOT / name
        if not target.exists() or (anchor and anchor not in anchors(target.read_text(encoding="utf-8"))):
            broken.append(link)
    assert broken == []


def anchors(page: str) -> set[str]:
    """Return the fragments with which GitHub links to the headings of a page."""
    headings = re.findall(r"(?m)^#+ (.+)$", re.sub(r"(?ms)^```.*?^```", "", page))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", [name for name in PAGES if name.startswith("docs/log/")])
def test_log_entries_are_newest_first_and_follow_the_template(name: str) -> None:
    days = [int(day) for day in re.findall(r"(?m)^## (\d+) ", PAGES[name])]
    entries = re.split(r"(?m)^### ", PAGES[name])[1:]

    assert days == sorted(set(days), reverse=True)
    assert [
        title
        for entry in entries
        for title in [entry.partition("\n")[0]]
        if re.findall(r"(?m)^\*\*(\w+)\.\*\* ?", entry) != ["Question", "Runs", "Result", "Decision"]
    ] == []


def test_source_files_named_in_pages_exist() -> None:
    """Architecture and contributing pages name files relative to `src/esper/`, other pages relative to the root."""
    names = {name for page in PAGES.values() for name in re.findall(r"`([\w/]+/[\w/]+\.py)`", page)}

    assert len(names) > 40
    assert [
        name for name in sorted(names) if not (ROOT / name).exists() and not (ROOT / "src/esper" / name).exists()
    ] == []


def test_scripts_in_commands_exist() -> None:
    words = {word for line in LINES for word in line.split()}
    scripts = {word for word in words if re.fullmatch(r"(benchmarks|research|tests)/[\w/]+(\.py)?", word)}

    assert scripts
    assert [script for script in sorted(scripts) if not (ROOT / script).exists()] == []


def test_commands_are_documented() -> None:
    assert len(CALLS) > 25
    assert (len(DUCKDB), len(JQ), len(PYTHON)) == (6, 2, 3)


@pytest.mark.parametrize("call", CALLS)
def test_call_uses_known_commands_and_options(call: str) -> None:
    words = shlex.split(call.partition(" | ")[0], comments=True)
    command = words[:1] if words and not words[0].startswith("-") else []
    options = {word for word in words if word.startswith("--")}

    assert options <= known_options(*command)


@cache
def known_options(*command: str) -> set[str]:
    with redirect_stdout(StringIO()) as printed, pytest.raises(SystemExit) as ended:
        main([*command, "--help"])
    assert ended.value.code == 0
    return set(re.findall(r"--[\w.-]+", printed.getvalue()))


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory as in docs/recordings.md: `telemetry/demo-faults`, and its tables in `tables`."""
    pytest.importorskip("pyarrow")
    directory = tmp_path_factory.mktemp("docs")
    (directory / "telemetry").symlink_to(ROOT / "telemetry")
    options = ["--to", "parquet", "--out", str(directory / "tables")]
    assert main(["export", str(directory / "telemetry" / "demo-faults"), *options]) == 0
    return directory


@pytest.mark.parametrize("query", DUCKDB)
def test_duckdb_query_reads_a_recording(query: str, tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    duckdb = pytest.importorskip("duckdb")
    monkeypatch.chdir(tables)

    rows = duckdb.sql(query).fetchall()

    assert len(rows) > 1
    assert all(value is not None for row in rows for value in row)


@pytest.mark.parametrize("program", PYTHON)
def test_python_program_reads_a_recording(program: str, tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("polars", "pandas"):
        pytest.importorskip(package)
    monkeypatch.chdir(tables)
    with redirect_stdout(StringIO()) as printed:
        exec(compile(program, "program of the page", "exec"), {})
    assert printed.getvalue().count("\n") > 3


def test_duckdb_reads_non_finite_numbers(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    words = ('"NaN"', "0.5", '"Infinity"', '"-Infinity"')
    lines = "".join(f'{{"type":"EpisodeEnded","round":1,"score":{word}}}\n' for word in words)
    (tmp_path / "events-00001.jsonl").write_text(lines)

    query = DUCKDB[-1].replace("telemetry/demo-faults", str(tmp_path)).replace("median(score)", "list(score)")

    [(_, values, _)] = duckdb.sql(query).fetchall()
    assert repr(values) == "[nan, 0.5, inf, -inf]"


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
@pytest.mark.parametrize(("source", "filtering"), [(source, filtering) for source, _, filtering in JQ])
def test_jq_filter_reads_a_recording(source: str, filtering: str, tmp_path: Path) -> None:
    [file] = (ROOT / "telemetry" / "demo-faults").glob("*.zst")
    (tmp_path / "telemetry").mkdir()
    (tmp_path / "telemetry" / "demo-faults").symlink_to(file.parent)
    (tmp_path / "telemetry" / "RUN").mkdir()
    plain = zstandard.ZstdDecompressor().stream_reader(file.read_bytes(), read_across_frames=True).read()
    (tmp_path / "telemetry" / "RUN" / "events-00001.jsonl").write_bytes(plain)

    ended = subprocess.Popen(["true"])
    ended.wait()
    source = source.replace(" -f ", f" -f -s 0.1 --pid={ended.pid} ")  # or it would follow the file for ever
    done = subprocess.run(["bash", "-c", f"{source} | {filtering}"], cwd=tmp_path, capture_output=True, check=False)

    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.count(b"\n") > 3
