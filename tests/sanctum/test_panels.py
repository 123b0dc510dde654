"""Panels: from events to the rendered text."""

import math
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from rich.cells import cell_len
from rich.color import Color
from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from esper.recordings import events as ev
from esper.recordings.history.summary_builder import summarise
from esper.recordings.state.state import SERIES_POINTS, Keyframe
from esper.sanctum.keys import SCREEN_INFO
from esper.sanctum.screens.env_detail import EnvDetailScreen, EnvStep
from esper.sanctum.screens.overview import DeviceList, LogPreview
from esper.sanctum.theme import DEFAULT_THEME, load_themes
from esper.sanctum.widgets.env_decision import EnvDecision
from esper.sanctum.widgets.env_story import EnvRewardChart, EnvStory, SlotLanes
from esper.sanctum.widgets.env_table import EnvTable
from esper.sanctum.widgets.header import Header
from esper.sanctum.widgets.heads import HeadList
from esper.sanctum.widgets.panel import Line, Panel
from esper.sanctum.widgets.population_score import RoundScores, StepScores
from esper.sanctum.widgets.problems import AnomalyStrip
from tests.factory import device_sampled, env_stepped, example_run, policy_updated, run_started, stamp
from tests.sanctum.driving import (
    ROOMY,
    SIZE,
    copy_of_default,
    drawn,
    emit,
    live,
    opened,
    press,
    replay,
    screen_text,
    settle,
    shown,
    until,
    words,
)
from tests.sanctum.population import anomaly, episode_ended, moved, population

SLOTS = [
    ev.SlotReading(stage="fossilized", blueprint="norm", alpha=0.7, age=9, parameters=1234),
    ev.SlotReading(
        stage="blending", blueprint="conv_small", alpha=0.25, age=3, parameters=148, grad_norm=0.2,
        dependence=0.042, dependence_se=0.011,
    ),
    ev.SlotReading(stage="training", blueprint="conv_light", age=1, parameters=90, grad_norm=0.0),
]  # fmt: skip


def beginning(envs: int = 3) -> list[ev.AnyEvent]:
    return [run_started(envs, 100, 25), ev.RoundStarted(round=1)]


def row(text: str, env: int) -> list[str]:
    """Words of an env's row."""
    return next(line for line in text.splitlines() if line.lstrip(" ▸").startswith(f"{env:02d}")).split()


def test_header_shows_run_status_and_counts() -> None:
    run = [
        *beginning(),
        *(env_stepped(env) for env in range(3)),
        ev.PhaseTimed(round=14, step=11, wall=0.25, phases={}),
    ]
    text = words(drawn(Header, stamp(run)))
    assert "digits_impaired-20261121-015300 ppo 3 envs on cpu:0 cpu:1" in text
    assert "● RUNNING round 14/100" in text
    assert "step 11/25 12 env-steps/s 0s elapsed, 9m01s left" in text  # 3 envs in 0.25 s; 2164 such steps remain


def test_env_row_shows_all_columns() -> None:
    step = env_stepped(1, score=0.8764, reward=-0.1234, grad_norm=4.314, loss_scale=32768.0, slots=SLOTS)
    line = row(drawn(EnvTable, stamp([*beginning(), step])).text, 1)
    assert line[:2] == ["01", "87.6"]
    assert "−0.123 F norm" in " ".join(line)
    assert "0.70 b conv_small" in " ".join(line)
    assert "0.25 t conv_light – 4.31 2^15 cpu:1" in " ".join(line)


def test_env_row_distinguishes_missing_zero_and_nan() -> None:
    run = [
        *beginning(),
        env_stepped(1, grad_norm=0.0, reward=0.0),
        env_stepped(2, grad_norm=math.nan, loss_scale=math.nan),
    ]
    text = drawn(EnvTable, stamp(run)).text
    assert row(text, 0) == ["▸00", "–", "–", "–", "–", "–", "–", "–", "cpu:0"]
    assert row(text, 1)[-3:] == ["0", "–", "cpu:1"]
    assert row(text, 2)[-3:] == ["NaN", "NaN", "cpu:0"]


