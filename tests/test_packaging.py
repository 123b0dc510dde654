"""Packaging: the wheel contains all files that the program needs, and runs in a clean environment."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

from esper.cli.assistant import PAGES
from esper.common.domain import VERSION
from esper.studies.harvest.structure import CARD_FILE, PROGRAM_FILE, STRUCTURE_FILE, WEIGHTS_FILE

HARVEST = (CARD_FILE, STRUCTURE_FILE, WEIGHTS_FILE, PROGRAM_FILE)
ROOT = Path(__file__).parent.parent
TIMEOUT = 600
"""Timeout in seconds; includes the download of torch without a cache."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("uv") is None, reason="uv builds and installs the wheel, and is not on the PATH"),
]


def uv(*arguments: object, cwd: Path = ROOT) -> None:
    command = ["uv", "--no-progress", *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    uv("build", "--wheel", "--out-dir", folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the interpreter of a fresh environment with the wheel and its dependencies in the tested versions."""
    environment = tmp_path_factory.mktemp("installed") / "venv"
    uv("venv", "--python", "3.11", environment)
    interpreter = environment / "bin" / "python"
    # uv reads the version constraints from the pyproject.toml in its working directory.
    uv("pip", "install", "--python", interpreter, wheel)
    return interpreter


def test_wheel_contains_data_files(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        files = set(archive.namelist())
        licence = archive.read("esper/networks/tasks/data/LICENCE.txt").decode()
    themes = {f"esper/themes/{path.name}" for path in (ROOT / "themes").glob("*.toml")}
    assert themes
    demos = {
        f"esper/{name}/{path.name}"
        for name in ("demo", "demo-faults")
        for path in (ROOT / "telemetry" / name).iterdir()
    }
    assert {"esper/demo/run.json", "esper/demo/what-if.jsonl", "esper/demo-faults/run.json"} <= demos
    source = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src" / "esper").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert {"esper/py.typed", "esper/networks/tasks/data/digits.npz", "esper/sanctum/sanctum.tcss"} <= source
    pages = {f"esper/docs/{page}.md" for page in PAGES}
    assert {*themes, *demos, *pages, *source} <= files
    assert "CC BY 4.0" in licence
    assert not [
        file for file in files if file.startswith(("tests/", "benchmarks/", "research/")) or file.endswith(".pyc")
    ]


def test_sdist_holds_documentation_and_its_tests(tmp_path: Path) -> None:
    uv("build", "--sdist", "--out-dir", tmp_path)
    (built,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(built) as archive:
        files = {name.partition("/")[2] for name in archive.getnames()}
    pages = {str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.*")]}
    assert "docs/overview.svg" in pages
    assert {*pages, "tests/test_docs.py", "benchmarks/engine.py", "research/generalist.py", ".ci/run"} <= files


def test_wheel_metadata_is_complete(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (file for file in archive.namelist() if file.endswith(".dist-info/METADATA"))
        described = message_from_string(archive.read(metadata).decode())
        scripts = archive.read(metadata.replace("METADATA", "entry_points.txt")).decode()
    assert (described["Name"], described["Version"]) == ("esper-sanctum", VERSION)
    assert "Typing :: Typed" in described.get_all("Classifier", [])
    assert described["Requires-Python"] == ">=3.11"
    assert "esper-sanctum = esper.__main__:run" in scripts
    readme = described.get_payload()
    assert isinstance(readme, str)
    assert "# Esper Sanctum" in readme
    assert "![" not in readme  # an index cannot show a picture of the repository


def test_installed_program_trains_in_another_directory(python: Path, tmp_path: Path) -> None:
    program = python.with_name("esper-sanctum")
    options = ("--no-tui", "--rounds", "1", "--envs", "2", "--steps", "2")
    done = subprocess.run(
        [program, *options], cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    (directory,) = (tmp_path / "telemetry").iterdir()
    assert f"run {directory.name}: done" in done.stdout


def test_installed_dashboard_has_themes_and_layout(python: Path, tmp_path: Path) -> None:
    script = "from esper.sanctum.theme import load_themes; from esper.sanctum.app import SanctumApp\n"
    script += "assert SanctumApp.CSS_PATH.exists(); print(*load_themes())"
    done = subprocess.run([python, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert set(done.stdout.split()) >= {path.stem for path in (ROOT / "themes").glob("*.toml")}


def test_installed_program_has_its_demo(python: Path, tmp_path: Path) -> None:
    program = python.with_name("esper-sanctum")
    command = [program, "demo", "--no-tui"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("run digits_impaired-")


def test_installed_program_trains_and_grows_an_example(python: Path, tmp_path: Path) -> None:
    """The file alone, outside the repository; fewer samples and steps than documented."""
    example = "squeezenet.py"
    shutil.copy(ROOT / "examples" / example, tmp_path)
    options = ("--no-tui", "--rounds", "1", "--envs", "2", "--steps", "2", "--training.samples-per-epoch", "64")
    command = [python.with_name("esper-sanctum"), *options, "--task", example]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    grow = ("grow", "--no-tui", "--envs", "2", "--steps", "2", "--training.samples-per-epoch", "64", "--to", "grown")
    command = [python.with_name("esper-sanctum"), *grow, "--task", example]
    grown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert (grown.returncode, grown.stderr) == (0, "")
    assert {path.name for path in (tmp_path / "grown").iterdir()} == set(HARVEST)


GROWS = "esper.grow(task)"
"""The call of the examples, which takes minutes with the larger model."""


@pytest.mark.parametrize("example", ["squeezenet.py", "small_gpt.py"])
def test_example_grows_a_network_and_trains_it_further(example: str, python: Path, tmp_path: Path) -> None:
    """With an installed wheel, outside the repository: the small model as documented, the other with a small budget."""
    text = (ROOT / "examples" / example).read_text()
    if example == "squeezenet.py":
        assert GROWS in text
        text = text.replace(GROWS, 'esper.grow(task, envs=2, steps=2, trials=2, training={"samples-per-epoch": 64})')
    (tmp_path / example).write_text(text)
    done = subprocess.run([python, example], cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "epoch 2: training loss" in done.stdout
    (directory,) = tmp_path.glob("grown_*")
    assert {path.name for path in directory.iterdir()} == set(HARVEST)
