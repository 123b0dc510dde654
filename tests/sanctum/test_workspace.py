"""The workspace: list, filter, groups, differences, notes, panes, run control, live runs."""

from __future__ import annotations

import errno
import math
import os
import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from textual.events import Key
from textual.pilot import Pilot
from textual.widgets import Input

import esper
from esper.common.control import RequestKind
from esper.common.intervals import t_quantile
from esper.common.score_scale import PERCENT, ScoreScale
from esper.recordings import events as ev
from esper.recordings.attach.client import RemoteRequestQueue
from esper.recordings.checkpoints.catalog import checkpoint_path
from esper.recordings.files.notes import BASELINE_TAG, RunNotes, read_notes, write_notes
from esper.recordings.files.run_directory import RunDirectory
from esper.recordings.files.run_lock import LOCK_FILE, RunLock
from esper.sanctum.app import WorkspaceApp
from esper.sanctum.screens.dialogs import ChoiceDialog
from esper.sanctum.screens.workspace import WorkspaceScreen
from esper.sanctum.screens.workspace_base import WorkspaceChartScreen
from esper.sanctum.screens.workspace_dialogs import KeyDialog, NotesDialog
from esper.sanctum.theme import DEFAULT_THEME
from esper.sanctum.widgets.overlay_chart import GroupLegend, OverlayChart, RunScatterChart, WorkspaceChart
from esper.sanctum.widgets.run_details import RunDetails
from esper.sanctum.widgets.run_list import RunFilterBox, RunList
from esper.sanctum.widgets.workspace_header import WorkspaceHeader
from esper.sanctum.workspace import Workspace
from esper.training.checkpoint.files import write_checkpoint
from tests.factory import example_run, stamp
from tests.faults.programs import example_checkpoint
from tests.recordings.files.recordings import lines, recording, write_segment
from tests.sanctum.driving import ROOMY, SIZE, notices, opened, press, screen_text, settle, shown, until

ROUNDS = 2
NOW = 1_790_000_000.0


def events_of(
    *, seed: int = 0, entropy: float = 0.02, shift: float = 0.0, rounds: int = ROUNDS, scale: ScoreScale = PERCENT
) -> list[ev.AnyEvent]:
    """Events of a run whose scores differ from those of `example_run` by a constant."""
    changed: list[ev.AnyEvent] = []
    for event in example_run(rounds=rounds):
        match event:
            case ev.RunStarted():
                config = {**event.config, "seed": seed, "task": event.task, "ppo": {"entropy-coef": entropy}}
                changed.append(msgspec.structs.replace(event, seed=seed, config=config, score_scale=scale))
            case ev.EnvStepped() | ev.EpisodeEnded():
                changed.append(msgspec.structs.replace(event, score=event.score + shift))
            case _:
                changed.append(event)
    return stamp(changed)


