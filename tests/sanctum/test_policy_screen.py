"""The policy screen: update and decision events to panels."""

import math

import pytest

from esper.recordings import events as ev
from esper.recordings.events.sentences import describe_event
from esper.recordings.state.curves import UPDATE_QUANTITIES
from esper.sanctum.screens.policy import SHOWN_QUANTITIES, Decisions, PolicyHabits
from esper.sanctum.symbols import head_label
from esper.sanctum.widgets.chart_grid import ChartGrid
from esper.sanctum.widgets.heads import GRADIENT_NORM, HeadFractionChart, fractions
from esper.sanctum.widgets.policy_chart import PolicyChart
from tests.factory import HEADS, env_stepped, example_run, policy_updated, run_started, stamp
from tests.sanctum.driving import ROOMY, drawn, emit, live, opened, press, screen_text, words

STARTED = [run_started(3, 20, 5), ev.RoundStarted(round=1)]


def updated(round_: int, **norms: float | None) -> ev.PolicyUpdated:
    heads = {name: ev.HeadReading(grad_norm=norms.get(name, 0.1), entropy=0.5) for name in HEADS}
    return policy_updated(round_, heads=heads)


def test_head_fractions_ignore_missing_values() -> None:
    assert fractions([3.0, None, 1.0]) == [0.75, 0.0, 0.25]
    assert fractions([None, 0.0]) is None
    assert all(map(math.isnan, fractions([1.0, math.nan]) or []))


def head_fractions(run: list[ev.AnyEvent]) -> HeadFractionChart:
    return drawn(lambda view: HeadFractionChart(view, GRADIENT_NORM, by_head=True), run, (90, 20))


def test_latest_fractions_are_beside_their_bands() -> None:
    run = stamp([*STARTED, updated(1, op=0.3), updated(2, op=0.7, slot=0.0, tempo=None)])
    shares = words(head_fractions(run)).split()
    beside = {shares[i - 1]: word for i, word in enumerate(shares) if word.endswith("%") and word != "100%"}
    assert beside == {head_label(name).split()[-1]: "8%" for name in HEADS} | {"op": "58%", "slot": "0%", "tempo": "0%"}


def test_labels_of_thin_bands_keep_the_band_order() -> None:
    thin = dict.fromkeys(HEADS, 0.001)
    run = stamp([*STARTED, updated(1, **thin), updated(2, **thin | {"op": 0.5})])
    lines = head_fractions(run).text.splitlines()
    order = [line.split()[-2] for line in lines if line.endswith("%") and line.split()[-1] != "100%"]
    assert order == [head_label(name).split()[-1] for name in reversed(HEADS)]


def test_latest_return_is_that_of_the_log() -> None:
    updated = policy_updated(1, episode_return=0.66454)
    chart = drawn(lambda view: PolicyChart(view, "mean return"), stamp([*STARTED, updated]), (60, 12))
    assert chart.panel_subtitle == "latest +0.665"
    assert "mean return +0.665" in str(describe_event(updated))


async def test_norm_chart_has_log_axis_and_labels_at_both_ends() -> None:
    app, _ = live(stamp([*STARTED, updated(1, op=0.004), updated(2, op=3.0, slot=0.0, tempo=None)]))
    async with opened(app, "2", size=ROOMY):
        lines = app.screen.query(PolicyChart).first().text.splitlines()
    ticks = [line.split()[0] for line in lines if "┤" in line]
    assert ticks == ["1", "0.1", "0.01"]
    rows = {line.split()[-1]: number for number, line in enumerate(lines[:-1]) if line.split()[-1] != "│"}
    assert set(rows) >= {head_label(name).split()[-1] for name in HEADS}
    assert rows["op"] < rows["blueprint"] < rows["slot"]  # 3, 0.1 and 0


@pytest.mark.parametrize("size", [(80, 24), ROOMY])
async def test_habits_of_the_policy_are_a_sentence(size: tuple[int, int]) -> None:
    germinated = env_stepped(
        0, 4, 2, op="germinate", target="mid", decision={"blueprint": ev.HeadChoice(choice="norm")}
    )
    run = [
        germinated if isinstance(event, ev.EnvStepped) and (event.round, event.step, event.env) == (4, 2, 0) else event
        for event in example_run(1, 4, 5)
    ]
    app, _ = live(stamp(run))
    async with opened(app, "2", size=size):
        text = " ".join(app.screen.query_one(PolicyHabits).text.split())
        lines = app.screen.query_one(Decisions).text.splitlines()
    last = "last 2 rounds: plants norm in mid at step 2 (1 of 2), waits 9 of 10 (2 episodes)"
    assert text == (f"{last} first 2 rounds: never acts (2 episodes)" if size == ROOMY else last)
    assert any(line.split()[:1] == ["fossilize"] for line in lines)  # no op gives way to the sentence


