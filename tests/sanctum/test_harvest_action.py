"""The harvest key, over the recording of a real run."""

from __future__ import annotations

from pathlib import Path

import pytest

from esper.cli.main import main
from esper.cli.options import EXIT_OK
from esper.recordings.history.history import open_history
from esper.sanctum.app import SanctumApp
from esper.sanctum.screens.dialogs import ChoiceDialog
from esper.studies.harvest.structure import PROGRAM_FILE, read_structure
from tests.factory import example_run
from tests.sanctum.driving import has_left, live, notices, opened, replay_of, screen_text, until

SIZE = (80, 24)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two rounds with a checkpoint after each."""
    directory = tmp_path_factory.mktemp("runs")
    options = ("--task", "digits", "--policy", "full", "--training.samples-per-epoch", "128", "--checkpoint-every", "1")
    size = ("--envs", "2", "--steps", "6", "--rounds", "2", "--devices", "cpu:0")
    assert main(["--no-tui", *size, *options, "--telemetry-dir", str(directory)]) == EXIT_OK
    (only,) = directory.iterdir()
    return only


def dashboard(run: Path, round_number: int) -> SanctumApp:
    """A replay at the end of a round."""
    app, playback = replay_of(open_history(run), env=1)
    playback.seek_end()
    for _ in range(2 - round_number):
        playback.step_round(-1)
    return app


@pytest.mark.slow
async def test_harvest_writes_the_env_as_it_was_at_the_moment_on_the_screen(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app = dashboard(run, 1)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("E")
        await until(pilot, lambda: isinstance(app.screen, ChoiceDialog))
        text = screen_text(app)
        assert "Harvest env 01 at round 1 step 6, the newest checkpoint?" in " ".join(text.split())
        await pilot.press("enter")
        await until(pilot, lambda: any("Harvested to" in notice for notice in notices(app)))
    target = tmp_path / f"{run.name}-env01-round001-step006"
    provenance = read_structure(target).provenance
    assert (provenance.env, provenance.round, provenance.step) == (1, 1, 6)
    assert (target / PROGRAM_FILE).exists()


async def test_harvest_that_fails_says_why(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    target = tmp_path / f"{run.name}-env01-round002-step006"
    target.mkdir()
    (target / "mine").touch()
    app = dashboard(run, 2)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("E")
        assert isinstance(app.screen, ChoiceDialog)
        await pilot.press("escape")
        await pilot.pause()
        assert not isinstance(app.screen, ChoiceDialog)
        assert not notices(app)
        await pilot.press("E", "h")
        await until(pilot, lambda: any("The harvest failed" in notice for notice in notices(app)))
        assert "is not empty" in notices(app)[-1]
        app.clear_notifications()
        missing = [str(tmp_path / "no-such-python")]
        monkeypatch.setattr("esper.sanctum.actions.harvest.python_command", lambda *_: (missing, {}))
        await pilot.press("E", "enter")
        await until(pilot, lambda: any("The harvest failed" in notice for notice in notices(app)))
        assert "No such file" in notices(app)[-1]
        assert not has_left(app)
    assert [path.name for path in target.iterdir()] == ["mine"]
    assert list(tmp_path.glob("*env01*")) == [target]


async def test_harvest_needs_a_checkpoint() -> None:
    app, _ = live(example_run())
    async with opened(app, size=SIZE) as pilot:
        await pilot.press("E")
        assert "There is no checkpoint from before this moment. Press c to write one." in notices(app)


async def test_own_task_of_a_recording_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = tmp_path / "runs"
    options = ("--task", "tests.networks.tasks.real_models:lstm", "--policy", "static", "--devices", "cpu:0")
    size = ("--envs", "1", "--steps", "1", "--rounds", "1", "--telemetry-dir", str(runs))
    assert main(["--no-tui", *size, *options]) == EXIT_OK
    (run,) = runs.iterdir()
    app = dashboard(run, 2)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("E")
        assert not isinstance(app.screen, ChoiceDialog)
        (notice,) = notices(app)
        assert "Command copied, to run in a terminal: esper-sanctum harvest" in notice
        assert "--task tests.networks.tasks.real_models:lstm" in notice
