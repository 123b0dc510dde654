"""Snapshots of the screens, from fixed events. After an intended change: `--snapshot-update`, and inspect them."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot

from esper.recordings.history.history import open_history
from esper.sanctum.app import SanctumApp
from tests.factory import example_run, growth_run
from tests.sanctum.driving import live, press, replay, replay_of, settle
from tests.sanctum.population import population

DEMO = Path(__file__).parents[2] / "telemetry" / "demo-faults"
SnapCompare = Callable[..., bool]


SIZES = [(80, 24), (120, 40), (200, 60)]
"""One for each layout of the overview."""


def by_size(size: tuple[int, int]) -> str:
    return "x".join(map(str, size))


def demo() -> SanctumApp:
    """Return a dashboard over the demo with faults, paused at its start."""
    return replay_of(open_history(DEMO))[0]


def at_the_end_of(*keys: str) -> Callable[[Pilot[None]], Awaitable[None]]:
    """Return a function that goes to the last step of the demo and presses the keys."""

    async def go(pilot: Pilot[None]) -> None:
        app = pilot.app
        assert isinstance(app, SanctumApp)
        assert app.source.playback is not None
        app.source.playback.seek_end()
        app.source.playback.step(-1)
        await settle(pilot)
        await press(pilot, *keys)
        while app.source.curves.is_waiting:  # the growth screen reads curves in time slices
            await settle(pilot)
        await settle(pilot)

    return go


def big() -> SanctumApp:
    """Return a live dashboard with 64 envs."""
    return live(population(envs=64, rounds=3))[0]


def pressing(*keys: str) -> Callable[[Pilot[None]], Awaitable[None]]:
    """Return a function that presses the keys."""

    async def go(pilot: Pilot[None]) -> None:
        await settle(pilot)
        await press(pilot, *keys)

    return go


@pytest.mark.parametrize("size", SIZES, ids=by_size)
def test_overview_screen(snap_compare: SnapCompare, size: tuple[int, int]) -> None:
    app, _ = live(population())
    assert snap_compare(app, terminal_size=size, run_before=settle)


@pytest.mark.parametrize("size", SIZES[:2], ids=by_size)
def test_env_screen(snap_compare: SnapCompare, size: tuple[int, int]) -> None:
    async def open_env(pilot: Pilot[None]) -> None:
        await settle(pilot)
        await press(pilot, "down", "down", "down", "enter")

    app, _ = live(population())
    assert snap_compare(app, terminal_size=size, run_before=open_env)


@pytest.mark.parametrize("key", ["2", "3", "4", "5", "6"])
def test_numbered_screens(snap_compare: SnapCompare, key: str) -> None:
    assert snap_compare(demo(), terminal_size=(120, 40), run_before=at_the_end_of(key))


@pytest.mark.parametrize(
    "keys", [("w", "right", "down"), ("o", "P", "slash", *"acc<70%", "enter")], ids=["map", "filter"]
)
def test_env_map_and_filter(snap_compare: SnapCompare, keys: tuple[str, ...]) -> None:
    assert snap_compare(big(), terminal_size=(80, 24), run_before=pressing(*keys))


def test_replay_at_minimum_size(snap_compare: SnapCompare, tmp_path: Path) -> None:
    async def step_forward(pilot: Pilot[None]) -> None:
        await press(pilot, "shift+right", "right", "right")

    app, _ = replay(example_run(envs=16, steps=25), tmp_path)
    assert snap_compare(app, terminal_size=(80, 24), run_before=step_forward)


def test_candidates_screen(snap_compare: SnapCompare) -> None:
    app, _ = live(growth_run())
    assert snap_compare(app, terminal_size=(120, 40), run_before=pressing("8", "down"))