async def test_subtitle_moves_to_heading_without_bottom_border() -> None:
    app, _ = live(stamp([*STARTED, updated(1, op=0.004), updated(2, op=3.0)]))
    async with opened(app, "2", size=(80, 24)):
        assert "mean return ─ by round ─ o 1/9" in screen_text(app)


async def test_policy_screen_without_policy_has_no_curves() -> None:
    app, _ = live(stamp(STARTED))
    async with opened(app, "2", size=ROOMY):
        assert {chart.text.strip() for chart in app.screen.query(PolicyChart)} == {"no policy update yet"}


async def test_quantities_of_an_update_have_charts() -> None:
    shown_fields = {field: name for field, name in UPDATE_QUANTITIES.items() if name in SHOWN_QUANTITIES}
    values = {field: round(0.1 + index / 10, 3) for index, field in enumerate(shown_fields)}
    app, _ = live(stamp([*STARTED, policy_updated(1), policy_updated(2, **values)]))
    async with opened(app, "2", size=ROOMY):
        charts = list(app.screen.query_one(ChartGrid).query(PolicyChart))
        titles = {str(chart.border_title): str(chart.border_subtitle) for chart in charts}
    units = {"KL": "KL nats", "clip fraction": "clip fraction %"}
    for field, name in shown_fields.items():
        text = {"mean return": "+.3f", "clip fraction": ".1%"}.get(name, ".3g")
        value = f"{values[field]:{text}}".removesuffix("%")
        assert titles[f"{units.get(name, name)} ─ by round"] == f"latest {value}"


async def test_o_key_shows_next_metrics_when_space_is_short() -> None:
    app, _ = live(stamp([*STARTED, policy_updated(1), policy_updated(2, explained_variance=None)]))
    async with opened(app, "2", size=(80, 24)) as pilot:
        seen: list[str] = []
        charts = app.screen.query_one(ChartGrid).query(PolicyChart)
        for number in range(1, len(SHOWN_QUANTITIES) + 1):
            [chart] = [chart for chart in charts if chart.display]
            title = str(chart.panel_title)
            assert f"o {number}/9" in title
            seen.append(title.partition(" ─")[0].removesuffix(" nats").removesuffix(" %"))
            await press(pilot, "o")
        assert seen == list(SHOWN_QUANTITIES)
        await press(pilot, *["o"] * seen.index("explained variance"))
        [chart] = [chart for chart in charts if chart.display]
        assert chart.panel_subtitle == "latest –"


async def test_decisions_distinguish_chosen_illegal_and_unknown() -> None:
    chosen = env_stepped(
        1, step=1, op="germinate", target="mid", op_probability=0.25,
        op_probabilities={"wait": 0.75, "germinate": 0.25},
        decision={"slot": ev.HeadChoice(choice="mid", probability=0.5), "blueprint": ev.HeadChoice(choice="norm")},
    )  # fmt: skip
    app, session = live(stamp([*STARTED, env_stepped(0, op_probability=None), chosen, env_stepped(2)]))
    async with opened(app, "2", size=ROOMY) as pilot:
        panel = app.screen.query_one(Decisions)
        assert "env 00" in str(panel.border_title)
        assert "illegal" not in panel.text
        lines = {line.split()[1 if line.startswith("▸") else 0]: line.split() for line in panel.text.splitlines()[1:7]}
        assert lines["wait"][-1] == "–"
        await pilot.press("j")
        assert "env 01, step 1" in str(panel.border_title)
        lines = {line.strip("▸ ").split()[0]: line for line in panel.text.splitlines()[1:7]}
        assert lines["germinate"].startswith("▸ germinate  33.3%")
        assert "0.250 ━" in lines["germinate"]
        assert "0.750 ━" in lines["wait"]
        assert lines["cull"].endswith("illegal")
        assert panel.text.splitlines()[9].split() == ["1", "germinate", "mid", "0.25", "blueprint", "norm"]
        await pilot.press("k", "k")
        assert "env 00" in str(panel.border_title)
        await emit(pilot, session, ev.RoundStarted(round=2))
        assert "0.250" not in panel.text
        await pilot.press("j", "enter")
        assert app.screen.name is None  # the env screen lies over the policy screen
        await pilot.press("escape")
        assert app.screen.name == "policy"
