"""Explanations of metrics and anomaly rules."""

from __future__ import annotations

from pathlib import Path

import msgspec
from textual.geometry import Region

from esper.common.configuration.config import AnomalyConfig
from esper.recordings.health.rules import RULES
from esper.sanctum.explanations import METRIC_HELP, RECOVERY_HELP, explain_metric
from esper.sanctum.screens.help import HelpScreen
from esper.sanctum.widgets.curve_chart import CurveChart
from esper.sanctum.widgets.footer import Footer
from esper.sanctum.widgets.problems import AnomalyStrip
from tests.factory import run_started
from tests.sanctum.driving import live, opened, press, replay, resize, screen_text, shown
from tests.sanctum.population import population


def test_every_threshold_is_explained() -> None:
    texts = " ".join([*(info.explanation for info in RULES.values()), RECOVERY_HELP])
    assert [field.name for field in msgspec.structs.fields(AnomalyConfig) if f"limits.{field.name}" not in texts] == []


def test_help_shows_the_thresholds_of_the_run() -> None:
    limits = AnomalyConfig(kl=0.37, explosion_steps=4)
    app, _ = live([msgspec.structs.replace(run_started(), config={"anomalies": msgspec.to_builtins(limits)})])
    app.source.tick(0.0)
    page = HelpScreen(app.view, metrics=["anomalies", "update"]).page("").plain
    assert page.count("0.37") == 2
    assert "for 4 steps" in " ".join(page.split())
    assert all("{" not in text for name in METRIC_HELP for text in explain_metric(name, limits, app.view.key_names))


async def test_help_begins_with_the_keys_and_the_metrics_of_the_screen() -> None:
    app, _ = live(population(envs=2, rounds=2))
    async with opened(app, "6", "question_mark", size=(80, 24)) as pilot:
        assert "Keys of this screen" in screen_text(app)
        assert isinstance(app.screen, HelpScreen)
        page = app.screen.page("").plain
        texts = ["show only lines that contain a text", "one line for each notable event", "each env grows a new"]
        places = [page.index(text) for text in texts]
        assert places == sorted(places)
        assert page.count(texts[0]) == 1
        await press(pilot, "question_mark")
        assert not isinstance(app.screen, HelpScreen)


async def test_help_shows_what_contains_the_typed_text() -> None:
    app, _ = live(population(envs=2, rounds=2))
    async with opened(app, "question_mark", *"/lamp", size=(60, 15)) as pilot:
        assert "nothing contains this text" in screen_text(app)
        await press(pilot, *["backspace"] * 4, *"Loss Scale")
        text = " ".join(screen_text(app).split())
        assert "factor of the loss that keeps float16" in text
        assert "Keys of this screen" not in text
        await press(pilot, *["backspace"] * 10, *"filter envs")
        assert "/ filter envs: text" in " ".join(screen_text(app).split())
        await press(pilot, "escape")
        assert not isinstance(app.screen, HelpScreen)


async def test_help_opens_at_the_metric_under_the_cursor(tmp_path: Path) -> None:
    app, _ = replay(population(envs=4, rounds=2), tmp_path, at_end=True)

    def first_line() -> str:
        return next(line for line in screen_text(app).splitlines()[2:] if "│" in line).split("│")[-2].strip(" ▁▂▃▄▅▆▇█")

    async with opened(app, "o", "question_mark", size=(60, 15)) as pilot:
        assert first_line() == "score"
        await press(pilot, "escape", "tab", "question_mark")
        assert first_line() == "score"
        await press(pilot, "escape")
        app.screen.query_one(AnomalyStrip).focus()
        await press(pilot, "question_mark")
        assert first_line() == "anomalies"
        await press(pilot, "escape")
        await resize(pilot, (120, 40))
        await press(pilot, "7")
        chart = next(chart for chart in app.screen.query(CurveChart) if chart.group.quantity == "gradient norm")
        assert chart.metrics == ("gradient norm", "curves")
        chart.focus()
        await press(pilot, "question_mark")
        assert "mean L2 norm of the gradients" in screen_text(app)


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
