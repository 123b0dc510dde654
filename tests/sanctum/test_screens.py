"""Screens by number: keys, tabs, command palette."""

from esper.sanctum.keys import SCREEN_INFO
from esper.sanctum.screens.env_detail import EnvDetailScreen
from esper.sanctum.screens.overview import OverviewScreen
from esper.sanctum.widgets.header import Tabs
from tests.sanctum.driving import live, opened, press, settle, shown
from tests.sanctum.population import population

RUN = population(envs=4, rounds=3, stop=5)


def test_screens_have_ascending_number_keys() -> None:
    keys = [screen_info.key for screen_info in SCREEN_INFO.values()]
    assert keys == sorted(set(keys))


def test_input_mounted_before_its_screen_is_accepted() -> None:
    """Reproduces the mount order of Python 3.12, whose tasks may start eagerly: Textual's issue 6444."""
    app, _ = live(RUN)
    assert not app.screen_stack
    app.clear_selection()


async def test_number_key_opens_screen_and_marks_its_tab() -> None:
    app, _ = live(RUN)
    async with opened(app) as pilot:
        for name, screen_info in SCREEN_INFO.items():
            if screen_info.is_search:
                assert screen_info.key not in shown(app, Tabs)
                continue
            await press(pilot, screen_info.key)
            assert app.screen.name == name
            assert f"{screen_info.key} {name}" in shown(app, Tabs)


async def test_screen_without_panels_is_not_updated() -> None:
    """On a busy machine, the theme is set or the source is read before a new screen has its panels."""
    app, _ = live(RUN)
    async with opened(app) as pilot:
        app.push_screen(OverviewScreen(app.view))
        app.refresh_view()
        await pilot.pause()
        assert isinstance(app.screen, OverviewScreen)


async def test_number_key_or_tab_closes_screens_on_top() -> None:
    app, _ = live(RUN)
    async with opened(app, "enter") as pilot:
        assert isinstance(app.screen, EnvDetailScreen)
        await pilot.press("1")
        assert [screen.name for screen in app.screen_stack] == ["overview"]
        await press(pilot, "enter")
        await pilot.click(Tabs, offset=(3, 0))
        await settle(pilot)
        assert app.screen.name == "overview"


async def test_command_palette_lists_screens() -> None:
    app, _ = live(RUN)
    async with app.run_test(size=(120, 40)):
        commands = {command.title for command in app.get_system_commands(app.screen)}
        screens = {f"{name.capitalize()} ({info.key})": info.is_search for name, info in SCREEN_INFO.items()}
        assert commands & screens.keys() == {name for name, is_search in screens.items() if not is_search}
