"""The numerics, devices and log screens: events to widgets, and every key."""

import math
from pathlib import Path

import msgspec
import pytest

from esper.recordings import events as ev
from esper.recordings.state.series import MAX_POINTS
from esper.sanctum.app import SanctumApp
from esper.sanctum.explanations import METRIC_HELP
from esper.sanctum.screens.devices import LaneUtilisation, MemoryByOwner, MemoryChart, PhaseFractions
from esper.sanctum.screens.env_detail import EnvDetailScreen, EnvStep
from esper.sanctum.screens.help import HelpScreen
from esper.sanctum.screens.log import LogList
from esper.sanctum.screens.moment_lists import MomentList
from esper.sanctum.screens.numerics import (
    OSCILLATION_GLYPH,
    SKIP_GLYPH,
    LossScaleChart,
    LossScaleRange,
    LossScaleTable,
    NonFiniteList,
)
from esper.sanctum.screens.overview import DeviceList
from esper.sanctum.symbols import scale_cell
from esper.sanctum.widgets.env_table import EnvTable
from esper.sanctum.widgets.footer import Footer
from esper.sanctum.widgets.panel import Panel
from esper.sanctum.widgets.problems import AnomalyStrip
from tests.factory import device_sampled, env_stepped, example_run, run_started, stamp
from tests.recordings.health.episodes import GOOD, cull, removed
from tests.sanctum.driving import ROOMY, drawn, emit, live, opened, press, replay, screen_text, settle, shown
from tests.sanctum.population import anomaly, population

MIB = 2**20
SCALES = (65536.0, 32768.0, 65536.0, 32768.0, 65536.0, 32768.0)
"""Loss scales of an env: two oscillations."""


def scaled_run() -> list[ev.AnyEvent]:
    started = msgspec.structs.replace(run_started(3, 10, 25), batches=10, growth_interval=2000)
    run: list[ev.AnyEvent] = [started, ev.RoundStarted(round=1)]
    for step, scale in enumerate(SCALES, 1):
        lost = int(step > 1 and scale < SCALES[step - 2])
        run.append(env_stepped(0, 1, step, loss_scale=scale, skipped_batches=lost, growth_tracker=1975, grad_norm=0.05))
        run.append(env_stepped(1, 1, step, loss_scale=65536.0, grad_norm=math.nan if step > 4 else 0.5))
        run.append(env_stepped(2, 1, step))
    run.append(device_sampled("cpu:0", scale_min=32768.0, scale_max=65536.0))
    return stamp(run)


def test_shared_loss_scale_counts_batches_of_all_envs() -> None:
    run = scaled_run()
    assert isinstance(run[0], ev.RunStarted)
    run[0] = msgspec.structs.replace(run[0], config={**run[0].config, "scaler": "device"})
    first = drawn(LossScaleTable, run).text.splitlines()[1]
    assert first.split()[3:5] == ["2", "steps"]  # 25 clean batches; cpu:0 has two envs, 10 batches each


@pytest.mark.parametrize(
    ("exponents", "middle", "least", "greatest"),
    [((14, 9, 13, -3), "2^11", "2^−3", "2^14"), ((14, None), "0", "0", "2^14")],
)
def test_summary_of_loss_scales_is_taken_over_exponents(
    exponents: tuple[int | None, ...], middle: str, least: str, greatest: str
) -> None:
    scales = [0.0 if exponent is None else 2.0**exponent for exponent in exponents]
    events = [env_stepped(env=env, loss_scale=scale) for env, scale in enumerate(scales)]
    run = stamp([run_started(len(scales), 10, 25), ev.RoundStarted(round=1), *events])
    table = drawn(EnvTable, run, (120, len(scales) + 5))
    rows = {row.split()[0]: row.split()[-1] for row in table.text.splitlines()[-3:]}
    assert rows == {"median": middle, "min": least, "max": greatest}


