"""The env table and the env heat map: keys and mouse."""

import json
import math
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from textual.widgets import Input, Static

from esper.common.domain import StageName
from esper.recordings import events as ev
from esper.recordings.state.state import EnvState
from esper.sanctum.app import SanctumApp
from esper.sanctum.screens.env_detail import EnvDetailScreen
from esper.sanctum.screens.overview import OverviewScreen
from esper.sanctum.widgets.env_columns import STAGES_BY_PRIORITY, choose_layout, sortable_columns
from esper.sanctum.widgets.env_map import METRICS, EnvMap, compute_standings
from esper.sanctum.widgets.env_table import EnvTable, FilterBox
from tests.factory import env_stepped, run_started, stamp
from tests.sanctum.driving import ROOMY, SIZE, emit, live, notices, opened, press, replay, resize, screen_text
from tests.sanctum.population import anomaly, population


def small(grad_norm: float = 0.8) -> list[ev.AnyEvent]:
    """Accuracies 0.3, 0.5, 0.2, 0.4, …; the last env has not stepped."""
    scores = [0.3, 0.5, 0.2, 0.4, 0.6]
    steps = [env_stepped(env, score=accuracy, grad_norm=grad_norm) for env, accuracy in enumerate(scores)]
    return stamp([run_started(6), ev.RoundStarted(round=1), *steps])


def rows(app: SanctumApp) -> list[int]:
    """Env indices of the table's rows, top to bottom."""
    lines = app.screen.query_one(EnvTable).text.splitlines()[1:]
    return [int(line[1:3]) for line in lines if line[1:3].isdigit()]


def cursor(app: SanctumApp) -> str:
    return next(line[1:3] for line in app.screen.query_one(EnvTable).text.splitlines() if line.startswith("▸"))


def filter_message(app: SanctumApp) -> str:
    return str(app.screen.query_one("#message", Static).render())


async def test_sort_key_cycles_columns_and_keeps_selected_env() -> None:
    app, session = live(small())
    async with opened(app) as pilot:
        await pilot.press("j", "j", "o")
        table = app.screen.query_one(EnvTable)
        assert rows(app) == [4, 1, 3, 0, 2, 5]
        assert "by accuracy ↓" in str(table.border_title)
        assert "acc %↓" in table.text.splitlines()[0]
        assert cursor(app) == "02"
        await pilot.press("O")
        assert rows(app) == [2, 0, 3, 1, 4, 5]
        await emit(pilot, session, env_stepped(2, score=0.9))
        assert rows(app) == [0, 3, 1, 4, 2, 5]
        assert cursor(app) == "02"
        seen = []
        for _ in range(9):
            await pilot.press("o")
            seen.append(str(table.border_title).split(" by ")[1].split()[0])
        assert seen == ["return", "early", "mid", "late", "gradient", "loss", "lane", "env", "accuracy"]


@pytest.mark.parametrize(
    ("changes", "columns"),
    [
        ({}, ["gradient norm", "loss scale", "lane"]),
        ({"growth_interval": None}, ["gradient norm", "lane"]),
        ({"lanes": ["cuda:0"] * 4}, ["gradient norm", "loss scale"]),
    ],
)
def test_columns_without_values_are_left_out(changes: dict[str, Any], columns: list[str]) -> None:
    started = replace(run_started(), **changes)
    assert sortable_columns(started)[-len(columns) :] == columns
    layout = choose_layout(100, started)
    assert bool(layout.loss_scale) == ("loss scale" in columns)
    assert bool(layout.lane) == ("lane" in columns)


def test_table_without_loss_scales_has_whole_names_at_120_columns() -> None:
    started = replace(run_started(), growth_interval=None)
    assert choose_layout(83, started).blueprint == 10
    assert choose_layout(120, started, ["self_attention"]).blueprint == 14


async def test_clicking_column_heading_sorts_then_reverses() -> None:
    app, _ = live(small())
    async with opened(app) as pilot:
        table = app.screen.query_one(EnvTable)
        column = table.text.splitlines()[0].index("acc")
        await pilot.click(EnvTable, offset=(column + 2, 1))
        assert rows(app)[0] == 4
        await pilot.click(EnvTable, offset=(column + 2, 1))
        assert rows(app)[0] == 2
        await pilot.click(EnvTable, offset=(3, 3))  # the row below the first
        assert cursor(app) == "00"