def test_env_row_has_the_return_of_its_episode_so_far() -> None:
    steps = [env_stepped(0, 1, step, reward=reward) for step, reward in ((1, 0.25), (2, -0.5), (3, 0.75))]
    run = [*beginning(), *steps, env_stepped(1, 1, 3, reward=0.1)]
    text = drawn(EnvTable, stamp(run)).text
    assert "+0.500" in row(text, 0)
    assert "+0.300" in next(line for line in text.splitlines() if "median" in line)
    ended = ev.EpisodeEnded(
        round=1, env=0, score=0.5, best_score=0.5, episode_return=0.5, parameter_ratio=1.0, fossilized=0, culled=0
    )
    run += [ended, ev.RoundStarted(round=2)]
    assert "+0.500" in row(drawn(EnvTable, stamp(run)).text, 0)  # that of the previous episode, like the other values
    assert "+0.125" in row(drawn(EnvTable, stamp([*run, env_stepped(0, 2, 1, reward=0.125)])).text, 0)


def test_figures_of_a_narrow_line_are_never_cut() -> None:
    names = ("op", "slot", "blueprint", "style", "tempo", "alpha_target", "alpha_speed", "alpha_curve")
    heads = {name: ev.HeadReading(grad_norm=0.091, entropy=0.5) for name in names}
    run = stamp([*beginning(), policy_updated(heads=heads)])
    for width in range(80, 45, -5):
        text = words(drawn(HeadList, run, (width, 1)))
        values = text.removeprefix("gradient norm").split()[1::2]
        assert len(values) >= 3
        assert {value.rstrip("…") for value in values} <= {".091", ".09", ""}, width
        assert text.endswith("…") == (width < 78)  # the shortest names and figures that fit are chosen first


def test_summary_rows_ignore_missing_values() -> None:
    steps = [env_stepped(0, score=0.2), env_stepped(1, score=0.4, grad_norm=math.nan)]
    table = drawn(EnvTable, stamp([*beginning(), *steps]), (120, 8))
    assert [line.split() for line in table.text.splitlines()[-3:]] == [
        ["median", "30.0", "+0.125", "2·", "2b", "2z", "0.80", "–"],
        ["min", "20.0", "+0.125", "0.80", "–"],
        ["max", "40.0", "+0.125", "0.80", "–"],
    ]


def test_env_rows_show_their_worst_anomaly() -> None:
    anomalies = [
        anomaly(1),
        anomaly(1, "env 01 is odd", rule="b", severity="warning"),
        anomaly(2, "env 02 is odd", rule="b", severity="warning"),
    ]
    run = stamp([*beginning(), *(env_stepped(env) for env in range(3)), *anomalies])
    text = drawn(EnvTable, run).text
    assert [row(text, env)[0] for env in range(3)] == ["▸00", "01✖", "02▲"]
    assert words(drawn(AnomalyStrip, run)) == "✖ 3 env 01 is broken · env 02 is odd · env 01 is odd"


async def test_long_anomaly_text_ends_in_an_ellipsis() -> None:
    text = "the gradient of the host is 3.33 at round 3 step 20, more than 10 times its median " * 2
    anomalies = [anomaly(env, text, severity="warning") for env in range(12)]
    app, _ = live(stamp([*beginning(), *anomalies]))
    async with opened(app, size=(80, 24)) as pilot:
        for key in "14":
            await press(pilot, key)
            second = screen_text(app).splitlines()[1].rstrip()
            assert "▲ 12  the gradient of the host" in second
            assert second.endswith("…  +11 more")
        await press(pilot, "a")
        rows = screen_text(app).splitlines()
        top = next(number for number, row in enumerate(rows) if "▲ the gradient" in row)
        start = rows[top].index("▲ the")
        assert rows[top + 1][start : start + 2] == "  "
        assert rows[top + 1][start + 2] != " "  # wrapped lines are indented past the glyph


@pytest.mark.parametrize("slots", [["only"], ["a", "b", "c", "d", "e", "f"]])
def test_env_row_fits_any_number_of_slots(slots: list[str]) -> None:
    started = msgspec.structs.replace(run_started(2, 5, 5), slot_names=slots)
    readings = [ev.SlotReading(stage="blending", blueprint="norm", alpha=0.5) for _ in slots]
    text = drawn(EnvTable, stamp([started, ev.RoundStarted(round=1), env_stepped(0, slots=readings)]), (80, 24)).text
    heading = text.splitlines()[0].split()
    assert [word for word in heading if word in slots] == slots
    assert row(text, 0).count("b") == len(slots)


