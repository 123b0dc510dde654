"""Content required at every terminal size, and output without colour."""

import re
from pathlib import Path

import pytest
from rich.color import ColorType
from textual.geometry import Region

from esper.sanctum.app import SanctumApp
from esper.sanctum.widgets.env_table import EnvTable
from esper.sanctum.widgets.footer import Footer
from esper.sanctum.widgets.panel import Panel
from tests.sanctum.driving import live, opened, replay, resize, screen_text, settle, shown, terminal_rows
from tests.sanctum.population import population

SIZES = [(80, 24), (120, 40), (200, 60), (80, 60), (200, 24), (110, 34)]


async def test_overview_shows_essentials_at_every_size() -> None:
    app, _ = live(population())
    async with opened(app) as pilot:
        for size in SIZES:
            await resize(pilot, size)
            text = screen_text(app)
            lines = text.splitlines()
            assert len(lines) == size[1]
            assert all(len(line) == size[0] for line in lines)
            for essential in (
                "-015300",
                "● RUNNING",
                "14/100",
                "17/25",
                "118 env-steps/s",
                "✖ 3",
                "return",
                "cpu:0",
                "94.5 %",
                "1.31",
                "early",
                "mid",
                "late",
            ):
                assert essential in text, (essential, size)
            shown = [env for env in range(16) if re.search(f"[ ▸▼]{env:02d}", text)]
            assert len(shown) >= (16 if size[1] > 24 else 11), size
            assert any(line.lstrip("│ ").startswith("med") for line in lines), size
            assert "p pause" in lines[-1]
            assert "q quit" in lines[-1]


async def test_env_screen_shows_essentials_at_every_size() -> None:
    app, _ = live(population())
    app.view.selected_env = 3
    async with opened(app, "enter") as pilot:
        for size in SIZES:
            await resize(pilot, size)
            essentials = [
                *("env 03 on cpu:1", " ┤", "depthwise", "+12.4", "dependence: accuracy lost"),
                "gate 2 refuses late",
            ]
            if size[1] >= 34:
                essentials += ["+0.113", "return +0.924"]
            if size[0] >= 120:
                essentials += ["592"]
            if size[0] >= 160:
                essentials += ["F  fossilized", "±  1.1"]
            for essential in essentials:
                assert essential in screen_text(app), (essential, size)


async def test_too_small_terminal_shows_required_size(tmp_path: Path) -> None:
    app, _ = replay(population(), tmp_path, at_end=True)
    async with opened(app) as pilot:
        for size in ((44, 24), (80, 11), (20, 5), (1, 1)):
            await resize(pilot, size)
            await pilot.press("down", "enter", "escape")
            text = " ".join(screen_text(app).split())
            if size[0] >= 44:
                assert f"Sanctum needs 45 × 12, this terminal is {size[0]} × {size[1]}. Make it larger." in text
            assert "return" not in text
            assert not app.screen.show_vertical_scrollbar, size
        for size in ((60, 20), (80, 24)):
            await resize(pilot, size)
            assert "return" in screen_text(app)
            assert "Sanctum needs" not in screen_text(app)
            assert not app.screen.show_vertical_scrollbar, size


@pytest.mark.parametrize(
    ("keys", "essentials"),
    [
        ("6", ["6 log", "lines · all kinds", "▸", "/ search"]),
        ("7", ["7 curves", "page 1 of", "accuracy % ─ by round", " ┤", "PgDn page"]),
        ("1 enter", ["env 00 on cpu:0", " ┤", "last decision", "early ", "mid ", "late ", "blueprint"]),
        ("1 enter o", ["explanation"]),
        ("1 enter o o", ["last step: 17", "train loss"]),
    ],
)
async def test_log_curves_and_env_show_essentials_at_60_by_15(tmp_path: Path, keys: str, essentials: list[str]) -> None:
    app, _ = replay(population(envs=8), tmp_path, at_end=True)
    async with opened(app, size=(60, 15)) as pilot:
        await pilot.press(*keys.split())
        await settle(pilot)
        text = screen_text(app)
        for essential in essentials:
            assert essential in text, essential
        assert "needs 80 × 24" not in text
        panels = [panel for panel in app.screen.query(Panel) if panel.region]
        assert all(Region(0, 0, 60, 15).contains_region(panel.region) for panel in panels)


async def test_footer_offers_no_key_of_a_hidden_body(tmp_path: Path) -> None:
    app, _ = replay(population(envs=8), tmp_path, at_end=True)
    async with opened(app, size=(80, 24)) as pilot:
        for key, of_body in (("2", "o charts"), ("3", "v charts"), ("4", "↵ env"), ("5", "o memory")):
            await pilot.press(key)
            for size in ((80, 24), (80, 23), (79, 24), (80, 24)):
                await resize(pilot, size)
                assert (of_body in shown(app, Footer)) == (size == (80, 24)), (key, size)


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


async def test_no_color_removes_colours_but_not_text(monkeypatch: pytest.MonkeyPatch) -> None:
    app, _ = live(population())
    async with opened(app):
        assert len(colours(app)) > 5
        text = screen_text(app)
    monkeypatch.setenv("NO_COLOR", "1")
    app, _ = live(population())
    async with opened(app):
        assert colours(app) == set()
        assert screen_text(app) == text  # no information depends on colour