async def test_slot_column_sorts_by_stage_then_alpha() -> None:
    def slots(stage: StageName, alpha: float | None) -> list[ev.SlotReading]:
        return [ev.SlotReading(stage=stage, alpha=alpha), *[ev.SlotReading(stage="dormant")] * 2]

    readings: list[tuple[StageName, float | None]] = [
        ("blending", 0.2),
        ("fossilized", 1.0),
        ("blending", 0.8),
        ("dormant", None),
        ("training", None),
    ]
    steps = [env_stepped(env, slots=slots(*reading)) for env, reading in enumerate(readings)]
    app, _ = live(stamp([run_started(5), ev.RoundStarted(round=1), *steps]))
    async with opened(app) as pilot:
        await pilot.press("o", "o", "o")
        assert rows(app) == [1, 2, 0, 4, 3]


async def test_filter_is_evaluated_again_each_step() -> None:
    app, session = live(small())
    async with opened(app) as pilot:
        await pilot.press("slash", *"acc<0.4", "enter")
        assert filter_message(app) == "2 of 6"
        await emit(pilot, session, env_stepped(2, score=0.9))
        assert filter_message(app) == "1 of 6"


async def test_count_of_a_filter_that_is_typed_follows_the_run() -> None:
    app, session = live(small())
    async with opened(app) as pilot:
        await pilot.press("slash", *"acc>0.85")
        assert filter_message(app) == "0 of 6; Enter applies"
        await emit(pilot, session, env_stepped(3, score=0.9))
        assert filter_message(app) == "1 of 6; Enter applies"
        await pilot.press(*"x", "enter")  # an error stays as it is
        message = filter_message(app)
        await emit(pilot, session, env_stepped(4, score=0.9))
        assert filter_message(app) == message
        assert app.screen.query_one("#message").has_class("invalid")


async def test_env_map_keeps_focus_when_filter_is_cancelled() -> None:
    app, _ = live(small())
    async with opened(app) as pilot:
        await pilot.press("slash", *"acc<0.9", "enter", "w", "escape")
        assert isinstance(app.focused, EnvMap)


async def test_env_screen_is_opened_once() -> None:
    app, _ = live(small())
    async with opened(app) as pilot:
        await pilot.press("enter")
        app.action_open_env()
        await pilot.press("escape")
        assert isinstance(app.focused, EnvTable)


async def test_env_screen_follows_the_order_of_the_list() -> None:
    app, session = live(small())
    async with opened(app) as pilot:
        await press(pilot, "o", *"/score>=30%", "enter")
        assert rows(app) == [4, 1, 3, 0]
        await press(pilot, "enter")
        seen = [app.view.selected_env]
        for key in "jjjjk":
            await press(pilot, key)
            seen.append(app.view.selected_env)
        assert seen == [0, 0, 0, 0, 0, 3]
        await emit(pilot, session, env_stepped(4, step=2, score=0.3))
        await press(pilot, "k", "k")
        assert app.view.selected_env == 4  # the order is that of the moment when the env was opened
        await press(pilot, "escape", "w", "enter", "k")
        assert app.view.selected_env == 3  # the map is ordered by number


async def test_filter_applies_after_enter_and_previews_its_count() -> None:
    app, _ = live(small())
    async with opened(app) as pilot:
        await pilot.press("slash")
        assert app.screen.query_one("FilterBox Input", Input).placeholder == "score<30.0% stage:F anomaly"
        for key in "acc<0.4":
            await pilot.press(key)
            assert len(rows(app)) == 6, filter_message(app)
        assert filter_message(app) == "2 of 6; Enter applies"
        await pilot.press("enter")
        assert rows(app) == [0, 2]
        assert filter_message(app) == "2 of 6"
        assert isinstance(app.focused, EnvTable)
        assert "of 2 of 6" in str(app.focused.border_subtitle)
        assert app.screen.query_one(FilterBox).display
        await pilot.press("j", "j")
        assert cursor(app) == "02"
        await pilot.press("escape")
        assert len(rows(app)) == 6
        assert not app.screen.query_one(FilterBox).display


async def test_invalid_filter_is_refused_and_keeps_rows() -> None:
    app, _ = live(small())
    async with opened(app) as pilot:
        await pilot.press("slash", *"acc<[/x]", "enter")
        assert isinstance(app.focused, Input)
        assert "got '[/x]'" in filter_message(app)  # no markup
        assert len(rows(app)) == 6  # nothing was confirmed yet
        await pilot.press("escape")
        assert len(rows(app)) == 6
        assert isinstance(app.focused, EnvTable)
        await pilot.press("slash", *"anomaly", "enter")
        assert rows(app) == []
        assert "0 of 6" in str(app.screen.query_one(EnvTable).border_subtitle)
        await pilot.press("slash", "x", "escape")
        assert app.view.env_filter is not None
        assert app.view.env_filter.text == "anomaly"