def test_heads_panel_shows_each_head() -> None:
    updates = [policy_updated(1), policy_updated(2, kl=0.5, explained_variance=None)]
    panel = drawn(HeadList, stamp([*beginning(), *updates]), (60, 8))
    lines = {line.split()[0]: line.split() for line in panel.text.splitlines() if not line.startswith(" alpha")}
    assert lines["slot"][1] == "0.120"
    assert lines["slot"][-1] == "0.90"
    assert lines["tempo"][1] == "–"  # no gradient
    assert lines["tempo"][-1] == "0.80"
    assert panel.text.splitlines()[-1].split() == ["alpha", "curve", "–", "–"]
    assert panel.panel_subtitle == "explained variance –  KL 0.5  clipped fraction 0.08"


def test_devices_panel_shows_each_lane() -> None:
    run = [
        *beginning(),
        device_sampled("cpu:0", busy=0.962, allocated=int(1.31 * 2**30), used=6 * 2**30, total=24 * 2**30),
        device_sampled("cpu:1", busy=None, allocated=int(1.31 * 2**30), used=6 * 2**30, total=24 * 2**30),
        device_sampled("cuda:0", envs=8, allocated=3 * 2**30, reserved=5 * 2**30, used=75 * 2**30, total=80 * 2**30),
    ]
    lines = [" ".join(line.split()) for line in drawn(DeviceList, stamp(run), (60, 5)).text.splitlines()]
    assert lines[0].startswith("cpu:0 2 envs ━")
    assert lines[0].endswith("96.2 %")
    assert lines[1] == "cpu:1 2 envs – %"
    assert lines[2].startswith("cuda:0 8 envs")
    assert lines[3] == "allocated 3.00 reserved 5.00 of 80.0 GiB"
    assert lines[4] == "process 1.31 machine 6.00 of 24.0 GiB"


def test_log_panel_shows_latest_lines() -> None:
    run = [
        *beginning(),
        ev.Logged(severity="warning", text="the disk is nearly full"),
        ev.Logged(severity="info", text="\x1b[2J"),
    ]
    lines = drawn(LogPreview, stamp(run)).text.rstrip().splitlines()
    assert lines[-2].split() == ["14:13:20", "1:1", "▲", "the", "disk", "is", "nearly", "full"]
    assert "\x1b" not in lines[-1]


def test_population_accuracy_panel_shows_chart() -> None:
    ended = [episode_ended(round_, env, 0.1 * round_ + env / 10) for round_ in (1, 2) for env in range(3)]
    panel = drawn(RoundScores, stamp([*beginning(), *ended[:3], ev.RoundStarted(round=2)]))
    assert panel.panel_subtitle == "median 20.0  quartiles 15.0 to 25.0  min 10.0  max 30.0"
    assert "•" in panel.text  # one point
    panel = drawn(RoundScores, stamp([*beginning(), *ended[:3], ev.RoundStarted(round=2), *ended[3:]]))
    assert panel.panel_subtitle == "median 30.0  quartiles 25.0 to 35.0  min 20.0  max 40.0"
    assert "•" not in panel.text


def test_score_charts_have_axes_before_the_first_point() -> None:
    run: list[ev.AnyEvent] = [run_started(2, 3, 8), ev.RoundStarted(round=1)]
    assert drawn(RoundScores, stamp(run)).text.splitlines()[-1].split() == ["1", "2", "3"]
    steps = drawn(StepScores, stamp(run))
    assert "┤" in steps.text
    assert steps.text.splitlines()[-1].split()[-1] == "8"
    assert steps.panel_title == "round 1: every network began anew"
    run += [env_stepped(env, step=step) for step in (1, 2) for env in range(2)]
    run.append(ev.PhaseTimed(round=1, step=2, wall=1.0, phases={}))
    assert drawn(StepScores, stamp(run)).panel_title == "validation accuracy % ─ steps 1–2 of round 1"


def test_chart_by_step_names_the_step_that_it_reaches() -> None:
    """In the middle of a step, the table has the next scores of some envs, so that its median is another one."""
    run: list[ev.AnyEvent] = [run_started(3, 3, 8), ev.RoundStarted(round=1)]
    run += [env_stepped(env, step=step, score=0.1 * step) for step in (1, 2, 3) for env in range(3)]
    run.append(ev.PhaseTimed(round=1, step=3, wall=1.0, phases={}))
    run += [env_stepped(env, step=4, score=0.7) for env in (0, 1)]
    steps = drawn(StepScores, stamp(run))
    assert (steps.panel_title or "").endswith("steps 1–3 of round 1")
    assert (steps.panel_subtitle or "").startswith("median 30.0")
    median = next(line for line in drawn(EnvTable, stamp(run)).text.splitlines() if line.startswith("median"))
    assert median.split()[1] == "70.0"
    steps = drawn(StepScores, stamp([*run, env_stepped(2, step=4, score=0.7)]))
    assert (steps.panel_title or "").endswith("steps 1–4 of round 1")
    assert (steps.panel_subtitle or "").startswith("median 70.0")