def write_run(folder: Path, name: str, *, age: int = 0, notes: RunNotes | None = None, **changes: Any) -> Path:
    """Write a run that was last written to `age` hours before the newest one."""
    path = write_segment(folder / name, 1, recording(events_of(**changes)))
    os.utime(path, (NOW - 3600 * age, NOW - 3600 * age))
    if notes is not None:
        write_notes(path.parent, notes)
    return path.parent


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Two settings with two random seeds each."""
    folder = tmp_path / "telemetry"
    folder.mkdir()
    for index, (entropy, seed) in enumerate([(0.01, 0), (0.01, 1), (0.05, 0), (0.05, 1)]):
        shift = 0.04 * (entropy == 0.05) + 0.02 * seed
        write_run(folder, f"run-{index}", age=index, seed=seed, entropy=entropy, shift=shift)
    return folder


@asynccontextmanager
async def workspace(folder: Path, *keys: str, size: tuple[int, int] = SIZE) -> AsyncIterator[Pilot[None]]:
    """Open the workspace, read everything and press keys."""
    async with opened(WorkspaceApp(folder, theme=DEFAULT_THEME), size=size) as pilot:
        await read(pilot)
        if keys:
            await type_(pilot, *keys)
        yield pilot


@contextmanager
def locked(run: Path) -> Iterator[None]:
    """Make a run live."""
    lock = RunLock(RunDirectory(run))
    lock.mark_started()
    yield
    lock.release()


def screen_of(pilot: Pilot[None]) -> WorkspaceScreen:
    return next(screen for screen in pilot.app.screen_stack if isinstance(screen, WorkspaceScreen))


def model(pilot: Pilot[None]) -> Workspace:
    return screen_of(pilot).workspace


async def read(pilot: Pilot[None]) -> None:
    """Read all runs and all curves of the shown ones, and draw them."""
    screen = screen_of(pilot)
    for _ in range(3):  # the second time reads what the first has drawn
        changed = screen.workspace.tick(60.0)
        screen.update()
        await pilot.pause()
        if not (changed or screen.workspace.is_reading):
            return


async def type_(pilot: Pilot[None], *keys: str) -> None:
    await pilot.press(*keys)
    await read(pilot)


def names(pilot: Pilot[None]) -> list[str]:
    return [run.run for run in model(pilot).listed]


def chart(pilot: Pilot[None], curve: str) -> OverlayChart:
    screen = pilot.app.screen
    [found] = [panel for panel in screen.query(OverlayChart) if panel.curve == curve]
    return found


def readout(panel: OverlayChart) -> str:
    return " ".join(str(panel.border_subtitle).split())


def panel_text(pilot: Pilot[None], panel: type[RunList | RunDetails | WorkspaceHeader | GroupLegend]) -> str:
    app = pilot.app
    assert isinstance(app, WorkspaceApp)
    return shown(app, panel)


def final_score(run: Path, round_: int = ROUNDS) -> float:
    return 100 * esper.read_run(run).summary.finished[round_ - 1].score.median


async def test_list_is_filtered_with_completion(study: Path) -> None:
    write_notes(study / "run-3", RunNotes(name="the best", tags=("sweep",)))
    async with workspace(study) as pilot:
        assert names(pilot) == ["run-0", "run-1", "run-2", "run-3"]
        text = panel_text(pilot, RunList)
        assert f"✓ run-0 {final_score(study / 'run-0'):.1f}" in text
        assert "✓ the best" in text
        await type_(pilot, "slash", *"ppo.", "tab")
        field = pilot.app.screen.query_one(RunFilterBox).query_one(Input)
        assert field.value == "ppo.entropy-coef"
        await type_(pilot, *"=0.05")
        assert names(pilot) == ["run-2", "run-3"]  # at once
        await type_(pilot, "space", *"tag:", "tab")
        assert field.value == "ppo.entropy-coef=0.05 tag:sweep"
        await type_(pilot, "enter")
        assert names(pilot) == ["run-3"]
        assert "1 of 4" in screen_text_of(pilot)
        await type_(pilot, "slash", "space", *"bestt<1", "enter")
        assert "did you mean best?" in screen_text_of(pilot)
        assert names(pilot) == ["run-3"]  # those of the last valid filter
        await type_(pilot, "escape")
        screen_of(pilot).update()
        assert "1 of 4" in str(pilot.app.screen.query_one("#message").render())
        await type_(pilot, "escape")
        assert len(names(pilot)) == 4
        await type_(pilot, "slash", *"nothing", "enter")
        assert panel_text(pilot, RunList) == "no run matches the filter"
        await type_(pilot, "escape")
        assert len(names(pilot)) == 4


def screen_text_of(pilot: Pilot[None]) -> str:
    app = pilot.app
    assert isinstance(app, WorkspaceApp)
    return screen_text(app)


async def test_filter_has_all_characters_of_a_terminal_that_sends_them_at_once(study: Path) -> None:
    async with workspace(study) as pilot:
        for character in "/run-2":
            pilot.app.post_message(Key("slash" if character == "/" else character, character))
        await pilot.pause()
        await type_(pilot, "enter")
        assert names(pilot) == ["run-2"]


async def test_any_key_sorts_the_list(study: Path) -> None:
    async with workspace(study, "o", *"best", "enter") as pilot:
        assert names(pilot) == ["run-3", "run-2", "run-1", "run-0"]
        await type_(pilot, "O")
        assert names(pilot) == ["run-0", "run-1", "run-2", "run-3"]
        for key, heading in (("return", "mean ret"), ("smoothed", "smoothed"), ("fossilized", "kept")):
            await type_(pilot, "o", *key, "enter")
            assert f"{heading}↓" in panel_text(pilot, RunList), key
        await type_(pilot, "o", *"ppo.e", "tab", "enter", "O")
        assert names(pilot) == ["run-2", "run-3", "run-0", "run-1"]
        assert "entropy-coef↓" in panel_text(pilot, RunList)
        await type_(pilot, "o", *"nothing", "enter")
        assert isinstance(pilot.app.screen, KeyDialog)
        assert "unknown key 'nothing'" in screen_text_of(pilot)
        await type_(pilot, "escape")
        await pilot.click(RunList, offset=(8, 1))  # the heading of the names
        assert model(pilot).sort_key == "name"


async def test_selected_runs_are_overlaid_in_groups(study: Path) -> None:
    finals = [final_score(study / f"run-{index}") for index in range(4)]
    async with workspace(study, size=ROOMY) as pilot:
        final = chart(pilot, "final accuracy/median")
        assert readout(final) == f"median {finals[0]:.1f}"
        await type_(pilot, "A")
        assert "4 selected in 2 curves" in panel_text(pilot, WorkspaceHeader)
        assert panel_text(pilot, GroupLegend) == "A entropy-coef 0.01 (2) B entropy-coef 0.05 (2)"
        assert readout(final) == f"A {sum(finals[:2]) / 2:.1f} B {sum(finals[2:]) / 2:.1f}"
        assert "░" in final.text  # the interval over the seeds of the highlighted run
        rows = pilot.app.screen.query_one(RunList).text.splitlines()[1:5]
        assert [row.split()[0] for row in rows] == ["▸A", "A", "B", "B"]
        await type_(pilot, "v")
        assert readout(final) == " ".join(
            f"{letter} {value:.1f}"
            for letter, value in zip("ABCD", (finals[index] for index in (0, 2, 1, 3)), strict=True)
        )
        await type_(pilot, "v", *"see", "tab", "enter")
        assert "seed 0 (2)" in panel_text(pilot, GroupLegend)
        await type_(pilot, "v", "space")
        assert "3 selected in 2 curves" in panel_text(pilot, WorkspaceHeader)
        await type_(pilot, "A", "A")
        assert model(pilot).num_selected == 0


async def test_charts_have_axes_search_pages_and_full_screen(study: Path) -> None:
    async with workspace(study, "A") as pilot:
        screen = screen_of(pilot)
        order = [panel.title_text for panel in screen.query(WorkspaceChart)]
        assert order[:4] == ["median final accuracy", "median accuracy", "median return", "final score by parameters"]
        final = chart(pilot, "final accuracy/median")
        assert str(final.border_title).endswith("by round")
        assert str(chart(pilot, "accuracy/median").border_title).endswith("by round, mean of a round")
        await type_(pilot, "tab")
        assert pilot.app.focused is final
        await type_(pilot, "left", "left")
        assert readout(final).startswith("round 1: A ")
        await type_(pilot, "escape", "b", "left")
        assert str(final.border_title).endswith("by step")
        assert readout(final).startswith("run step 10: A ")
        await type_(pilot, "enter")
        assert isinstance(pilot.app.screen, WorkspaceChartScreen)
        assert "A entropy-coef 0.01 (2)" in chart(pilot, "final accuracy/median").text
        await type_(pilot, "enter", "escape", "escape")
        assert isinstance(pilot.app.focused, RunList)
        first = [panel for panel in screen.query(OverlayChart) if panel.display]
        await type_(pilot, "greater_than_sign")
        assert not set(first) & {panel for panel in screen.query(OverlayChart) if panel.display}
        await type_(pilot, "f", *"head op", "enter")
        assert [panel.curve for panel in screen.query(OverlayChart) if panel.display] == []
        await type_(pilot, "escape", "escape", "f", *"entropy of op", "enter")
        assert [panel.curve for panel in screen.query(OverlayChart) if panel.display] == ["entropy/head op"]


async def test_scatter_has_all_runs_and_letters_of_selected_ones(study: Path) -> None:
    async with workspace(study, "down", "space", size=ROOMY) as pilot:
        scatter = pilot.app.screen.query_one(RunScatterChart)
        assert "◆" in scatter.text
        assert f"◆ {final_score(study / 'run-1'):.1f} at ×1.40" in str(scatter.border_subtitle)
        assert {"●", "○", "A"} <= set(scatter.text)


async def test_baseline_is_a_tag_and_has_differences(study: Path) -> None:
    finals = [final_score(study / f"run-{index}") for index in range(4)]
    async with workspace(study, "D", size=ROOMY) as pilot:
        assert notices(pilot.app) == ["Select a run, and press p to make it the baseline."]
        await type_(pilot, "down", "p")
        assert read_notes(study / "run-1").tags == (BASELINE_TAG,)
        assert notices(pilot.app)[-1] == "run-1 is the baseline: its notes have the tag baseline."
        assert names(pilot)[0] == "run-1"  # first, in any order
        await type_(pilot, "end", "p")
        assert (read_notes(study / "run-1").tags, read_notes(study / "run-3").tags) == ((), (BASELINE_TAG,))
        await type_(pilot, "home", "down", "D")
        final = chart(pilot, "final accuracy/median")
        assert str(final.border_title).startswith("Δ median final accuracy pp")
        assert readout(final) == f"median −{finals[3] - finals[0]:.1f}"
        details = panel_text(pilot, RunDetails)
        assert "2 settings differ from the baseline seed 0 (1) ppo.entropy-coef 0.01 (0.05)" in details
        assert f"last acc {finals[0]:.1f} % −{finals[3] - finals[0]:.1f} pp" in details
        assert "one run against one: no interval" in details
        await type_(pilot, "home", "p")
        assert notices(pilot.app)[-1] == "run-3 is no longer the baseline: its notes have lost the tag baseline."
        assert not model(pilot).shows_difference
        assert "settings that differ from the defaults" in panel_text(pilot, RunDetails)


async def test_intervals_of_differences_hold_together_for_their_number(study: Path) -> None:
    """Two settings minus that of the baseline. Scores differ by 0.02 between the two runs of each setting."""
    for seed in range(2):
        write_run(study, f"run-{4 + seed}", age=4 + seed, seed=seed, entropy=0.09, shift=0.02 * seed)
    async with workspace(study, "A", "p", "D", size=ROOMY) as pilot:
        assert "2 differences, 95 % together" in panel_text(pilot, WorkspaceHeader)
        expected = t_quantile(2, 0.975) * math.hypot(0.01, 0.01)
        for _, curve in model(pilot).curves("final accuracy/median", "round"):
            assert curve.high - curve.mean == pytest.approx([expected] * ROUNDS)


async def test_notes_are_edited_and_archived_runs_are_hidden(study: Path) -> None:
    write_notes(study / "run-0", RunNotes(study="entropy", trial=3))
    async with workspace(study, "n", *"first", "tab", *"a b a", "tab", *"text", "enter", size=ROOMY) as pilot:
        stored = RunNotes(name="first", tags=("a", "b"), note="text", study="entropy", trial=3)
        assert read_notes(study / "run-0") == stored
        assert "first" in panel_text(pilot, RunList)
        assert "study entropy, trial 3 tags a b" in panel_text(pilot, RunDetails)
        await type_(pilot, "n", *"zzz", "escape")
        assert read_notes(study / "run-0") == stored
        await type_(pilot, "x")
        assert names(pilot) == ["run-1", "run-2", "run-3"]
        assert notices(pilot.app) == ["first: archived. The filter `archived` lists it."]
        pilot.app.clear_notifications()
        await type_(pilot, "slash", *"archived", "enter", "x", "escape")
        assert not notices(pilot.app)
        assert len(names(pilot)) == 4
        (study / "run-1" / "notes.json").mkdir()
        model(pilot).highlight("run-1")
        for key in ("x", "n", "p"):
            await type_(pilot, key)
            assert not isinstance(pilot.app.screen, NotesDialog)
            assert "run-1/notes.json" in notices(pilot.app)[-1]


async def test_delete_asks_first_and_refuses_a_live_run(study: Path) -> None:
    with locked(study / "run-1"):
        write_segment(study / "run-1", 1, recording(events_of()[:-1]))
        async with workspace(study, "delete") as pilot:  # live runs come first
            assert notices(pilot.app) == ["run-1 is running: a live run is not deleted. Q stops it."]
            await type_(pilot, "down", "delete")
            assert isinstance(pilot.app.screen, ChoiceDialog)
            text = " ".join(screen_text_of(pilot).replace("│", " ").split())
            assert str(study)[-20:] in text.replace(" ", "")
            assert "KiB" in text
            await type_(pilot, "enter")  # the first answer is to cancel
            assert (study / "run-0").exists()
            await type_(pilot, "delete", "D")
            assert not (study / "run-0").exists()
            assert names(pilot) == ["run-1", "run-2", "run-3"]
            with locked(study / "run-2"):  # meanwhile, it was resumed
                await type_(pilot, "end", "up", "delete", "down", "enter")
                assert (study / "run-2").exists()
                assert "a process writes to it; stop the run first" in notices(pilot.app)[-1]


@pytest.mark.parametrize("keys", [["d"], ["y"], ["D"], ["delete", "enter"]])
async def test_keys_of_the_question_delete_the_run(study: Path, keys: list[str]) -> None:
    async with workspace(study, "delete", "delete", "delete") as pilot:  # the key is held
        assert isinstance(pilot.app.screen, ChoiceDialog)
        await type_(pilot, "n")
        assert notices(pilot.app) == ["run-0 is kept."]
        await type_(pilot, "delete", *keys)
        assert names(pilot) == ["run-1", "run-2", "run-3"]


async def test_runs_of_a_study_have_their_settings_as_names(study: Path) -> None:
    for index in range(3):
        write_notes(study / f"run-{index}", RunNotes(study="coefs", name="mine" if index == 2 else ""))
    async with workspace(study, size=ROOMY) as pilot:
        text = panel_text(pilot, RunList)
        assert all(f"✓ entropy-coef 0.01, seed {seed}" in text for seed in (0, 1))
        assert "✓ mine" in text
        assert "✓ run-3" in text
        assert panel_text(pilot, RunDetails).startswith("entropy-coef 0.01, seed 0 run-0")
        await type_(pilot, "v", "space")  # each run alone
        assert panel_text(pilot, GroupLegend) == "A entropy-coef 0.01, seed 0"
        await pilot.resize_terminal(60, 15)
        await pilot.pause()
        assert "0.01, 0" in panel_text(pilot, RunList)


async def test_selected_runs_that_are_not_listed_are_named(study: Path) -> None:
    async with workspace(study, "A", "x", size=ROOMY) as pilot:
        assert "4 selected in 2 curves, 1 not listed" in panel_text(pilot, WorkspaceHeader)
        assert "A entropy-coef 0.01 (2, 1 not listed)" in panel_text(pilot, GroupLegend)
        await type_(pilot, "slash", *"ppo.entropy-coef>0.03", "enter")
        assert "4 selected in 2 curves, 2 not listed" in panel_text(pilot, WorkspaceHeader)
        assert panel_text(pilot, GroupLegend) == "A entropy-coef 0.01 (2, 2 not listed) B entropy-coef 0.05 (2)"


async def test_overlay_of_different_scales_has_no_unit(study: Path) -> None:
    write_run(study, "other", scale=ScoreScale(best="low", low=0.0, high=None))
    async with workspace(study, "end", "space", size=ROOMY) as pilot:
        final = chart(pilot, "final accuracy/median")
        assert "final accuracy % ─" in str(final.border_title)
        await type_(pilot, "home", "space")
        assert model(pilot).num_selected == 2
        assert "final accuracy ─" in str(final.border_title)


async def test_run_that_ships_is_not_changed(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_notes(study / "run-1", RunNotes(tags=(BASELINE_TAG,)))
    shipped = write_run(study, "demo")
    module = study.parent / "src" / "esper" / "recordings" / "files" / "runs.py"
    monkeypatch.setattr("esper.recordings.files.runs.__file__", str(module))
    files = {path.name: path.read_bytes() for path in shipped.iterdir()}
    async with workspace(study) as pilot:
        for key in ("n", "p", "x", "delete"):
            pilot.app.clear_notifications()
            model(pilot).highlight("demo")
            await type_(pilot, key)
            assert isinstance(pilot.app.screen, WorkspaceScreen)
            assert notices(pilot.app) == [
                f"demo ships with the package and is not changed; copy {shipped} to change the copy"
            ]
    assert {path.name: path.read_bytes() for path in shipped.iterdir()} == files
    assert read_notes(study / "run-1").tags == (BASELINE_TAG,)


async def test_small_terminals_show_one_pane_at_a_time(study: Path) -> None:
    for size in ((45, 12), (80, 24)):
        async with workspace(study, "space", size=size) as pilot:
            panes = [pilot.app.screen.query_one(f"#{name}") for name in ("runs", "charts", "details")]
            assert [pane.display for pane in panes] == [True, False, False]
            assert "✓ run-0" in screen_text_of(pilot)
            await type_(pilot, "tab")
            assert [pane.display for pane in panes] == [False, True, False]
            assert isinstance(pilot.app.focused, OverlayChart)
            assert "final accuracy" in screen_text_of(pilot)
            await type_(pilot, "right_square_bracket")
            assert [pane.display for pane in panes] == [False, False, True]
            assert "last acc" in screen_text_of(pilot)
            await type_(pilot, "end")
            assert ("last acc" in screen_text_of(pilot)) == (size[1] == 24)  # all lines fit
            await type_(pilot, "tab", "left_square_bracket", "slash")
            assert [pane.display for pane in panes] == [True, False, False]


async def test_brackets_hide_and_show_panes(study: Path) -> None:
    async with workspace(study) as pilot:
        panes = [pilot.app.screen.query_one(f"#{name}") for name in ("runs", "charts", "details")]
        assert [pane.display for pane in panes] == [True, True, False]
        await type_(pilot, "right_square_bracket")
        assert all(pane.display for pane in panes)
        await type_(pilot, "left_square_bracket")
        assert [pane.display for pane in panes] == [False, True, True]
        await pilot.resize_terminal(200, 60)
        assert [pane.display for pane in panes] == [False, True, True]  # as the user has chosen


async def test_enter_opens_the_run_and_escape_returns_to_the_same_workspace(study: Path) -> None:
    async with workspace(study, "slash", *"ppo.entropy-coef=0.05", "enter", "A", "down") as pilot:
        app = pilot.app
        assert isinstance(app, WorkspaceApp)
        await pilot.press("enter")
        await until(pilot, lambda: app.source.directory == (study / "run-3").resolve())
        assert not isinstance(app.screen, WorkspaceScreen)
        await press(pilot, "escape")
        assert model(pilot).num_selected == 2
        assert names(pilot) == ["run-2", "run-3"]
        assert "ppo.entropy-coef=0.05" in screen_text_of(pilot)


async def test_name_that_is_not_utf_8_is_listed_drawn_opened_and_deleted(tmp_path: Path) -> None:
    run = write_run(tmp_path, "run-\udcff")
    async with workspace(tmp_path) as pilot:
        app = pilot.app
        assert isinstance(app, WorkspaceApp)
        assert readout(chart(pilot, "final accuracy/median"))
        await pilot.press("enter")
        await until(pilot, lambda: app.source.directory == run.resolve())
        await settle(pilot)
    async with workspace(tmp_path) as pilot:  # with the curves of the cache
        assert readout(chart(pilot, "final accuracy/median"))
        shutil.rmtree(run)
        model(pilot).index.poll()
        assert not model(pilot).runs


async def test_commands_are_copied_for_the_selection(study: Path) -> None:
    async with workspace(study, "A", "X") as pilot:
        runs = [str(study / f"run-{index}") for index in range(4)]
        assert pilot.app.clipboard == f"esper-sanctum export {' '.join(runs)} --to csv"
        await type_(pilot, "y")
        assert pilot.app.clipboard == f"esper-sanctum compare {' '.join(runs)} --group-by"


class FakeQueue(RemoteRequestQueue):
    """Queue without a thread, which refuses checkpoints."""

    asked: list[tuple[str, RequestKind]]

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._run = directory.name

    def start(self) -> None: ...

    def put(self, kind: RequestKind, origin: str, path: str | None = None, env: int | None = None) -> None:
        self.asked.append((self._run, kind))
        self.unacknowledged.add(kind)
        if kind is RequestKind.CHECKPOINT:
            self.refusals.put((kind, "No checkpoint: refused by the run."))


async def test_requests_go_to_the_highlighted_live_run(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esper.sanctum.run_changes.RemoteRequestQueue", FakeQueue)
    monkeypatch.setattr(FakeQueue, "asked", [], raising=False)
    started = events_of()[:40]
    live = write_segment(study / "live", 1, recording(started)).parent
    with locked(live):
        async with workspace(study, "P", size=ROOMY) as pilot:
            assert "sending pause…" in panel_text(pilot, RunDetails)
            await type_(pilot, "c")
            assert "live: No checkpoint: refused by the run." in notices(pilot.app)
            await type_(pilot, "Q")
            assert isinstance(pilot.app.screen, ChoiceDialog)
            assert "live is live. End the run?" in screen_text_of(pilot)
            await type_(pilot, "c")
            assert FakeQueue.asked == [
                ("live", RequestKind.PAUSE), ("live", RequestKind.CHECKPOINT), ("live", RequestKind.STOP),
            ]  # fmt: skip
            await type_(pilot, "down", "P")
            assert notices(pilot.app)[-1] == "run-0 has ended: only a live run can be controlled"


async def test_crashed_run_is_resumed_in_a_background_process(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def refuse(words: Sequence[str], _: Path) -> None:
        asked.append(tuple(words))
        raise OSError(errno.EAGAIN, "no process can be started")

    monkeypatch.setattr("esper.sanctum.run_changes.spawn_program", refuse)
    crashed = write_segment(study / "crashed", 1, recording(events_of()[:40])).parent
    (crashed / LOCK_FILE).touch()
    write_checkpoint(checkpoint_path(crashed, 1, 1), example_checkpoint(1))
    async with workspace(study, "P", size=ROOMY) as pilot:
        assert "✖ crashed, can be resumed" in panel_text(pilot, RunDetails)
        assert asked == [("--resume", str(crashed), "--detach", "--no-tui")]
        assert notices(pilot.app)[-1] == "crashed cannot be resumed: no process can be started"


async def test_new_and_growing_runs_appear_by_themselves(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("run_index.LIVE_READ_INTERVAL_S", "run_index.SCAN_INTERVAL_S", "run_curves.CHECK_S"):
        monkeypatch.setattr(f"esper.recordings.history.{name}", 0.0)
    events = events_of(rounds=4)
    cut = 1 + max(i for i, event in enumerate(events) if isinstance(event, ev.PhaseTimed) and event.round == 2)
    async with workspace(study, "space") as pilot:
        path = write_segment(study / "growing", 1, recording(events[:cut]))
        with locked(path.parent):
            await read(pilot)
            assert names(pilot)[0] == "growing"
            assert "● growing" in panel_text(pilot, RunList)
            assert "● 1 running" in panel_text(pilot, WorkspaceHeader)
            await type_(pilot, "home", "space")
            final = chart(pilot, "final accuracy/median")
            before = readout(final)
            with path.open("ab") as file:
                file.write(lines(events[cut:-1]))
            await read(pilot)
            assert len(model(pilot).library.curve(path.parent, "final accuracy/median").steps) == 4
            assert readout(final) != before


async def test_large_list_draws_only_what_is_visible_and_has_changed(
    study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = recording(events_of())
    for index in range(100):
        os.utime(write_segment(study / f"many-{index:03d}", 1, content), (NOW - 1e6 - index, NOW - 1e6 - index))
    drawn: list[str] = []
    draw = RunList.draw_row

    def count(*arguments: Any) -> Any:
        drawn.append(arguments[1].run)
        return draw(*arguments)

    monkeypatch.setattr(RunList, "draw_row", count)
    async with workspace(study) as pilot:
        height = pilot.app.screen.query_one(RunList).size.height
        assert len(set(drawn)) == height - 1
        drawn.clear()
        await type_(pilot, "down")
        assert sorted(drawn) == ["run-0", "run-1"]
        await type_(pilot, "end")
        assert model(pilot).highlighted is model(pilot).listed[-1]
        assert "many-099" in panel_text(pilot, RunList)
        monkeypatch.setattr("esper.sanctum.workspace.MAX_SELECTED", 3)
        await type_(pilot, "A")
        assert model(pilot).num_selected == 3
        await type_(pilot, "space")
        assert model(pilot).num_selected == 3
        assert notices(pilot.app) == ["At most 3 runs can be selected."]
        await type_(pilot, "A")
        assert model(pilot).num_selected == 0
