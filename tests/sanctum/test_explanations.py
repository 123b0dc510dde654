"""Explanations of metrics and anomaly rules."""

from __future__ import annotations

import msgspec

from esper.config import AnomalyConfig
from esper.health.rules import RULES
from esper.sanctum.explanations import METRIC_HELP, RECOVERY_HELP, explain_metric
from esper.sanctum.screens.help import MetricHelpScreen
from tests.factory import run_started
from tests.sanctum.driving import live


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