async def test_beginning_of_a_term_is_not_searched_as_text() -> None:
    app, _ = live(small())
    async with opened(app) as pilot:
        await pilot.press("slash", *"acc>0.35", "enter", "slash")
        message = app.screen.query_one("#message", Static)
        for text in ("a", "acc", "acc<", "stage:bl", "bl"):
            await pilot.press("home", *["delete"] * 8, *text)
            assert rows(app) == [1, 3, 4], text  # the last confirmed filter
            assert not message.has_class("invalid"), text
            assert message.render(), text
            await pilot.press("enter")
            assert message.has_class("invalid"), text
            assert isinstance(app.focused, Input)
            assert rows(app) == [1, 3, 4], text


async def test_env_map_dims_envs_that_a_filter_excludes() -> None:
    app, _ = live(small())
    async with opened(app) as pilot:
        await pilot.press("w", "slash", *"acc<0.4", "enter")
        panel = app.screen.query_one(EnvMap)
        assert panel.display
        assert "filter acc<0.4" in str(panel.border_title)
        assert filter_message(app) == "2 of 6"
        absent = app.view.palette["absent"]
        dimmed = "".join(part.text for part in panel.render_line(0) if part.style and part.style.color == absent.color)
        assert re.findall(r"\b\d\d\b", dimmed) == ["01", "03", "04", "05"]
        await pilot.press("escape")
        assert "filter" not in str(panel.border_title)


async def test_closed_filter_box_receives_no_keys() -> None:
    app, session = live(small())
    async with app.run_test(size=SIZE) as pilot:
        await press(pilot, "x", "tab", "a", "escape", "p", "tab", "tab", "z")
        assert app.screen.query_one(Input).value == ""
        assert len(rows(app)) == 6
        assert [request.kind.value for request in session.asked()] == ["pause"]
        await pilot.press("slash", "p", "q", "enter")
        assert session.asked() == []
        assert app.view.env_filter is not None
        assert app.view.env_filter.text == "pq"


async def test_pinned_rows_stay_on_top_despite_filter() -> None:
    app, _ = live(small())
    async with opened(app) as pilot:
        await pilot.press("end", "P", "home", "j", "P")
        assert rows(app)[:2] == [0, 5] or rows(app)[:2] == [5, 0]
        await pilot.press("slash", *"acc>0.55", "enter")
        assert set(rows(app)) == {0, 5, 4}
        pinned = [line[0] for line in app.screen.query_one(EnvTable).text.splitlines()[1:3]]
        assert sorted(pinned) == ["•", "▸"]
        await pilot.press("P")
        assert "1 pinned" in str(app.screen.query_one(EnvTable).border_title)


async def test_follow_selects_worst_env_until_cursor_moves() -> None:
    app, session = live(small())
    async with opened(app) as pilot:
        await pilot.press("f")
        assert cursor(app) == "02"
        await emit(pilot, session, env_stepped(2, score=0.9))
        assert cursor(app) == "00"
        await emit(pilot, session, anomaly(4))
        assert cursor(app) == "04"
        await pilot.press("k")
        assert cursor(app) == "03"
        await emit(pilot, session, env_stepped(1, score=0.01))
        assert cursor(app) == "03"


async def test_all_256_envs_can_be_selected() -> None:
    app, _ = live(population(envs=256, rounds=2, stop=2))
    async with opened(app, "w", "o", "end") as pilot:
        table = app.screen.query_one(EnvTable)
        assert any(line.startswith("▸") for line in table.text.splitlines())
        assert "256 of 256" in str(table.border_subtitle)
        await pilot.press("pageup", "home")
        assert str(table.border_subtitle).startswith("1–")


async def test_copy_key_copies_env_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[str] = []
    app, _ = live(small(grad_norm=math.nan))
    monkeypatch.setattr(app, "copy_to_clipboard", copied.append)
    async with opened(app) as pilot:
        await pilot.press("j", "y")
        row = json.loads(copied[0])
        assert (row["env"], row["lane"], row["stepped"]["score"], row["stepped"]["grad_norm"]) == (
            1,
            "cpu:1",
            0.5,
            "NaN",
        )
        await pilot.press("enter", "j", "y")
        assert json.loads(copied[1])["env"] == 2