async def test_env_numerics_show_its_loss_scaler() -> None:
    app, _ = live(scaled_run())
    async with opened(app, "4", size=ROOMY) as pilot:
        rows = app.screen.query_one(LossScaleTable).text.splitlines()
        first, second, third = (row.split() for row in rows[1:4])
        # 3 of 60 batches were skipped; 25 clean batches to go take 3 steps
        assert first[:5] == ["▸00", "2^15", "5.0", "3", "steps"]
        assert first[5] == OSCILLATION_GLYPH
        assert f"█{SKIP_GLYPH}█{SKIP_GLYPH}█{SKIP_GLYPH}" in rows[1]
        assert rows[1].count("░") >= len(SCALES)
        assert second[1:3] == ["2^16", "0"]
        assert "×" in rows[2]
        assert third[1] == "–"
        assert shown(app, LossScaleRange) == "cpu:0 2^15 to 2^16 spread 2^1, limit 2^6"
        bad = shown(app, NonFiniteList)
        assert "2 0 1 5 env 01: the gradient of the host" in bad
        chart = app.screen.query_one(LossScaleChart)
        assert "2^16 ┤" in chart.text
        assert chart.text.count("╵") == 3
        assert str(chart.border_subtitle) == "batches skipped in 6 steps: 3  oscillations: 2"
        await pilot.press("down", "down")
        assert "no loss scaling" in app.screen.query_one(LossScaleChart).text
        await pilot.press("enter")
        assert isinstance(app.screen, EnvDetailScreen)


async def test_simultaneous_non_finite_values_are_listed_once() -> None:
    nan = math.nan
    run = [
        run_started(2, 3, 10), ev.RoundStarted(round=1),
        env_stepped(0, 1, 1, loss=nan), env_stepped(1, 1, 1, train_loss=nan, loss=nan, grad_norm=nan),
        env_stepped(0, 1, 2, loss=math.inf),
    ]  # fmt: skip
    app, _ = live(stamp(run))
    async with opened(app, "4", size=ROOMY) as pilot:
        panel = app.screen.query_one(NonFiniteList)
        assert str(panel.border_subtitle) == "4 quantities"
        words = "the training loss, the validation loss, the gradient of the host"
        assert shown(app, NonFiniteList) == (
            f"NaN inf round step 1 1 1 1 env 00: the validation loss 1 0 1 1 env 01: {words}"
        )
        await pilot.resize_terminal(80, 24)
        await settle(pilot)
        assert shown(app, NonFiniteList).endswith("env 01: the training loss, the validation …")


async def test_devices_screen_shows_memory_by_owner_and_forecast() -> None:
    run: list[ev.AnyEvent] = [run_started(2, 10, 25)]
    owners = {"hosts": 100 * MIB, "seeds": 50 * MIB}
    for round_ in range(1, 8):
        run += [ev.RoundStarted(round=round_), env_stepped(round=round_)]
        held = (1000 + 100 * round_) * MIB
        run.append(
            device_sampled(
                "cuda:0", allocated=200 * MIB, reserved=held, used=held, total=2000 * MIB, owners=owners,
                busy=0.5, launching=0.125, graphs=1234, utilisation=0.25, temperature=61.0, power=300.0,
            )
        )  # fmt: skip
    run += [
        device_sampled("cpu:0", busy=0.75, total=2**34, allocated=2**30),
        ev.PhaseTimed(round=7, step=1, wall=2.0, phases={"train": 1.5, "validate": 0.5}),
    ]
    app, _ = live(stamp(run))
    async with opened(app, "5", size=ROOMY) as pilot:
        chart = app.screen.query_one(MemoryChart)
        assert "memory of cuda:0" in str(chart.border_title)
        assert str(chart.border_subtitle) == "peak 1.7 GiB of 2.0 GiB, full in round 10"
        words = shown(app, MemoryByOwner).split()
        line = words[words.index("cuda:0") :]
        assert line[1:10] == ["100.0", "MiB", "50.0", "MiB", "–", "–", "–", "50.0", "MiB"]
        assert "hhhh" in line[10]
        lanes = shown(app, LaneUtilisation)
        assert "50.0 12.5 1234 25.0 61 300" in lanes
        assert "75.0 – – – – –" in lanes
        phases = shown(app, PhaseFractions)
        assert phases.startswith("train ━")
        assert "75.0 75.0" in phases
        await pilot.press("o")
        assert "memory of cpu" in str(chart.border_title)


