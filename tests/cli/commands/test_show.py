from __future__ import annotations

import json
import re
import statistics
from pathlib import Path

import msgspec
import numpy as np
import pytest

from esper.cli.main import main
from esper.common.configuration.config import GROWTH_CONFIG, Config
from esper.common.intervals import t_interval
from esper.networks.tasks import load_task, with_task_settings
from esper.recordings import events as ev
from esper.recordings.files.notes import RunNotes, write_notes
from esper.recordings.files.run_directory import RunDirectory
from esper.recordings.files.run_lock import RunLock
from esper.recordings.files.segments import compress_segment
from tests.factory import env_stepped, example_run, growth_run, run_started, stamp
from tests.recordings.files.recordings import fold, recording, write_segment

RUN = example_run(envs=4, rounds=3)
EPISODES = [event for event in RUN if isinstance(event, ev.EpisodeEnded)]
STEPS = [event for event in RUN if isinstance(event, ev.EnvStepped)]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_segment(tmp_path / "run", 1, recording(RUN))
    return tmp_path / "run"


def as_json(command: str, *runs: Path, capsys: pytest.CaptureFixture[str]) -> dict:
    assert main([command, *map(str, runs), "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    return json.loads(printed.out)


def test_summary_takes_rounds_and_best_from_events(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = as_json("show", run, capsys=capsys)

    assert (shown["state"], shown["steps_done"], shown["env_steps"]) == ("done", 15, 60)
    assert shown["duration"] == pytest.approx((len(RUN) - 1) / 100, abs=1e-4)
    assert shown["env_steps_per_second"] == pytest.approx(60 / (15 * 0.2))
    for number, finished in enumerate(shown["finished"], start=1):
        episodes = [episode for episode in EPISODES if episode.round == number]
        scores = [episode.score for episode in episodes]
        assert finished["score"] == pytest.approx(np.percentile(scores, [0, 25, 50, 75, 100]).tolist())
        assert finished["episode_return"] == pytest.approx(statistics.fmean(e.episode_return for e in episodes))
        assert finished["parameter_ratio"] == pytest.approx(1.4)
    assert len(shown["finished"]) == 3
    best = max([*STEPS, *EPISODES], key=lambda event: event.score)
    step = best.step if isinstance(best, ev.EnvStepped) else 5
    assert shown["best"] == {"score": best.score, "env": best.env, "round": best.round, "step": step}


def test_summary_counts_anomalies_seeds_and_checkpoints(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = as_json("show", run, capsys=capsys)

    assert shown["anomalies"] == {"dead head": 1, "non-finite gradient": 1}
    assert {name: seeds["planted"] for name, seeds in shown["seeds"].items()} == {
        "conv_small": 6, "conv_light": 3, "norm": 3
    }  # fmt: skip
    assert (shown["checkpoints"], shown["last_checkpoint"]) == (3, "checkpoints/00003-005")


def hand_made(folder: Path, *events: ev.AnyEvent, name: str = "run") -> Path:
    write_segment(folder / name, 1, recording(stamp([run_started(envs=2), ev.RoundStarted(round=1), *events])))
    return folder / name


def test_show_and_run_state_agree_on_blueprints(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seeds = as_json("show", run, capsys=capsys)["seeds"]

    records = fold(RUN).blueprints
    assert seeds.keys() == records.keys()
    for name, record in records.items():
        counts = [seeds[name].get(key, 0) for key in ("planted", "fossilized", "culled")]
        assert counts == [record.planted, record.fossilized, record.culled]


def test_summary_adds_up_skips_rollbacks_and_pauses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = hand_made(
        tmp_path,
        env_stepped(0, skipped_batches=2, overflows_by_owner={"host": 2, "mid": 1}),
        env_stepped(1, skipped_batches=3, overflows_by_owner={"host": 3}),
        ev.GovernorRolledBack(round=1, step=1, env=1, reason="loss is NaN", value=float("nan")),
        ev.Paused(round=1, step=1, origin="keyboard"),
    )

    shown = as_json("show", path, capsys=capsys)

    assert (shown["skipped_batches"], shown["overflows_by_owner"], shown["rollbacks"], shown["pauses"]) == (
        5,
        {"host": 5, "mid": 1},
        1,
        1,
    )
    assert "finished" not in shown
    assert "env_steps_per_second" not in shown
    assert main(["show", str(path)]) == 0
    assert re.search(r"skipped batches +5 \(overflows: host ×5, mid ×1\)\n", capsys.readouterr().out)


def test_summary_nan_accuracy_is_never_the_best(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = hand_made(tmp_path, env_stepped(0, score=float("nan")), env_stepped(1, score=0.25))

    assert as_json("show", path, capsys=capsys)["best"]["score"] == 0.25


def test_summary_best_includes_the_accuracy_after_a_rollback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = ev.EpisodeEnded(
        round=1, env=1, score=0.25, best_score=0.25, episode_return=0.0, parameter_ratio=1.0, fossilized=0,
        culled=0,
    )  # fmt: skip
    path = hand_made(tmp_path, env_stepped(0, score=0.1), env_stepped(1, step=1, score=0.05), ended)

    assert as_json("show", path, capsys=capsys)["best"] == {"score": 0.25, "env": 1, "round": 1, "step": 1}


def test_show_prints_the_summary(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(run)]) == 0

    text = re.sub(r" +", " ", capsys.readouterr().out)
    assert "state done\n" in text
    assert "setup ppo on digits_impaired, random seed 0, 4 envs on cpu:0 ×2, cpu:1 ×2\n" in text
    assert "envs = 4 (default: 16)\n" in text
    assert "rounds finished 3 of 3\nenv-steps 60 in 15 of 15 steps\nenv-steps/s 20\n" in text
    assert re.search(r"\nlast round: median accuracy \S+%, \S+% to \S+% over the envs\n", text)
    assert re.search(r"\n [▁-█]{3} by round, from 0.0% to 100.0%\n", text)
    assert "last round: mean return +0.600\n" in text
    assert re.search(r"\nlast ≤5 rounds: median accuracy \S+%\n", text)  # the run has 3 rounds
    assert "seeds planted 12\n" in text
    assert "conv_small 6 0 0 – – – –\n" in text
    assert "norm 3 0 0 – – – –\n" in text
    assert "anomalies 2 (non-finite gradient ×1, dead head ×1)\n" in text
    assert "skipped batches 0\n" in text
    assert "checkpoints written 3, last: checkpoints/00003-005\n" in text


def test_show_lists_only_settings_that_differ_from_the_defaults_of_the_task(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The recording of a run has the settings and slots of its task filled in."""
    config = with_task_settings(Config(task="recall", slots=tuple(load_task("recall").slots), seed=3))
    changed = msgspec.structs.replace(config.training, batch_size=7)
    config = msgspec.to_builtins(msgspec.structs.replace(config, training=changed))
    del config["anomalies"]["kl"]  # a version without this setting recorded the run
    started = msgspec.structs.replace(run_started(), config=config)
    write_segment(tmp_path / "run", 1, recording(stamp([started])))

    assert main(["show", str(tmp_path / "run")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.removeprefix("configuration").strip() for line in lines if " (default: " in line] == [
        "task = recall (default: digits_impaired)",
        "seed = 3 (default: 0)",
        "training.batch-size = 7 (default: 256)",
    ]


def test_show_compares_settings_of_a_growth_with_the_defaults_of_grow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slots = [*load_task("digits_impaired").slots]
    changed = {"steps": Config().steps, "seed": 3}  # these steps are not the default of a growth
    filled_in = {"rounds": 7, "slots": slots}  # by the engine; the rounds follow from the trials
    config = msgspec.to_builtins(with_task_settings(msgspec.convert({**GROWTH_CONFIG, **changed, **filled_in}, Config)))
    started = msgspec.structs.replace(growth_run()[0], config=config)
    write_segment(tmp_path / "run", 1, recording(stamp([started])))

    assert main(["show", str(tmp_path / "run")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.removeprefix("configuration").strip() for line in lines if " (default: " in line] == [
        "steps = 40 (default: 15)",
        "seed = 3 (default: 0)",
    ]


def test_show_marks_missing_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(hand_made(tmp_path))]) == 0

    text = re.sub(r" +", " ", capsys.readouterr().out)
    assert "best accuracy at any step –\n" in text
    assert "last round: median accuracy –: no finished round\n" in text
    assert "env-steps/s –\n" in text
    assert "seeds none planted\n" in text


def test_show_prints_how_a_run_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failed = hand_made(tmp_path, ev.RunEnded(outcome="failed", reason="no memory"))
    assert main(["show", str(failed)]) == 0
    assert re.search(r"state +failed: no memory\n", capsys.readouterr().out)

    running = hand_made(tmp_path, name="running")
    lock = RunLock(RunDirectory(running))
    lock.mark_started()
    assert as_json("show", running, capsys=capsys)["state"] == "running"
    lock.release()
    assert as_json("show", running, capsys=capsys)["state"] == "crashed"


def test_show_refuses_a_run_without_events(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.json").write_text("{}")

    assert main(["show", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"esper-sanctum: {tmp_path} has no events yet\n"


def test_show_reports_an_unreadable_run_as_damaged(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compress_segment(run / "events-00001.jsonl")
    packed = run / "events-00001.jsonl.zst"
    packed.write_bytes(packed.read_bytes()[: packed.stat().st_size // 2])

    assert main(["show", str(run)]) == 2
    assert capsys.readouterr().err == f"esper-sanctum: {packed} is damaged and could not be unpacked completely\n"
    assert main(["runs", str(run.parent)]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[1].split()[:2] == ["run", "unreadable"]
    assert f"{packed} is damaged" in said.err


def other_run(folder: Path) -> Path:
    """A run of one round with another policy, random seed and clip."""
    run = example_run(envs=2, rounds=1)
    config = {"envs": 2, "seed": 7, "ppo": {"clip": 0.1}}
    begun = msgspec.structs.replace(run[0], policy="heuristic", seed=7, config=config, run="other")
    write_segment(folder / "other", 1, recording([begun, *run[1:]]))
    return folder / "other"


def test_compare_prints_runs_side_by_side(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["compare", str(run), str(other_run(tmp_path))]) == 0

    lines = capsys.readouterr().out.splitlines()
    table = dict(re.split(r"  +", line, maxsplit=1) for line in lines[: lines.index("")])
    assert table["run"].split() == ["digits_impaired-20261121-015300", "other"]
    assert table["policy"].split() == ["ppo", "heuristic"]
    assert table["random seed"].split() == ["0", "7"]
    assert table["rounds finished"].split("  ")[0] == "3 of 3"
    assert table["anomalies"].split() == ["2", "2"]
    assert table["config: ppo.clip"].split() == ["unset", "0.1"]
    assert table["config: rounds"].split() == ["3", "unset"]
    assert all(len(set(cells.split())) > 1 for name, cells in table.items() if name.startswith("config: "))
    plots = lines[lines.index("") + 1 :]
    assert plots[0] == "accuracy %, median over the envs, by round"
    drawn, legend = plots[1 : plots.index("")], "A  digits_impaired-20261121-015300    B  other"
    assert drawn[-1] == legend
    assert plots[-1] == legend
    assert drawn[-2].split() == ["1", "2", "3"]  # rounds
    assert all(any(mark in line for line in drawn[:-2]) for mark in "AB")
    assert any(re.search("[⠁-⣿]", line) for line in drawn)


def test_compare_wraps_columns_at_the_width_of_the_terminal(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "92")
    write_notes(run, RunNotes(name="first"))
    assert main(["compare", str(run), *[str(other_run(tmp_path))] * 3]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 92
    blocks = [line.split()[1:] for line in lines if line.startswith("run ")]
    assert blocks == [["digits_impaired-20261121-015300"], ["other"] * 2, ["other"]]
    assert [line.split()[1:] for line in lines if line.startswith("name")] == [["first"], [], []]
    assert [line.split()[1:] for line in lines if line.startswith("curve")] == [["A"], ["B", "C"], ["D"]]
    assert "A  first    B  other    C  other    D  other" in lines


def seeded_runs(folder: Path) -> list[Path]:
    """Three runs: two random seeds of one setting, and one of another setting. The last has a round more."""
    paths: list[Path] = []
    for seed, clip in ((0, 0.1), (1, 0.1), (0, 0.3)):
        events = example_run(envs=2, rounds=3 if clip == 0.3 else 2)
        config = {"envs": 2, "seed": seed, "ppo": {"clip": clip}}
        events = [
            msgspec.structs.replace(event, score=event.score / 2 + seed / 10)
            if isinstance(event, ev.EpisodeEnded)
            else event
            for event in [msgspec.structs.replace(events[0], seed=seed, config=config), *events[1:]]
        ]
        paths.append(folder / f"run-{seed}-{clip}")
        write_segment(paths[-1], 1, recording(events))
    return paths


def test_compare_groups_runs_that_differ_only_in_the_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    paths = seeded_runs(tmp_path)
    runs = as_json("compare", *paths, capsys=capsys)
    assert main(["compare", *map(str, paths), "--group-by", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert [(group["label"], group["values"], len(group["runs"])) for group in (first, second)] == [
        ("clip 0.1", {"ppo.clip": 0.1}, 2),
        ("clip 0.3", {"ppo.clip": 0.3}, 1),
    ]
    scores = [run["finished"][-1]["score"][2] for run in runs]
    expected = t_interval(scores[:2])
    result = first["results"]["score"]
    assert result["runs"] == 2
    assert [result["mean"], result["low"], result["high"]] == pytest.approx(
        [expected.mean, max(expected.low, 0), min(expected.high, 1)]
    )
    assert second["results"]["score"] == {"mean": scores[2], "runs": 1}
    assert first["score"]["rounds"] == [1, 2]
    assert first["score"]["mean"][-1] == pytest.approx(expected.mean)
    assert first["score"]["low"][-1] == pytest.approx(expected.low)
    assert second["score"]["rounds"] == [1, 2, 3]
    assert "low" not in second["score"]

    assert main(["compare", *map(str, paths), "--group-by", "clip"]) == 0
    lines = capsys.readouterr().out.splitlines()
    table = dict(re.split(r"  +", line, maxsplit=1) for line in lines[: lines.index("")])
    assert re.split("  +", table["group"]) == ["clip 0.1", "clip 0.3"]
    assert re.split("  +", table["random seed"]) == ["0, 1", "0"]
    assert re.split("  +", table["last round: median accuracy"])[0].startswith(f"{expected.mean:.1%} [")
    assert re.split("  +", table["config: ppo.clip"]) == ["0.1", "0.3"]
    assert "config: seed" not in table
    assert "A  clip 0.1    B  clip 0.3" in lines


def test_compare_refuses_keys_that_no_run_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [*map(str, seeded_runs(tmp_path))]
    assert main(["compare", *paths, "--group-by", "ppo.clop"]) == 2
    assert capsys.readouterr().err == (
        "esper-sanctum: --group-by: 'ppo.clop' is not a configuration key of these runs; did you mean ppo.clip?\n"
    )
    assert main(["compare", "--group-by", *paths]) == 2
    assert capsys.readouterr().err.endswith(
        "is not a configuration key of these runs; valid: seed, ppo.clip; or give --group-by without a key after the "
        "runs\n"
    )
    assert main(["compare", "--group-by", *paths[:2]]) == 2
    assert "give --group-by without a key after the runs" in capsys.readouterr().err


def test_compare_prints_json_and_needs_two_runs(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = as_json("compare", run, other_run(tmp_path), capsys=capsys)
    assert [shown["policy"] for shown in both] == ["ppo", "heuristic"]

    assert main(["compare", str(run)]) == 2
    assert "compare needs at least two runs" in capsys.readouterr().err