async def test_screenshot_goes_to_run_directory_or_to_cwd_in_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    app, session = live(small())
    session.directory = tmp_path / "run"
    async with opened(app) as pilot:
        await pilot.press("S")
        (svg,) = (tmp_path / "run").glob("*.svg")
        assert svg.name == "digits_impaired-20261121-015300-round001-step000.svg"
        assert any(str(svg) in notice for notice in notices(app))
        (tmp_path / "run").rename(tmp_path / "away")
        (tmp_path / "run").mkdir()
        await pilot.press("S")
        assert any("another directory is in its place" in notice for notice in notices(app))
        assert list((tmp_path / "run").iterdir()) == []
    app, _ = replay(small(), tmp_path)
    async with opened(app) as pilot:
        await pilot.press("S")
        assert len(list((tmp_path / "here").glob("*.svg"))) == 1


async def test_screenshot_stays_in_the_directory_if_the_recorded_name_is_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    events = [
        msgspec.structs.replace(event, run="../escaped") if isinstance(event, ev.RunStarted) else event
        for event in small()
    ]
    app, _ = replay(events, tmp_path, at_end=True)
    async with opened(app) as pilot:
        await pilot.press("S")
    (svg,) = tmp_path.rglob("*.svg")
    assert svg.parent == tmp_path / "here"


def states(*scores: float | None) -> list[EnvState]:
    return [
        EnvState(env=env, lane="cpu:0", stepped=None if accuracy is None else env_stepped(env, score=accuracy))
        for env, accuracy in enumerate(scores)
    ]


def test_env_map_ranks_from_worst_and_marks_outliers() -> None:
    accuracy = METRICS[0]
    standings = compute_standings(states(0.7, 0.71, 0.1, 0.72, None, 0.9, math.nan, 0.7), accuracy)
    assert [standing.rank for standing in standings] == [1, 3, 0, 4, None, 5, 0, 1]
    assert [standing.is_outlier for standing in standings] == [False, False, True, False, False, False, True, False]
    assert standings[4].role == "absent"
    assert compute_standings(states(0.5, 0.5, 0.5, 0.4), accuracy)[3].is_outlier
    assert not any(standing.is_outlier for standing in compute_standings(states(0.5, 0.5), accuracy))
    assert not any(standing.is_outlier for standing in compute_standings(states(0.4, 0.5, 0.6), accuracy))


def test_env_map_treats_high_as_bad_for_losses() -> None:
    loss = next(metric for metric in METRICS if metric.name == "loss")
    envs = [EnvState(env=i, lane="", stepped=env_stepped(i, loss=value)) for i, value in enumerate((1.0, 1.1, 9.0))]
    assert [standing.rank for standing in compute_standings(envs, loss)] == [2, 1, 0]
    assert compute_standings(envs, loss)[2].is_outlier


async def test_env_map_shows_outlier_among_64() -> None:
    steps = [env_stepped(env, score=0.1 if env == 37 else 0.7 + env / 1000) for env in range(64)]
    app, session = live(stamp([run_started(64), ev.RoundStarted(round=1), *steps]))
    async with opened(app, "w") as pilot:
        panel = app.screen.query_one(EnvMap)
        for size in ((80, 24), ROOMY, SIZE):
            await resize(pilot, size)
            assert "37 ·bz!" in panel.text, size
            assert panel.text.count("!") == 1, size
            assert not app.screen.query_one(EnvTable).display
            assert all(f"{env:02d} ·bz" in panel.text for env in range(64)), size
        assert "2nd lowest of 64" in panel.text
        await press(pilot, "o", "o", "o")
        assert "lowest of 64" not in panel.text
        assert " highest of 64" in panel.text
        await press(pilot, *"oooo")
        await emit(pilot, session, env_stepped(37, score=0.7))
        assert "!" not in panel.text


async def test_env_map_arrows_select_and_enter_opens() -> None:
    app, _ = live(population(envs=64, rounds=2, stop=5))
    async with opened(app, "w", size=(80, 24)) as pilot:
        columns = len(re.findall(r"\b\d\d ", app.screen.query_one(EnvMap).text.splitlines()[0]))
        seen = []
        for key in ("right", "l", "down", "j", "left", "h", "up", "k", "k"):
            await pilot.press(key)
            seen.append(app.view.selected_env)
        assert seen[:2] == [1, 2]
        row = seen[2] - 2
        assert row == columns
        assert seen[3:] == [2 + 2 * row, 1 + 2 * row, 2 * row, row, 0, 0]
        await pilot.press("right", "enter")
        assert isinstance(app.screen, EnvDetailScreen)
        await pilot.press("escape", "w")
        assert cursor(app) == "01"


