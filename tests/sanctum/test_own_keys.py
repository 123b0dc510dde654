"""Keys of the user: the file keys.toml, its presets, and its errors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from esper.cli.main import main
from esper.common.configuration.config import ConfigError
from esper.recordings import events as ev
from esper.sanctum.app import SanctumApp
from esper.sanctum.keys import KEYS, KeyBinding
from esper.sanctum.own_keys import PRESETS, apply_keys, find_conflicts, load_keys
from esper.sanctum.screens.dialogs import ChoiceDialog
from esper.sanctum.screens.help import HelpScreen
from esper.sanctum.theme import DEFAULT_THEME
from esper.sanctum.widgets.chart_grid import ChartGrid
from esper.sanctum.widgets.footer import Footer
from esper.sanctum.widgets.policy_chart import PolicyChart
from esper.sanctum.widgets.problems import PauseCausePanel
from tests.factory import example_run
from tests.recordings.files.recordings import recording, write_segment
from tests.sanctum.driving import header, live, notices, opened, screen_text, shown
from tests.sanctum.population import population

RUN = population(envs=64, rounds=2, stop=5)
IDS = {
    "screens": "overview policy growth numerics devices log",
    "run": "pause step checkpoint restore stop detach",
    "time": "play step-back step round-back round slower faster start end live go-to address excerpt bookmark "
    "next-mark previous-mark",
    "rows": "up down page-up page-down first last",
    "envs": "env",
    "table": "sort reverse follow pin",
    "map": "left right up down metric env",
    "overview": "filter clear-filter map",
    "detail": "previous next back",
    "policy": "previous next charts env",
    "growth": "sort",
    "devices": "memory",
    "log": "search kind severity this-env clear-filter go",
    "anomalies": "go",
    "timeline": "start end",
    "view": "theme copy screenshot commands anomalies why help quit interrupt",
}
"""Ids of the actions, by category."""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "keys.toml"
    monkeypatch.setattr("esper.sanctum.own_keys.keys_file", lambda: path)
    return path


def load(file: Path, text: str) -> dict[str, KeyBinding]:
    file.write_text(text)
    return {key.id: key for key in load_keys()}


def app_with(keys: tuple[KeyBinding, ...]) -> SanctumApp:
    return live(RUN, keys=keys)[0]


def test_ids_of_actions_are_unique_and_kept() -> None:
    """Files of users name them: renaming an action breaks such a file."""
    ids = [key.id for key in KEYS]
    assert {f"{category}.{name}" for category, names in IDS.items() for name in names.split()} <= set(ids)
    assert len(ids) == len(set(ids))
    assert all(re.fullmatch(r"[a-z]+\.[a-z-]+", id_) for id_ in ids)


@pytest.mark.parametrize("preset", [{}, *PRESETS.values()], ids=["without a preset", *PRESETS])
def test_preset_names_actions_and_has_no_conflicts(preset: dict[str, str]) -> None:
    assert preset.keys() <= {key.id for key in KEYS}
    assert not [(a.id, b.id, shared) for a, b, shared in find_conflicts(apply_keys(preset))]


def test_without_a_file_keys_are_the_table(file: Path) -> None:
    assert load_keys() is KEYS


def test_file_changes_keys_by_id_and_by_name(file: Path) -> None:
    keys = load(
        file, 'preset = "vim"\nfirst = "B"\nrun.pause = "F5"\n[view]\nscreenshot = ["f12", "Ctrl+?", "shift+z"]\n'
    )
    assert (keys["run.pause"].keys, keys["run.pause"].label) == ("f5", "F5")
    assert keys["view.screenshot"].keys == "f12,ctrl+question_mark,Z"
    assert keys["rows.first"].keys == "B"
    assert keys["rows.last"].label == "End G"
    assert keys["time.go-to"].label == ":"
    assert keys["run.step"].keys == "s"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('run.pause = "c"', "gives the key 'c' to two actions, run.pause and run.checkpoint; give one of them another"),
        ('table.pin = "q"', "gives the key 'q' to two actions, table.pin and view.quit;"),
        ('run.pauze = "f5"', "unknown action 'run.pauze' in .*keys.toml; did you mean run.pause?"),
        ('pauze = "f5"', "unknown action 'pauze' in .*keys.toml; did you mean pause?"),
        ('run.pause = "f99"', "unknown key 'f99' for run.pause in .*keys.toml; did you mean f9?"),
        ('run.pause = "hyper+p"', "unknown key 'hyper.p' for run.pause in .*keys.toml; "),
        ("run.pause = []", 'run.pause in .*keys.toml needs a key such as "f5", or a list of keys, not \\[]'),
        ("run.pause = 5", "run.pause in .*keys.toml needs a key"),
        ('preset = "vi"', "unknown preset 'vi' in .*keys.toml; did you mean vim?"),
        ('preset = ["vim"]', "unknown preset \\['vim'\\] in .*keys.toml"),
        ('run.pause = "tab"', "unknown key 'tab' for run.pause in .*keys.toml; "),
        ("preset = [\n1 2", "keys.toml is not TOML: .*line 2"),
    ],
)
def test_invalid_file_is_refused(file: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        load(file, text)
    assert "\n" not in str(raised.value)


def test_replay_with_an_invalid_file_exits_with_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_segment(tmp_path / "run", 1, recording(example_run()))
    file = tmp_path / "esper-sanctum" / "keys.toml"
    file.parent.mkdir()
    file.write_text('run.pause = "q"')
    monkeypatch.setattr("platformdirs.user_config_path", lambda name: tmp_path / name)
    monkeypatch.setenv("TEXTUAL_DRIVER", "")  # as in a browser: no terminal is needed
    assert main(["replay", str(tmp_path / "run")]) == 2
    message = f"{file} gives the key 'q' to two actions, run.pause and view.quit; give one of them another key"
    assert message in " ".join(capsys.readouterr().err.split())


async def test_changed_key_works_and_the_old_one_does_not(file: Path) -> None:
    load(file, 'view.theme = "f5"\nscreens.policy = "p"\nrun.pause = "2"\nrows.down = ["U", "down"]\n')
    app = app_with(load_keys())
    async with opened(app) as pilot:
        await pilot.press("t")
        assert app.theme == DEFAULT_THEME
        await pilot.press("f5")
        assert app.theme != DEFAULT_THEME
        await pilot.press("j")
        assert app.view.selected_env == 0
        await pilot.press("U", "down", "k")
        assert app.view.selected_env == 1
        await pilot.press("2")
        assert app.current_mode == "overview"
        assert "pausing" in header(app)
        await pilot.press("p")
        assert app.current_mode == "policy"


async def test_footer_help_and_palette_show_changed_keys() -> None:
    app = app_with(apply_keys({"view.theme": "f5", "view.help": "f2"}))
    async with opened(app) as pilot:
        assert "F5 theme" in shown(app, Footer)
        theme = app.screen.query_one(Footer).text.index("F5 theme")
        await pilot.click(Footer, offset=(theme + 1, 0))
        assert app.theme != DEFAULT_THEME
        await pilot.press("f2")
        assert isinstance(app.screen, HelpScreen)
        assert re.search(r"F5 +next theme", app.screen.page("").plain)
        await pilot.press("f2")
        assert not isinstance(app.screen, HelpScreen)


async def test_sentences_name_the_changed_keys() -> None:
    keys = {"run.pause": "f5", "run.checkpoint": "f6", "view.anomalies": "f7", "screens.overview": "f8"}
    app = app_with(apply_keys(keys, {"view.why": "f9", "view.help": "f10", "policy.charts": "f11", "view.mute": "f12"}))
    async with opened(app, size=(80, 24)) as pilot:
        await pilot.press("s", "r", "f12")
        said = " ".join(notices(app))
        assert "Press F5 to pause" in said
        assert "Press F6 to write one" in said
        assert "press F7, select its line, and press F12" in said
        await pilot.press("f10")
        assert isinstance(app.screen, HelpScreen)
        page = " ".join(app.screen.page("").plain.split())
        assert "press F9 for the likely cause" in page
        await pilot.press("escape", "2")
        assert app.screen.query_one(ChartGrid).query(PolicyChart).first().note.startswith("F11 ")
        await pilot.resize_terminal(70, 20)
        assert "press F8 for the overview" in screen_text(app)


async def test_sentences_about_a_held_run_name_the_changed_keys() -> None:
    held = ev.Paused(
        seq=RUN[-1].seq + 1, time=RUN[-1].time, round=2, step=5, origin="engine", reason="no space", cause="unsaved"
    )
    keys = apply_keys({"run.checkpoint": "f6", "run.restore": "f7", "run.stop": "f9", "view.quit": "f10"})
    app, _ = live([*RUN, held], keys=keys)
    advice = "Free disk space, then F6 save again F7 restore an older checkpoint F9 quit, with or without saving"
    async with opened(app) as pilot:
        assert shown(app, PauseCausePanel).endswith(advice)
        await pilot.press("p")
        assert advice in " ".join(" ".join(notices(app)).split())
        await pilot.press("f1")
        assert isinstance(app.screen, HelpScreen)
        assert advice in " ".join(app.screen.page("").plain.split())
        await pilot.press("f10")
        assert not isinstance(app.screen, HelpScreen)


async def test_changed_quit_key_cancels_the_dialog_that_it_opens() -> None:
    app = app_with(apply_keys({"view.quit": "f10"}))
    async with opened(app) as pilot:
        await pilot.press("f10")
        assert isinstance(app.screen, ChoiceDialog)
        await pilot.press("q")
        assert isinstance(app.screen, ChoiceDialog)
        await pilot.press("f10")
        assert not isinstance(app.screen, ChoiceDialog)


async def test_vim_preset_moves_in_the_table_and_keeps_the_arrows() -> None:
    app = app_with(apply_keys(PRESETS["vim"]))
    async with opened(app) as pilot:
        selected: list[int] = []
        for key in ("j", "down", "k", "G", "g", "ctrl+d", "ctrl+u"):
            await pilot.press(key)
            selected.append(app.view.selected_env)
        assert selected[:4] == [1, 2, 1, 63]
        assert selected[4] == selected[6] != selected[5]
        await pilot.press("colon")
        assert "recording" in " ".join(notices(app))
