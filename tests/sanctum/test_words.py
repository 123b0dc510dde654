"""Words, units, notifications and screenshots of the dashboard, driven by keys."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from textual.widgets import Static

from esper.common.score_scale import PERCENT
from esper.recordings import events as ev
from esper.recordings.events.sentences import describe_transition
from esper.sanctum.screens.devices import MemoryByOwner
from esper.sanctum.screens.growth import BlueprintTable
from esper.sanctum.screens.help import HelpScreen, LegendScreen
from esper.sanctum.screens.numerics import LossScaleRange
from esper.sanctum.screens.policy import OpCounts
from esper.sanctum.symbols import (
    HEADS,
    STAGES,
    gain_cell,
    norm_cell,
    number_cell,
    percent_cell,
    scale_cell,
    size_cell,
)
from esper.sanctum.widgets.chart_grid import ChartGrid
from esper.sanctum.widgets.env_decision import EnvDecision
from esper.sanctum.widgets.footer import Footer
from esper.sanctum.widgets.heads import HeadFractionChart
from tests.factory import env_stepped, example_run, run_started, stamp
from tests.sanctum.driving import live, opened, press, replay, screen_text, shown
from tests.sanctum.population import moved

DOCS = Path(__file__).parents[2] / "docs" / "dashboard.md"
RUN = example_run()


@pytest.mark.parametrize(
    ("move", "phrase"),
    [
        (moved(0, "early", "germinated", "training", "norm", "G1"), "early germinated → training (passed gate 1)"),
        (moved(0, "early", "embargoed", "dormant", None, "timer"), "early free again (embargo ended)"),
        (moved(0, "early", "dormant", "germinated", "norm", "germinate"), "early germinated (norm planted)"),
        (
            moved(0, "early", "probationary", "blending", "norm", "set_alpha"),
            "early probationary → blending (set alpha)",
        ),
    ],
)
def test_transition_is_a_phrase(move: ev.SeedMoved, phrase: str) -> None:
    assert describe_transition(move) == phrase


def test_units_of_the_documentation_are_those_of_the_screens() -> None:
    rows = {
        cells[1].strip(): cells[3].strip(" `")
        for line in DOCS.read_text().partition("## Units\n")[2].partition("\n## ")[0].splitlines()
        if len(cells := line.split("|")) == 5
    }
    assert rows["accuracy"] == percent_cell(0.549).text.strip()
    assert rows["dependence, effect on the score"] == gain_cell(0.332, PERCENT).text.strip()
    assert rows["gradient norm"] == norm_cell(0.322).text.strip()
    assert rows["loss scale"] == scale_cell(2.0**14).text.strip()
    assert rows["memory, size of a checkpoint"] == size_cell(int(1.3 * 2**30)).text
    assert rows["fraction of time, batches or decisions"] == percent_cell(0.817).text.strip()
    assert rows["probability, entropy, alpha"] == number_cell(0.372, 1, 3, fixed=True).text.strip()


async def test_env_screen_has_phrases_and_names_the_way_back(tmp_path: Path) -> None:
    events = [
        run_started(),
        ev.RoundStarted(round=1),
        env_stepped(),
        moved(0, "early", "germinated", "training", "norm", "G1"),
    ]
    app, _ = replay(stamp(events), tmp_path, at_end=True)
    async with opened(app, "enter", size=(80, 24)) as pilot:
        assert "early germinated → training (passed gate 1)" in shown(app, EnvDecision)
        assert "Esc back" in shown(app, Footer)
        assert "g go to" in shown(app, Footer)
        assert "accuracy lost without it, pp" in screen_text(app)
        await press(pilot, "o", "o")
        assert "train acc % 30.0" in " ".join(screen_text(app).split())


async def test_policy_without_learning_shows_counts(tmp_path: Path) -> None:
    started = msgspec.structs.replace(run_started(), policy="heuristic")
    events = [event for event in RUN if not isinstance(event, (ev.RunStarted, ev.PolicyUpdated))]
    app, _ = replay(stamp([started, *events]), tmp_path, at_end=True)
    async with opened(app, "2", size=(80, 24)):
        counts = shown(app, OpCounts)
        assert "heuristic: fixed rules, nothing to train" in counts
        assert "wait " in counts
        assert app.screen.query_one(BlueprintTable).display
        assert not app.screen.query_one(ChartGrid).display
        assert not app.screen.query_one(HeadFractionChart).display


async def test_help_explains_heads_and_the_legend_explains_stages(tmp_path: Path) -> None:
    app, _ = replay(RUN, tmp_path)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("f1")
        assert isinstance(app.screen, HelpScreen)
        page = " ".join(app.screen.page("").plain.split())
        assert all(head.meaning in page for head in HEADS.values())
        await pilot.press("escape", "i")
        assert isinstance(app.screen, LegendScreen)
        legend = " ".join(app.screen.page("").plain.split())
        assert all(stage.meaning in legend for stage in STAGES.values())
        await pilot.press("i")
        assert not isinstance(app.screen, LegendScreen)


@pytest.mark.parametrize(
    ("step", "checkpoints_down", "lost"),
    [(1, 0, "1 step."), (5, 0, "1 round."), (3, 1, "1 round 3 steps; 1 later checkpoint kept in undone/.")],
)
async def test_restore_dialog_counts_lost_steps_across_rounds(
    tmp_path: Path, step: int, checkpoints_down: int, lost: str
) -> None:
    """A checkpoint after the last step of a round is that of the next round's start."""
    saved = [event for event in example_run(rounds=3) if isinstance(event, ev.CheckpointSaved)][:2]
    timed = ev.PhaseTimed(round=3, step=step, wall=0.1, phases={})
    run = stamp([run_started(rounds=3), *saved, ev.RoundStarted(round=3), timed])
    app, session = live(run)
    session.keep(tmp_path, run)
    async with opened(app) as pilot:
        await pilot.press("r", *["down"] * checkpoints_down)
        await pilot.pause()
        assert str(app.screen.query_one("#loss", Static).content) == f"Discards {lost}"


async def test_screenshots_have_no_notifications_and_different_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app, _ = replay(RUN, tmp_path)
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        app.notify("remarkable", timeout=60)
        await pilot.pause()
        assert "remarkable" in screen_text(app)
        await pilot.press("S")
        await pilot.pause()
        await pilot.press("S")
        await pilot.pause()
        files = sorted(tmp_path.glob("*.svg"))
        assert len(files) == 2
        assert not any("remarkable" in file.read_text() or "saved" in file.read_text() for file in files)
        assert "remarkable" in screen_text(app)


async def test_devices_screen_says_what_the_rest_is() -> None:
    sample = ev.DeviceSampled(
        device="cpu:0", envs=4, active=None, busy=0.9, allocated=3 * 2**30, reserved=None, used=2 * 2**30,
        total=16 * 2**30, utilisation=None, temperature=None, power=None, scale_min=2.0**2, scale_max=2.0**13,
        owners={"hosts": 13 * 2**10, "policy": 2 * 2**20},
    )  # fmt: skip
    app, _ = live(stamp([run_started(), ev.RoundStarted(round=1), env_stepped(), sample]))
    async with opened(app, "5", size=(80, 24)) as pilot:
        assert "rest: Python, code of the libraries, activations, allocator" in screen_text(app)
        assert "13.0 KiB" in shown(app, MemoryByOwner)
        assert "3.0 GiB" in shown(app, MemoryByOwner)
        await press(pilot, "4")
        assert "spread 2^11, limit 2^6" in shown(app, LossScaleRange)
