"""Explanations of metrics and anomaly rules."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
from textual.geometry import Region

from esper.common.configuration.config import AnomalyConfig
from esper.recordings.health.rules import RULES
from esper.sanctum.explanations import METRIC_HELP, RECOVERY_HELP, explain_metric
from esper.sanctum.screens.help import MetricHelpScreen
from esper.sanctum.widgets.footer import Footer
from tests.factory import run_started
from tests.sanctum.driving import live, opened, press, replay, screen_text, shown
from tests.sanctum.population import population


def test_every_threshold_is_explained() -> None:
    texts = " ".join([*(info.explanation for info in RULES.values()), RECOVERY_HELP])
    assert [field.name for field in msgspec.structs.fields(AnomalyConfig) if f"limits.{field.name}" not in texts] == []


def test_help_shows_the_thresholds_of_the_run() -> None:
    limits = AnomalyConfig(kl=0.37, explosion_steps=4)
    app, _ = live([msgspec.structs.replace(run_started(), config={"anomalies": msgspec.to_builtins(limits)})])
    app.source.tick(0.0)
    page = MetricHelpScreen(app.view, ["anomalies", "update"]).page().plain
    assert page.count("0.37") == 2
    assert "for 4 steps" in " ".join(page.split())
    assert all("{" not in text for name in METRIC_HELP for text in explain_metric(name, limits, app.view.key_names))


async def test_words_are_on_the_first_page_of_the_help_in_one_line_each() -> None:
    app, _ = live(population(envs=2, rounds=2))
    async with opened(app, "question_mark", size=(60, 15)):
        lines = screen_text(app).splitlines()
        first = next(index for index, line in enumerate(lines) if "each env grows a new network" in line)
        for word, line in zip(("round", "step", "env", "slot", "seed", "head", "stage"), lines[first:], strict=False):
            assert re.search(rf"│ +{word} +\w", line)


async def test_dialogs_fit_into_60_by_15(tmp_path: Path) -> None:
    app, _ = replay(population(envs=2, rounds=2), tmp_path, at_end=True)
    async with opened(app, size=(60, 15)) as pilot:
        for key in ("question_mark", "f1", "i", "a", "g", "W"):
            await press(pilot, key)
            assert Region(0, 0, 60, 15).contains_region(app.screen.query_one("#dialog").region), key
            await press(pilot, "escape")


async def test_key_of_the_stages_is_in_the_footer_where_stages_are_letters() -> None:
    app, _ = live(population(envs=2, rounds=2))
    async with opened(app, size=(60, 15)) as pilot:
        assert "i stages" in shown(app, Footer)
        await pilot.resize_terminal(80, 24)
        await press(pilot, "6")
        assert "i stages" not in shown(app, Footer)