def test_values_below_a_narrow_chart_are_shortened_and_not_dropped() -> None:
    run = [run_started(3, 3, 8), ev.RoundStarted(round=1)]
    run += [env_stepped(env, step=1, score=0.1 + 0.4 * env) for env in range(3)]
    for columns, values in (
        (56, "median 50.0  quartiles 30.0 to 70.0  min 10.0  max 90.0"),
        (39, "50.0  q 30.0–70.0  min 10.0  max 90.0"),
    ):
        panel = drawn(StepScores, stamp(run), (columns, 18))
        assert panel.panel_subtitle == values
        assert len(values.replace("  ", " ")) <= columns + 2 - 6


async def test_values_at_the_cursor_are_those_of_show(tmp_path: Path) -> None:
    app, playback = replay(example_run(rounds=4), tmp_path, at_end=True)
    summary = summarise(playback.history, 0.0)
    assert summary is not None
    async with opened(app, size=(200, 60)) as pilot:
        panel = app.screen.query_one(RoundScores)
        panel.focus()
        for finished in reversed(summary.finished):
            await press(pilot, "left")
            low, lower, middle, upper, high = (f"{100 * value:.1f}" for value in finished.score)
            wanted = f"median {middle}  quartiles {lower} to {upper}  min {low}  max {high}"
            assert str(panel.border_subtitle) == f"round {finished.round}: {wanted}"


async def test_scores_by_step_are_drawn_once_per_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=1000.0, monotonic=lambda: clock.now)
    monkeypatch.setattr("esper.sanctum.widgets.paced_panel.time", clock)
    monkeypatch.setattr("esper.sanctum.widgets.paced_panel.REDRAW_INTERVAL_S", 0.1)
    app, session = live(stamp([run_started(1, 3, 8), ev.RoundStarted(round=1)]))
    async with opened(app, size=ROOMY) as pilot:
        steps = app.screen.query_one(StepScores)
        for step in (1, 2):
            await emit(pilot, session, env_stepped(0, step=step, score=step / 10))
        assert not str(steps.border_subtitle).startswith("median 20.0")
        clock.now += 0.1
        await until(pilot, lambda: str(steps.border_subtitle).startswith("median 20.0"))


def test_scores_by_step_leave_out_an_env_that_was_rolled_back() -> None:
    out = ev.GovernorRolledBack(env=1, round=1, step=2, reason="collapse", value=0.0)
    run = [run_started(3, 3, 8), ev.RoundStarted(round=1)]
    run += [env_stepped(env, step=step, score=0.1 * step) for step in (1, 2) for env in range(3)]
    run += [out, *(env_stepped(env, step=3, score=0.4) for env in (0, 2))]
    assert (drawn(StepScores, stamp(run)).panel_subtitle or "").startswith("median 40.0")


def test_accuracy_by_step_of_a_long_episode_shows_its_last_steps() -> None:
    run: list[ev.AnyEvent] = [run_started(2, 3, 400), ev.RoundStarted(round=1)]
    run += [env_stepped(env, step=step, score=step / 400) for step in range(1, 301) for env in range(2)]
    run.append(env_stepped(0, step=301, score=1.0))
    panel = drawn(StepScores, stamp(run))
    assert panel.panel_subtitle == "median 75.0  quartiles 75.0 to 75.0  min 75.0  max 75.0"
    axis = panel.text.splitlines()[-1].split()
    assert (axis[0], axis[-1]) == ("62", "301")


def test_accuracy_chart_shows_the_last_round_of_a_long_run() -> None:
    run: list[ev.AnyEvent] = [run_started(1, SERIES_POINTS + 5, 5)]
    for round_ in range(1, SERIES_POINTS + 5):
        run += [ev.RoundStarted(round=round_), episode_ended(round_, 0, 0.2)]
    run.append(ev.RoundStarted(round=SERIES_POINTS + 5))
    run += [episode_ended(SERIES_POINTS + 5, 0, 0.9), ev.RunEnded(outcome="stopped")]
    assert (drawn(RoundScores, stamp(run)).panel_subtitle or "").startswith("median 90.0")