async def test_memory_chart_labels_each_curve_once() -> None:
    samples = [
        device_sampled(
            lane, allocated=2**30, reserved=2**31 if lane == "cuda:0" else None, used=3 * 2**30, total=2**32,
            owners={"hosts": MIB},
        )
        for _ in range(3)
        for lane in ("cuda:0", "cpu:0", "cpu:1")
    ]  # fmt: skip
    app, _ = live(stamp([run_started(2, 10, 25), ev.RoundStarted(round=1), *samples]))
    async with opened(app, "5", size=(80, 34)) as pilot:
        chart = app.screen.query_one(MemoryChart)
        ends = [line.split()[-2:] for line in chart.text.splitlines() if line[-1:].isdigit()][:-1]
        assert ends == [["total", "4"], ["use", "3"], ["reserved", "2"], ["allocated", "1"]]
        assert "peak 2.0 GiB of 4.0 GiB, no trend yet" in screen_text(
            app
        )  # the panel has no bottom border for its subtitle
        await pilot.press("o")
        ends = [line.split()[-2:] for line in chart.text.splitlines() if line[-1:].isdigit()][:-1]
        assert ends == [["total", "4"], ["machine", "3"], ["run", "1"]]
        owners = {row[:9].strip(): row[9:].split() for row in app.screen.query_one(MemoryByOwner).text.splitlines()}
    assert owners["cuda:0"] == ["1.0", "MiB", "–", "–", "–", "–", "1023.0", "MiB"]
    assert owners["cpu:0"] == owners["cpu:1"] == ["1.0", "MiB", "–", "–", "–", "–", "–"]
    assert owners["cpu all"] == ["2.0", "MiB", "–", "–", "–", "–", "1022.0", "MiB"]


def test_memory_curve_label_shows_the_latest_sample() -> None:
    used = [2] * (MAX_POINTS - 1) + [3]
    samples = [device_sampled("cpu:0", allocated=2**30, used=gib * 2**30, total=2**33) for gib in used]
    chart = drawn(MemoryChart, stamp([run_started(2, 10, 25), ev.RoundStarted(round=1), *samples]), (80, 20))
    assert chart.state.curves["memory used/cpu:0"].values[-1] == 2.5 * 2**30
    assert "machine 3" in chart.text


def test_memory_of_each_process_is_counted_once() -> None:
    samples = [
        device_sampled(lane, allocated=size, used=3 * 2**30, total=2**32, owners={"hosts": MIB})
        for lane, size in (("cpu:0", 2**30), ("cpu:1", 2**30), ("1/cpu:0", 2**29), ("1/cpu:1", 2**29))
    ]
    run = stamp([run_started(2, 10, 25), ev.RoundStarted(round=1), *samples])
    lanes = drawn(DeviceList, run, (30, 8)).text.splitlines()
    assert [line.split()[1] for line in lanes if line.startswith(" run")] == ["1", "0.5"], lanes
    owners = {row[:11].strip(): row[11:].split() for row in drawn(MemoryByOwner, run, (116, 8)).text.splitlines()}
    assert owners["cpu all"][6] == "1022.0"
    assert owners["1/cpu all"][6] == "510.0"


