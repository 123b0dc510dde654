"""Pictures of the screens, from fixed events. After a change that was meant: `--snapshot-update`, and look at them."""

from collections.abc import Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot

from tests.factory import example_run
from tests.sanctum.driving import live, replay, settle
from tests.sanctum.population import population

SnapCompare = Callable[..., bool]


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)], ids=lambda size: "x".join(map(str, size)))
def test_overview(snap_compare: SnapCompare, size: tuple[int, int]) -> None:
    app, _ = live(population())
    assert snap_compare(app, terminal_size=size, run_before=settle)


@pytest.mark.parametrize("theme", ["sanctum-light", "high-contrast", "colour-blind"])
def test_themes(snap_compare: SnapCompare, theme: str) -> None:
    app, _ = live(population(), theme=theme)
    assert snap_compare(app, terminal_size=(120, 40), run_before=settle)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=lambda size: "x".join(map(str, size)))
def test_env_detail(snap_compare: SnapCompare, size: tuple[int, int]) -> None:
    async def open_env(pilot: Pilot[None]) -> None:
        await settle(pilot)
        await pilot.press("down", "down", "down", "enter")
        await settle(pilot)

    app, _ = live(population())
    assert snap_compare(app, terminal_size=size, run_before=open_env)


def test_replay(snap_compare: SnapCompare, tmp_path: Path) -> None:
    async def go_on(pilot: Pilot[None]) -> None:
        await pilot.press("shift+right", "right", "right")
        await settle(pilot)

    app, _ = replay(example_run(envs=16, steps=25), tmp_path)
    assert snap_compare(app, terminal_size=(80, 24), run_before=go_on)