async def test_env_screen_panels_show_the_selected_env() -> None:
    checks = [
        ev.GateCheck(name="age", passed=False, value=1, threshold=3),
        ev.GateCheck(name="gradient measured", passed=True),
        ev.GateCheck(name="gradient finite", passed=False, value=math.nan),
    ]
    run = [
        *beginning(),
        moved(2, "late", "germinated", "training", "conv_light", "G1 open"),
        ev.GateRefused(round=1, step=1, env=2, slot="late", gate="G2", checks=checks),
        env_stepped(
            2, op="germinate", target="late", score=0.61, reward=0.125, slots=SLOTS, loss=1.234, op_probability=None,
            skipped_batches=4, overflows_by_owner={"mid": 4},
        ),
    ]  # fmt: skip
    app, _ = live(stamp(run))
    async with opened(app, "end", "enter", size=ROOMY):
        assert isinstance(app.screen, EnvDetailScreen)
        assert "env 02 on cpu:0" in str(app.screen.query_one(EnvStory).border_title)
        assert str(app.screen.query_one(EnvStory).border_subtitle) == "best 61.0"
        assert str(app.screen.query_one(EnvRewardChart).border_subtitle) == "return +0.125"
        text = app.screen.query_one(SlotLanes).text.splitlines()
        slots = [line.split() for line in text if line.startswith(("early", "mid", "late"))]
        assert slots[0][:5] == ["early", "F", "F", "fossilized", "norm"]
        assert slots[0][-5:] == ["0.70", "–", "–", "1,234", "9"]
        assert slots[1][:5] == ["mid", "b", "b", "blending", "conv_small"]
        assert slots[1][-7:] == ["0.25", "+4.2", "±", "1.1", "0.200", "148", "3"]
        step = " ".join(app.screen.query_one("#last-step EnvStep", EnvStep).text.split())
        assert step.startswith("op germinate in late loss 1.23")
        assert "op chance –" in step
        assert "mid overflow 4" in step
        for reward in ("reward +0.125", "· accuracy +0.150", "· rent −0.025"):
            assert reward in step
        decision = shown(app, EnvDecision)
        assert decision.startswith("g germinate in late press x")
        assert "t late germinated → training (G1 open)" in decision
        assert "▲ gate 2 refuses late since step 1: age 1, needs 3; gradient finite NaN" in decision
        assert "gradient measured" not in decision


def test_reward_components_always_show_the_largest() -> None:
    parts = {"score": 0.003, "rent": -0.005, "op": -0.001, "dependence": 0.0, "penalty": -1.0}
    step = env_stepped(0, reward=-1.003, reward_parts=parts)
    run = stamp([*beginning(), step])
    text = words(drawn(EnvStep, run, (36, 18)))
    assert "reward −1.00 · accuracy +0.003 · rent −0.005 · op −0.001 · dependence 0 · penalty −1.00" in text
    assert words(drawn(EnvStep, run, (36, 7))).endswith("reward −1.00 · rent −0.005 · penalty −1.00")


async def test_panel_repaints_only_changed_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    run = stamp([*beginning(8), *(env_stepped(env) for env in range(8))])
    app, session = live(run)
    async with opened(app, size=ROOMY):
        table = app.screen.query_one(EnvTable)
        painted: list[int] = []
        refresh = table.refresh

        def record(*regions: Region) -> object:
            painted.extend(y for region in regions for y in region.line_range)
            return refresh(*regions)

        monkeypatch.setattr(table, "refresh", record)
        session.emit(env_stepped(5, score=0.9))
        app.source.tick(0.0)
        app.refresh_view()
        assert painted == [6, 12]  # row of env 5 and the maximum; median and minimum are unchanged


def cells(strips: list[Strip]) -> list[list[tuple[str, Color | None, Color | None]]]:
    """Character, text colour and background of each cell; blanks have no text colour."""

    def cell(character: str, style: Style) -> tuple[str, Color | None, Color | None]:
        blank = character == " " and not style.reverse
        return character, None if blank else style.color, style.bgcolor

    return [[cell(char, part.style or Style()) for part in strip for char in part.text] for strip in strips]