async def test_log_can_be_filtered_searched_and_opens_the_env() -> None:
    run = stamp(
        [
            run_started(3),
            ev.Logged(severity="warning", text="the disk is slow"),
            anomaly(),
            ev.Logged(severity="info", text="all is well"),
        ]
    )
    app, _ = live(run)
    async with opened(app, "6") as pilot:
        log = app.screen.query_one(LogList)
        assert len(log.text.split("\n")) >= 4
        await pilot.press("v")
        assert "all is well" not in log.text
        await pilot.press("v")
        assert "the disk is slow" not in log.text
        await pilot.press("v", "f", "f", "f")
        assert log.filter.category == "anomalies"
        assert "all is well" not in log.text
        await pilot.press("escape", "e")
        assert "no matching line" in log.text  # env 0 has no log lines
        await pilot.press("escape", "slash", *"DISK", "enter")
        assert log.text.split() == ["▸14:13:20", "▲", "the", "disk", "is", "slow"]
        await pilot.press("slash", "escape")
        assert "all is well" in log.text
        await pilot.press("slash", *"disk", "enter", "escape")
        assert "all is well" in log.text
        await pilot.press("slash", "enter")  # the box keeps its text, which applies again
        assert "all is well" not in log.text
        await pilot.press("escape", "slash", "escape")
        await pilot.press("home", "down", "down", "enter")
        assert isinstance(app.screen, EnvDetailScreen)
        assert app.view.selected_env == 2


async def test_enter_on_log_line_goes_to_its_moment(tmp_path: Path) -> None:
    app, playback = replay(example_run(), tmp_path, at_end=True)
    async with opened(app, "6") as pilot:
        await pilot.press("f", "f", "f", "home", "enter")
        [line] = [line for line in app.source.state.log if line.kind == "AnomalyFound"]
        assert playback.position == min(step for step in playback.history.steps if step >= line.seq)
        assert app.view.selected_env == 1


async def test_enter_on_anomaly_goes_to_its_target() -> None:
    app, _ = live(population())
    async with opened(app, "a") as pilot:
        text = screen_text(app)
        assert "Anomalies: 3 active, 0 ended" in text
        assert "scale_diverged: 512, limit 4; since 14:13:27" in text
        await press(pilot, "down", "enter")
        assert isinstance(app.screen, EnvDetailScreen)
        assert app.view.selected_env == 12
        await pilot.press("escape", "a", "escape")
        assert not isinstance(app.screen, MomentList)
        app.screen.query_one(AnomalyStrip).focus()
        await pilot.press("enter")
        assert app.view.selected_env == 9


async def test_anomaly_of_several_envs_shows_their_number() -> None:
    joined = ev.AnomalyJoined(rule="r", where="env 2", env=0, value=1.0, text="env 00 is broken")
    app, _ = live(stamp([run_started(3), ev.RoundStarted(round=1), *map(env_stepped, range(3)), anomaly(), joined]))
    async with opened(app, size=ROOMY) as pilot:
        assert shown(app, AnomalyStrip) == "✖ 1 env 02 is broken, 2 envs"
        assert app.view.severity_by_env() == {2: "error", 0: "error"}
        await press(pilot, "a")
        assert ", in 2 envs" in screen_text(app)


async def test_too_small_loss_scale_is_called_so() -> None:
    steps = [env_stepped(0, loss_scale=2.0**-43), env_stepped(1, loss_scale=2.0**15), env_stepped(2)]
    sample = device_sampled("cpu:0", scale_min=2.0**-43, scale_max=2.0**15)
    app, _ = live(stamp([run_started(3), ev.RoundStarted(round=1), *steps, sample]))
    async with opened(app, "4") as pilot:
        rows = app.screen.query_one(LossScaleTable).text.splitlines()
        assert ["too small" in row for row in rows[1:4]] == [True, False, False]
        assert shown(app, LossScaleRange).endswith("too small")
        await press(pilot, "enter")
        step = app.screen.query_one("#last-step EnvStep", EnvStep).text.splitlines()
        assert step[1].startswith(" loss scale    2^−43")
        assert step[2].startswith(" · too small")
    assert scale_cell(2.0**-43).role == "bad"
    assert scale_cell(1.0).role == "normal"


