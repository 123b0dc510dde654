"""The screens by number: keys, tabs, palette."""

from esper.sanctum.bindings import PLACES
from esper.sanctum.screens import SCREEN_CLASSES
from esper.sanctum.screens.env_detail import EnvDetail
from esper.sanctum.widgets.anomalies import AnomalyStrip
from esper.sanctum.widgets.tabs import Tabs
from tests.sanctum.driving import live, settle, shown
from tests.sanctum.population import population

RUN = population(envs=4, rounds=3, stop=5)


def test_every_place_has_its_screen() -> None:
    assert list(PLACES) == list(SCREEN_CLASSES)
    keys = [place.key for place in PLACES.values()]
    assert keys == sorted(set(keys))


def test_a_field_of_the_first_screen_may_come_before_the_screen() -> None:
    """As it does from Python 3.12 on, where a task begins where it is made: Textual's issue 6444."""
    app, _ = live(RUN)
    assert not app.screen_stack
    app.clear_selection()


async def test_a_number_key_opens_a_screen_and_the_tabs_say_so() -> None:
    app, _ = live(RUN)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        for name, place in PLACES.items():
            await pilot.press(place.key)
            await settle(pilot)
            assert type(app.screen).__name__ == SCREEN_CLASSES[name]
            assert f"{place.key} {name}" in shown(app, Tabs)


async def test_a_number_key_closes_what_lies_over_the_screen() -> None:
    app, _ = live(RUN)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await pilot.press("enter")
        assert isinstance(app.screen, EnvDetail)
        await pilot.press("1")
        assert [screen.name for screen in app.screen_stack] == ["overview"]


async def test_narrow_tabs_leave_the_line_to_the_anomalies() -> None:
    app, _ = live(RUN)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        assert shown(app, Tabs).split() == [
            word for name, place in PLACES.items() for word in [place.key, *([name] if name == "overview" else [])]
        ]
        assert app.screen.query_one(AnomalyStrip).size.width > 50


async def test_a_click_on_a_tab_opens_its_screen() -> None:
    app, _ = live(RUN)
    async with app.run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        await pilot.press("enter")
        await settle(pilot)
        await pilot.click(Tabs, offset=(3, 0))
        await settle(pilot)
        assert app.screen.name == "overview"


async def test_the_palette_knows_the_screens() -> None:
    app, _ = live(RUN)
    async with app.run_test(size=(120, 40)):
        commands = {command.title for command in app.get_system_commands(app.screen)}
        assert {name.capitalize() for name in PLACES} <= commands