async def test_sort_key_ranks_env_map_by_next_metric() -> None:
    app, _ = live(population(envs=64, rounds=2, stop=5))
    async with opened(app, "w") as pilot:
        panel = app.screen.query_one(EnvMap)
        names = []
        for _ in METRICS:
            names.append(str(panel.border_title))
            await pilot.press("o")
        assert len(set(names)) == len(METRICS)
        assert "loss scale, low is bad" in names[5]
        await pilot.press("o", "o", "o", "o", "o")
        assert "07 " in panel.text
        assert panel.text.count("!") == 1  # env 7's scale


async def test_clicking_env_map_selects_env() -> None:
    app, _ = live(population(envs=64, rounds=2, stop=5))
    async with opened(app, "w", size=(200, 60)) as pilot:
        panel = app.screen.query_one(EnvMap)
        lines = panel.text.splitlines()
        y, line = next((y, line) for y, line in enumerate(lines) if " 42 " in line)
        await pilot.click(EnvMap, offset=(line.index(" 42 ") + 2, y + 1))
        assert app.view.selected_env == 42
        assert "env 42" in screen_text(app)


@pytest.mark.parametrize("envs", [16, 256])
async def test_env_map_fills_its_cells(envs: int) -> None:
    app, _ = live(population(envs=envs, rounds=2, stop=5))
    async with opened(app, *("w" if envs < 128 else "")) as pilot:
        for size in ((80, 24), SIZE, ROOMY):
            await resize(pilot, size)
            panel = app.screen.query_one(EnvMap)
            filled = sum(
                part.cell_length
                for y in range(panel.size.height - 1)
                for part in panel.render_line(y)
                if part.style and part.style.reverse
            )
            assert filled > 0.5 * panel.size.area, size


async def test_env_map_fills_a_cell_on_both_sides_of_a_mark() -> None:
    app, _ = live(population(envs=64, rounds=2, stop=17))
    async with opened(app, "w", size=(80, 24)):
        panel = app.screen.query_one(EnvMap)
        [row] = [y for y, line in enumerate(panel.text.splitlines()) if "07 F·g▲" in line]
        parts = [(part.text, part.style is not None and part.style.reverse) for part in panel.render_line(row)]
        mark = next(place for place, (text, _) in enumerate(parts) if text == "▲")
        assert not parts[mark][1]
        assert parts[mark - 1][1]
        assert parts[mark + 1][1]


async def test_env_map_shows_ranks_without_colour() -> None:
    app, _ = live(population(envs=256, rounds=2, stop=5))
    async with opened(app, size=(80, 24)) as pilot:
        panel = app.screen.query_one(EnvMap)
        for metric in METRICS:
            standings = compute_standings(app.view.source.state.envs, metric)
            cells = "".join(line[5:].ljust(75) for line in panel.text.splitlines() if re.match(r"\d{3}  ", line))
            for standing, cell in zip(standings, re.findall("...", cells), strict=False):
                assert cell[0] in {standing.fifth, *"▸▲✖!"}, metric.name
            await pilot.press("o")


async def test_env_map_groups_its_cells() -> None:
    app, _ = live(population(envs=64, rounds=2, stop=17))
    async with opened(app, "w", "v") as pilot:
        panel = app.screen.query_one(EnvMap)
        assert "grouped by stage" in str(panel.border_title)
        stages = [
            min((slot.stage for slot in env.latest.slots), key=STAGES_BY_PRIORITY.index)
            for env in app.view.source.state.envs
            if env.latest
        ]
        assert re.findall(r"^ (\w+): (\d+) envs?", panel.text, re.MULTILINE) == [
            (stage, str(stages.count(stage))) for stage in STAGES_BY_PRIORITY if stage in stages
        ]
        order = sorted(range(64), key=lambda env: (STAGES_BY_PRIORITY.index(stages[env]), env))
        assert [int(index) for index in re.findall(r"[ ▸](\d\d) [·gtbpFxz]{3}", panel.text)] == order
        await pilot.pause()
        assert panel.text.splitlines()[-3].strip()  # the map has the height of its cells, an empty line, and the legend
        await press(pilot, "right", "right", "left")
        assert app.view.selected_env == order[1]
        await pilot.press("v")
        assert "grouped by blueprints" in str(panel.border_title)
        assert re.search(r"^ attention \+ conv_light: \d+ envs", panel.text, re.MULTILINE)
        await pilot.press("v")  # the task is not a family: its hosts have neither structures nor contexts
        assert "grouped" not in str(panel.border_title)


async def test_filter_has_the_focus_before_the_next_key() -> None:
    """A key that was typed directly after `/` would otherwise act on the run."""
    app, _ = live(small())
    async with opened(app):
        assert isinstance(app.screen, OverviewScreen)
        app.screen.action_filter()
        assert isinstance(app.focused, Input)