@pytest.mark.parametrize(("theme", "size"), [("sanctum-light", (80, 24)), ("other-rules", SIZE)])
async def test_env_rows_render_like_textual(theme: str, size: tuple[int, int], user_themes: Path) -> None:
    copy_of_default(user_themes, "other-rules", "[severities]", '[variables]\nrule = "#4d4954"\n\n[severities]')
    app, session = live(population())
    async with opened(app, size=size) as pilot:
        app.theme = theme
        for number, screen in enumerate(SCREEN_INFO):
            app.action_go(screen)
            await settle(pilot)
            await emit(pilot, session, env_stepped(5, score=0.5 + number / 100))
            for panel in app.screen.query(Panel):
                width, height = panel.outer_size
                for crop in (Region(0, 0, width, height), Region(1, 0, width - 2, height)):
                    if panel.display:
                        assert cells(panel.render_lines(crop)) == cells(Widget.render_lines(panel, crop)), panel


async def test_env_rows_fill_a_new_size_before_redraw(monkeypatch: pytest.MonkeyPatch) -> None:
    app, _ = live(population())
    async with opened(app) as pilot:
        monkeypatch.setattr(Panel, "update", lambda _: None)
        await pilot.resize_terminal(*ROOMY)
        for panel in app.screen.query(Panel):
            width, height = panel.outer_size
            rows = panel.render_lines(Region(0, 0, width, height))
            assert not panel.display or [cell_len(row.text) for row in rows] == [width] * height, panel


async def test_panels_redraw_after_restore() -> None:
    run = population(envs=4, stop=3)
    app, session = live(run)
    async with opened(app, size=ROOMY) as pilot:
        before = app.screen.query_one(EnvTable).text
        changed = app.source.state.envs[0].stepped
        assert changed is not None
        app.source.state.envs[0].stepped = msgspec.structs.replace(
            changed, score=0.99
        )  # the same position in another history
        session.say(Keyframe.from_state(app.source.state))
        await settle(pilot)
        after = app.screen.query_one(EnvTable).text
    assert row(before, 0)[1] != "99.0"
    assert row(after, 0)[1] == "99.0"


async def test_border_value_is_shown_in_full_or_omitted() -> None:
    values = {-0.0123: "−0.012", 0.995: "0.99"}
    app, session = live(stamp(beginning()))
    seen: dict[float, set[str]] = {variance: set() for variance in values}
    async with app.run_test(size=(80, 24)) as pilot:
        for width in range(110, 300, 12):
            await pilot.resize_terminal(width, 40)
            for variance, found in seen.items():
                await emit(pilot, session, policy_updated(kl=0.0291, clip_fraction=0.0183, explained_variance=variance))
                found |= {line.strip("╰╯─ ") for line in screen_text(app).splitlines() if "explained" in line}
    for variance, found in seen.items():
        notes = {part.strip("─ ") for line in found for part in line.split("╰") if part.strip("─ ╯").startswith("expl")}
        notes = {note.partition(" ─")[0].strip("─ ╯") for note in notes}
        first = f"explained variance {values[variance]}"
        assert first in notes
        assert notes <= {first, f"{first}  KL 0.029", f"{first}  KL 0.029  clipped fraction 0.018"}


def test_equal_lines_of_a_step_are_one_line_of_the_log() -> None:
    moved = {"round": 1, "step": 1, "slot": "mid", "before": "dormant", "after": "germinated", "reason": "policy"}
    planted = [ev.SeedMoved(env=env, blueprint="norm", **moved) for env in range(3)]
    log = drawn(LogPreview, stamp([*beginning(), *planted]))
    assert log.text.split()[-7:] == ["3", "seeds", "planted:", "env", "00", "01", "02"]


def test_wrapping_keeps_all_wide_characters() -> None:
    text = "the disk of 漢字" * 8
    log = drawn(LogPreview, stamp([*beginning(), ev.Logged(severity="warning", text=text)]), (60, 8))
    assert text.replace(" ", "") in "".join(log.text.split())


@pytest.mark.parametrize("width", [38, 60, 100])
def test_heads_show_the_whole_entropy(width: int) -> None:
    panel = drawn(HeadList, population(), (width, 8))
    assert panel.state.update is not None
    entropy = panel.state.update.heads["op"].entropy
    assert entropy is not None
    [line] = [line for line in panel.text.splitlines() if line.split()[0] == "op"]
    assert line.split()[-1].lstrip("0") == f"{entropy:.2f}".lstrip("0")


def test_blanks_in_reverse_video_stay_visible_after_other_text() -> None:
    line = Line(load_themes()[DEFAULT_THEME]).append("▲", "warning").append("  ", "bad").append(" ", "normal")
    assert [(text, style is not None and bool(style.reverse)) for text, style, _ in line.row(4)] == [
        ("▲", False),
        ("  ", True),
        (" ", False),
    ]