async def test_ended_anomalies_are_counted_and_can_be_found() -> None:
    run = stamp([run_started(3), ev.RoundStarted(round=1), anomaly(0), ev.AnomalyEnded(rule="r", where="env 0", env=0)])
    app, session = live(run[:2])
    async with opened(app, size=ROOMY) as pilot:
        assert shown(app, AnomalyStrip) == "✓ no anomalies"
        assert "a anomalies" not in shown(app, Footer)
        session.say(run[2])
        await settle(pilot)
        assert "a anomalies W why" in shown(app, Footer)
        session.say(run[3])
        await settle(pilot)
        assert shown(app, AnomalyStrip) == "✓ no active anomalies, 1 ended (a lists them) ended: env 00, r"
        assert "a anomalies" in shown(app, Footer)
        await pilot.resize_terminal(60, 20)
        await settle(pilot)
        assert shown(app, AnomalyStrip) == "✓ no active anomalies, 1 ended"
        assert "a anomalies" in shown(app, Footer)
        await press(pilot, "a")
        assert "Anomalies: 0 active, 1 ended" in screen_text(app)


async def test_root_cause_list_begins_with_the_decision(tmp_path: Path) -> None:
    culled = {**cull("0"), **removed(score=0.5, train_score=0.5)}
    steps = [env_stepped(0, 1, step, **change) for step, change in enumerate([*GOOD, culled], 1)]
    app, playback = replay(stamp([run_started(2, 5, 25), ev.RoundStarted(round=1), *steps]), tmp_path, at_end=True)
    async with opened(app, "W") as pilot:
        lines = [line.strip(" │┃▌▐▎") for line in screen_text(app).splitlines()]
        heading, first, symptom = (
            next(index for index, line in enumerate(lines) if text in line)
            for text in (
                "Likely cause, env 00, round 1",
                "1 cull norm in mid: seed removed",
                "fell from 80.0% to 50.0%",
            )
        )
        assert heading < first < symptom
        await pilot.press("enter")
        assert playback.position == 7
        assert isinstance(app.screen, EnvDetailScreen)


async def test_root_cause_signals_are_in_order_of_time(tmp_path: Path) -> None:
    steps = [env_stepped(0, 1, step) for step in range(1, 6)]
    run = [run_started(2, 5, 25), ev.RoundStarted(round=1), *steps, env_stepped(0, 1, 6, grad_norm=50.0)]
    run.append(env_stepped(0, 1, 7, grad_norm=math.nan))
    app, playback = replay(stamp(run), tmp_path, at_end=True)
    async with opened(app, "W") as pilot:
        text = screen_text(app)
        assert "Likely cause, env 00, round 1: no decision changed the network within 3 steps" in text
        assert "gradient of the host is 50, more than 8" in text
        assert "not finite: gradient of the host" in text
        await pilot.press("enter")
        assert playback.position == 8
        assert isinstance(app.screen, EnvDetailScreen)


async def test_every_panel_has_a_help_text() -> None:
    frame = {"Header", "Tabs", "PauseCausePanel", "Timeline", "Footer"}
    app, _ = live(population())
    async with opened(app) as pilot:
        for key in ("1", "2", "3", "4", "5", "6", "7", "1", "enter"):
            await pilot.press(key)
            await settle(pilot)
            panels = [panel for panel in app.screen.query(Panel) if panel.display and type(panel).__name__ not in frame]
            assert panels
            for panel in panels:
                assert panel.METRICS, type(panel)
                assert all(name in str(panel.tooltip) for name in panel.METRICS)
            await pilot.press("question_mark")
            assert isinstance(app.screen, HelpScreen)
            page = app.screen.page("").plain
            for panel in panels:
                for name in panel.METRICS:
                    assert f"{name}\n" in page
                    assert all(METRIC_HELP[name]._replace(unit="none"))
            await pilot.press("escape")


async def test_bell_rings_when_an_anomaly_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    for bell in (True, False):
        app, session = live(stamp([run_started(3), ev.RoundStarted(round=1)]), bell=bell)
        rung: list[int] = []
        monkeypatch.setattr(SanctumApp, "bell", lambda self, rung=rung: rung.append(1))
        async with opened(app) as pilot:
            app.update_stats(0.0)
            await emit(pilot, session, anomaly(), env_stepped())
            app.update_stats(0.2)
            app.update_stats(0.4)
            assert len(rung) == bell
