"""Actions: each is a method of the app, in the file of its subject."""

from __future__ import annotations

import inspect
from collections import Counter

from textual.app import App

from esper.sanctum.actions.base import BaseApp
from esper.sanctum.app import SanctumApp
from esper.sanctum.keys import APP_CATEGORIES, KEYS
from tests.sanctum.driving import live

SUBJECTS = [cls for cls in SanctumApp.__mro__ if issubclass(cls, BaseApp)]


class Plain(App[None]):
    """Has the attributes that Textual gives every class."""


def names(subject: type[object]) -> set[str]:
    return {name for name in vars(subject).keys() - vars(Plain) if not name.startswith("__")}


def test_actions_of_two_subjects_have_different_names() -> None:
    """A second method of one name would replace the first. Textual calls all handlers of one event.

    Each `begin_run` calls that of the next class.
    """
    count = Counter(name for subject in SUBJECTS for name in names(subject))
    assert {name for name, times in count.items() if times > 1} == {"begin_run", "on_load", "on_unmount"}


def test_actions_replace_only_these_names_of_textual() -> None:
    textual = {*dir(App), *vars(Plain())}
    replaced = {name for subject in SUBJECTS for name in names(subject) & textual if name.islower()}
    assert replaced == {
        "action_quit",
        "action_suspend_process",
        "check_action",
        "clear_selection",
        "get_driver_class",
        "get_line_filters",
        "get_system_commands",
        "notify",
        "on_event",
        "run_action",
    }


def test_every_key_of_the_app_has_an_action() -> None:
    app, _ = live([])
    for key in KEYS:
        if key.category in APP_CATEGORIES:
            action = getattr(app, f"action_{key.action.partition('(')[0]}")
            assert inspect.getdoc(action)
