"""Content required at every terminal size, and output without colour."""

from pathlib import Path

import pytest
from rich.color import ColorType

from esper.sanctum.app import SanctumApp
from esper.sanctum.widgets.env_table import EnvTable
from tests.sanctum.driving import live, opened, replay, screen_text, settle, terminal_rows
from tests.sanctum.population import population

SIZES = [(80, 24), (120, 40), (200, 60), (80, 60), (200, 24), (110, 34)]


@pytest.mark.parametrize("size", SIZES)
async def test_overview_shows_essentials_at_every_size(size: tuple[int, int]) -> None:
    app, _ = live(population())
    async with opened(app, size=size):
        text = screen_text(app)
    lines = text.splitlines()
    assert len(lines) == size[1]
    assert all(len(line) == size[0] for line in lines)
    for essential in (
        "digits_impaired",
        "● RUNNING",
        "14/100",
        "17/25",
        "118 env-steps/s",
        "✖ 3",
        "reward",
        "cpu:0",
        "94.5 %",
        "1.31",
    ):
        assert essential in text, essential
    shown = [env for env in range(16) if f" {env:02d}" in text or f"▸{env:02d}" in text or f"▼{env:02d}" in text]
    assert len(shown) == 16 or size[1] == 24
    assert len(shown) >= 11
    for slot in ("early", "mid", "late"):
        assert slot in text
    assert any(line.lstrip("│ ").startswith("med") for line in lines)
    assert "p pause" in lines[-1]
    assert "q quit" in lines[-1]


@pytest.mark.parametrize("size", SIZES)
async def test_env_screen_shows_essentials_at_every_size(size: tuple[int, int]) -> None:
    app, _ = live(population())
    app.view.selected_env = 3
    async with opened(app, "enter", size=size):
        text = screen_text(app)
    essentials = ["env 03 on cpu:1", " ┤", "depthwise", "+12.4", "contribution: accuracy lost", "gate 2 refuses late"]
    if size[1] >= 34:
        essentials += ["+0.113", "return +0.924"]
    if size[0] >= 120:
        essentials += ["592"]
    if size[0] >= 160:
        essentials += ["F  fossilized", "±  1.1"]
    for essential in essentials:
        assert essential in text, essential


@pytest.mark.parametrize("size", [(79, 24), (60, 20), (40, 12)])
async def test_replay_in_too_small_terminal_has_no_scrollbar(size: tuple[int, int], tmp_path: Path) -> None:
    app, _ = replay(population(), tmp_path)
    async with opened(app, size=size):
        assert not app.screen.show_vertical_scrollbar


@pytest.mark.parametrize("size", [(44, 24), (80, 11), (20, 5), (1, 1)])
async def test_too_small_terminal_shows_required_size(size: tuple[int, int]) -> None:
    app, _ = live(population())
    async with opened(app, size=size) as pilot:
        await pilot.press("down", "enter", "escape")
        text = " ".join(screen_text(app).split())
        if size[0] >= 44:
            assert f"Sanctum needs 45 × 12, this terminal is {size[0]} × {size[1]}. Make it larger." in text
        assert "reward" not in text
        await pilot.resize_terminal(80, 24)
        await settle(pilot)
        assert "reward" in screen_text(app)
        assert "Sanctum needs" not in screen_text(app)


async def test_env_table_scrolls_and_marks_hidden_rows() -> None:
    app, _ = live(population(envs=64, rounds=2, stop=2))
    async with opened(app, size=(80, 24)) as pilot:
        lines = app.screen.query_one(EnvTable).text.splitlines()
        assert lines[-2].endswith("↓")
        assert lines[-1].startswith("med")
        await pilot.press("end")
        lines = app.screen.query_one(EnvTable).text.splitlines()
        assert lines[1].endswith("↑")
        assert "▸63" in lines[-2]


def colours(app: SanctumApp) -> set[tuple[int, ...]]:
    """All colours on the screen except greys."""
    found: set[tuple[int, ...]] = set()
    for row in terminal_rows(app):
        for segment in row:
            for colour in (segment.style.color, segment.style.bgcolor) if segment.style else ():
                if colour is not None and colour.type is ColorType.TRUECOLOR and len(set(colour.get_truecolor())) > 1:
                    found.add(tuple(colour.get_truecolor()))
    return found


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_no_color_removes_colours_but_not_text(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    app, _ = live(population())
    async with opened(app, size=size):
        assert len(colours(app)) > 5
        text = screen_text(app)
    monkeypatch.setenv("NO_COLOR", "1")
    app, _ = live(population())
    async with opened(app, size=size):
        assert colours(app) == set()
        assert screen_text(app) == text  # no information depends on colour
