"""`grow` and `harvest` through the real command line, and `esper.grow`."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import esper
from esper.cli.main import main
from esper.cli.options import EXIT_FAILED, EXIT_OK, EXIT_USAGE
from esper.common.control import Request, RequestKind, RequestQueue
from esper.recordings import events as ev
from esper.recordings.candidates.candidates import COMPARED, FROM_SCRATCH, WIDE_HOST, Candidate, choose, describe_answer
from esper.recordings.checkpoints.catalog import list_checkpoints
from esper.recordings.files.run_lock import is_live
from esper.recordings.history.history import open_history
from esper.studies.growth import director as growth_director
from esper.studies.growth import fresh_scores, host_training
from esper.studies.growth import results as growth_results
from esper.studies.growth.director import GrowthDirector
from esper.studies.growth.growth import FRESH_HOSTS
from esper.studies.harvest import grown as grown_module
from esper.studies.harvest.structure import STRUCTURE_FILE, WEIGHTS_FILE, HarvestError, read_structure
from esper.training.envs.env import Env
from tests.runs import LiveRun, computed, only, recorded

SHORT = ("--no-tui", "--task", "digits", "--devices", "cpu:0", "--training.samples-per-epoch", "128")


@pytest.fixture(autouse=True)
def no_export(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the program out: exporting takes ten seconds, and tests/studies/harvest has its tests."""
    monkeypatch.setattr(grown_module, "export_program", lambda *_: "not tried")


PLAN = "1:conv_light@early 2:norm@mid"
SMALL = ("--envs", "3", "--trials", "3", "--steps", "4", "--policy", "plan", "--plan", PLAN)
"""A growth of three trials: the bare host, a plan and the heuristic."""


def grow(directory: Path, *options: str) -> int:
    return main(["grow", *SHORT, "--telemetry-dir", str(directory), *options])


def trials(run: Path) -> list[ev.TrialEnded]:
    return [event for event in recorded(run) if isinstance(event, ev.TrialEnded)]


def candidates(run: Path) -> list[Candidate]:
    history = open_history(run)
    state = history.state_at(history.length)
    assert state.search is not None
    return state.search.candidates


def test_grow_trains_the_best_candidates_on_fresh_hosts_which_choose(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert grow(tmp_path, *SMALL) == EXIT_OK
    run = only(tmp_path)
    found = candidates(run)
    assert [(one.name, one.origin) for one in found[:3]] == [("", "host"), (PLAN, "known"), ("heuristic", "policy")]
    started = [event for event in recorded(run) if isinstance(event, ev.TrialStarted)]
    envs = {(trial.round, trial.env) for trial in started if trial.candidate == PLAN}
    moves = [event for event in recorded(run) if isinstance(event, ev.SeedMoved) and event.after == "germinated"]
    planted = {(move.step, move.slot, move.blueprint) for move in moves if (move.round, move.env) in envs}
    assert planted == {(1, "early", "conv_light"), (2, "mid", "norm")}
    fresh = [trial for trial in trials(run) if trial.fresh is not None]
    hosts = {one.name: one.fresh_hosts for one in found}
    fresh_hosts = list(range(1, FRESH_HOSTS + 1))
    assert hosts == {"": fresh_hosts, PLAN: fresh_hosts, "heuristic": []}
    chosen = choose(found, "return")
    assert chosen is not None
    structure = read_structure(run / "grown")
    assert structure.validation_score == pytest.approx(
        max(trial.score or 0.0 for trial in fresh if trial.candidate == chosen.name), abs=1e-6
    )
    assert structure.test_score == chosen.test_score
    (ended,) = (event for event in recorded(run) if isinstance(event, ev.SearchEnded))
    assert ended.answer == describe_answer(found, "return", 4)
    assert ended.directory == str(run / "grown")
    output = capsys.readouterr().out
    assert output.rstrip().endswith(ended.answer)
    assert "the growth takes at most" in output
    for round_number, env in ((1, 1), (3, 1)):  # the second one is on a fresh host
        report = esper.what_if(str(run), round=round_number, env=env, telemetry_dir=tmp_path, devices=("cpu:0",))
        assert "reproduced exactly" in str(report)
    assert main(["--no-tui", "--resume", str(run)]) == EXIT_USAGE
    assert "is a growth; continue it with the grow command that began it" in capsys.readouterr().err


def test_same_command_continues_a_stopped_growth_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is stopped twice: in the first fresh trainings, and in the comparisons."""
    choose_plan(monkeypatch)
    compared = (*SMALL, "--seed", "3", "--compare")
    to = ("--to", str(tmp_path / "network"))
    assert grow(tmp_path / "alone", *compared) == EXIT_OK
    with monkeypatch.context() as patched:
        put_requests(patched, *[None] * 3, Request(RequestKind.STOP, "signal"))
        assert grow(tmp_path / "parts", *compared, *to) == EXIT_OK
    assert "stopped after 3 trials; best so far: " in capsys.readouterr().out
    alone, parts = only(tmp_path / "alone"), only(tmp_path / "parts")
    manifest = list_checkpoints(parts)[-1] / "manifest.json"
    intact = manifest.read_text()
    manifest.write_text(re.sub(r'"format": *\d+', '"format": 1', intact))
    assert grow(tmp_path / "parts", *compared, *to) == EXIT_USAGE
    refusal = capsys.readouterr().err
    assert "has checkpoint format 1" in refusal
    assert "continues the growth" not in refusal
    manifest.write_text(intact)

    end_step = GrowthDirector.end_step

    def stop_in_comparison(director: GrowthDirector, seconds: float) -> bool:
        if director.has_chosen:
            put_requests(patched, Request(RequestKind.STOP, "signal"))
        return end_step(director, seconds)

    with monkeypatch.context() as patched:
        patched.setattr(GrowthDirector, "end_step", stop_in_comparison)
        patched.setattr(RequestQueue, "has_request", lambda _: True)
        assert grow(tmp_path / "parts", *compared, *to) == EXIT_OK
    printed = capsys.readouterr()
    assert "continues the growth" in printed.err
    assert "stopped before its comparisons were done, which the same command continues" in printed.out
    stopped = [event for event in recorded(parts) if isinstance(event, ev.EnvStepped)]
    assert stopped[-1].step == 1
    assert stopped[-1].parameter_ratio > 1.0
    harvest = ["harvest", str(parts), "--to", str(tmp_path / "harvested")]
    for env, sentence in (((), "has only wide hosts, which have no seeds"), (("--env", "1"), "--env 1 of ")):
        assert main([*harvest, *env]) == EXIT_USAGE
        assert sentence in capsys.readouterr().err
    assert grow(tmp_path / "parts", *compared, *to) == EXIT_OK
    assert computed(recorded(parts)) == computed(recorded(alone))
    assert (tmp_path / "network" / WEIGHTS_FILE).read_bytes() == (alone / "grown" / WEIGHTS_FILE).read_bytes()
    steps = {one.candidate: one.step for one in trials(parts) if one.candidate in COMPARED}
    assert steps == dict.fromkeys(COMPARED, 4)
    found = {one.name: one for one in candidates(parts)}
    wide, scratch = found[WIDE_HOST], found[FROM_SCRATCH]
    assert wide.fresh_hosts == scratch.fresh_hosts == found[PLAN].fresh_hosts
    assert not wide.seeds
    assert "conv_light in early" in scratch.seeds
    assert wide.parameter_ratio == pytest.approx(scratch.parameter_ratio, rel=0.1)
    assert wide.fresh_scores != scratch.fresh_scores
    last = max(event.round for event in recorded(parts) if isinstance(event, ev.RoundStarted))
    assert main(["whatif", str(parts), "--round", str(last), "--env", "0"]) == EXIT_USAGE
    assert "env 0 trains a network that is only compared, 'from scratch'," in capsys.readouterr().err


def choose_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the plan be the answer, whichever candidate is better on this machine."""

    def choose_it(found: list[Candidate], _: str) -> Candidate:
        return next(one for one in found if one.name == PLAN)

    for module in (growth_director, growth_results):
        monkeypatch.setattr(module, "choose", choose_it)


def test_larger_budget_adds_candidates_and_writes_all(tmp_path: Path) -> None:
    options = (*SMALL[:2], *SMALL[4:], "--seed", "3", "--all", "--to")
    assert grow(tmp_path / "runs", *options, str(tmp_path / "first"), "--trials", "3") == EXIT_OK
    run = only(tmp_path / "runs")
    before = len(trials(run))
    assert grow(tmp_path / "runs", *options, str(tmp_path / "networks"), "--trials", "4") == EXIT_OK
    added = trials(run)[before:]
    assert len({trial.candidate for trial in added}) == 1  # the others are not trained again
    assert [trial.fresh for trial in added] in ([None], [None, *range(1, FRESH_HOSTS + 1)])
    written = [read_structure(path) for path in (tmp_path / "networks").iterdir()]
    assert sum(bool(structure.provenance.answer) for structure in written) == 1
    assert len(written) == sum(one.test_score is not None for one in candidates(run) if one.is_fresh)


def test_limit_of_parameters_and_patience_hold(tmp_path: Path) -> None:
    rates = ("--training.host-learning-rate", "1e-9", "--training.seed-learning-rate", "1e-9")
    budget = ("--trials", "4", "--envs", "4", "--steps", "6", "--patience", "2", "--max-parameters", "1.2x")
    assert grow(tmp_path, *budget, *rates, "--policy", "static", "--objective", "score") == EXIT_OK
    ended = [trial for trial in trials(only(tmp_path)) if trial.outcome == "done" and trial.best_step is not None]
    assert all(trial.step == min((trial.best_step or 0) + 2, 6) for trial in ended)
    plans = [trial for trial in ended if "@" in trial.candidate]
    assert plans
    assert all((trial.parameter_ratio or 0.0) <= 1.2 for trial in plans)


def test_steps_until_the_host_is_flat_are_recorded_and_kept_when_the_growth_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A host of digits still improves after one epoch, and after two."""
    monkeypatch.setattr(host_training, "MAX_DOUBLINGS", 1)
    one = ("--trials", "1", "--steps", "1", "--policy", "static", "--until-flat", "--training.samples-per-epoch", "512")
    assert grow(tmp_path, *one) == EXIT_OK
    started = next(event for event in recorded(only(tmp_path)) if isinstance(event, ev.RunStarted))
    assert started.steps == 2
    assert "your network still improves at the end of its trainings" in capsys.readouterr().out
    monkeypatch.setattr("esper.studies.growth.run.choose_steps", None)  # is not called again
    assert grow(tmp_path, "--trials", "2", *one[2:]) == EXIT_OK
    assert {event.step for event in recorded(only(tmp_path)) if isinstance(event, ev.EnvStepped)} == {1, 2}


def test_trial_that_fails_is_named_and_not_fatal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train = Env.train_epoch

    def fail(env: Env, *args: Any, **options: Any) -> Any:
        if env.network.slots[0].blueprint == "conv_light":
            raise ValueError("no room for it")
        return train(env, *args, **options)

    monkeypatch.setattr(Env, "train_epoch", fail)
    assert grow(tmp_path, *SMALL) == EXIT_OK
    failed = next(one for one in candidates(only(tmp_path)) if one.name == PLAN)
    assert failed.outcome == "failed"
    assert "no room for it" in (failed.reason or "")
    assert "conv_light in early at step 1, norm in mid at step 2 failed: env 01" in capsys.readouterr().out
    monkeypatch.setattr(Env, "train_epoch", broken)
    assert grow(tmp_path / "host", *SMALL) == EXIT_FAILED
    assert "division by zero" in capsys.readouterr().err
    monkeypatch.setattr(Env, "train_epoch", train)
    assert grow(tmp_path / "host", *SMALL) == EXIT_OK
    assert candidates(only(tmp_path / "host"))[0].fresh_hosts == list(range(1, FRESH_HOSTS + 1))


def broken(*_: object, **__: object) -> None:
    raise ZeroDivisionError("division by zero")


def test_growth_that_ends_early_says_why_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert grow(tmp_path / "short", "--minutes", "0.0001", "--steps", "4", "--envs", "2") == EXIT_FAILED
    error = capsys.readouterr().err
    assert "2 trainings of 4 steps at once take about" in error
    assert re.search(r"which is more than --minutes 0\.0001; give --minutes \d, or fewer --envs or --steps", error)

    def fail(*_: object) -> float:
        raise ValueError("no such class: 11")

    one = ("--trials", "1", "--steps", "1", "--envs", "5")
    with monkeypatch.context() as patched:
        patched.setattr(fresh_scores, "sample_scores", fail)
        assert grow(tmp_path / "score", *one) == EXIT_FAILED
    error = capsys.readouterr().err
    assert "the test of the network failed: ValueError: no such class: 11 (" in error
    assert "; the same command continues the growth" in error
    assert "Traceback" not in error
    with monkeypatch.context() as patched:
        patched.setattr(grown_module.Grown, "save", lambda *_: fail_to_write())
        assert grow(tmp_path / "score", *one) == EXIT_FAILED
    assert "No space left on device; the same command with another --to writes" in capsys.readouterr().err
    assert grow(tmp_path / "score", *one) == EXIT_OK
    assert (
        "no candidate has a better return (score minus rent) than your network, which has " in capsys.readouterr().out
    )


def fail_to_write() -> None:
    raise HarvestError("cannot write to grown: No space left on device")


def put_requests(monkeypatch: pytest.MonkeyPatch, *requests: Request | None) -> None:
    """Give the engine these answers to its first questions for a request, and none to the later ones."""
    left = iter(requests)
    monkeypatch.setattr(RequestQueue, "get", lambda *_, **__: next(left, None))


@pytest.mark.parametrize("task", ["digits_family", "digits_family+{file}:family"])
def test_grow_refuses_a_family_and_advises_a_task_that_grows(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    own = "import dataclasses\nimport esper\nfrom esper.networks.tasks.builtin.digits import DIGITS_TASK\n"
    own += "family = esper.Family('pair', [dataclasses.replace(DIGITS_TASK, name='a')])\n"
    (tmp_path / "own_family_of_one.py").write_text(own)
    assert grow(tmp_path, "--task", task.format(file=tmp_path / "own_family_of_one.py")) == EXIT_USAGE
    error = capsys.readouterr().err
    assert "is a family of tasks, and a network grows for one task; for its structure " in error
    (tmp_path / "own_advised.py").write_text(error.partition("a file that contains: ")[2])
    one = ("--steps", "1", "--trials", "1", "--policy", "static")
    assert grow(tmp_path, "--task", str(tmp_path / "own_advised.py"), *one) == EXIT_OK
    for name in ("own_family_of_one", "own_advised"):
        sys.modules.pop(name, None)


def test_grow_refuses_a_mixture_and_advises_a_built_in_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert grow(tmp_path, "--task", "digits_family+recall") == EXIT_USAGE
    assert "a network grows for one task; use --task recall" in capsys.readouterr().err


WAITING_POLICY = """
import esper


class policy(esper.NonLearningAgent):
    def __init__(self, **_):
        pass

    def act(self, step, views):
        return [esper.WAITING] * len(views)
"""


def test_policies_of_the_user_propose(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained = tmp_path / "trained"
    train = [*SHORT, "--envs", "2", "--steps", "2", "--rounds", "1", "--telemetry-dir", str(trained)]
    assert main(train) == EXIT_OK
    own = tmp_path / "own_waiting.py"
    own.write_text(WAITING_POLICY)
    for policy in (only(trained), own):
        assert grow(tmp_path / "grown", "--trials", "2", "--steps", "2", "--policy", str(policy)) == EXIT_OK
    assert f"{only(trained).name}/round-00001-step-0002: score" in capsys.readouterr().out
    own.write_text(WAITING_POLICY.replace("return [", "raise ValueError('no idea')  # ["))
    sys.modules.pop("own_waiting", None)
    assert grow(tmp_path / "failing", "--trials", "2", "--steps", "2", "--policy", str(own)) == EXIT_OK
    assert "failed: the policy own_waiting.py failed: ValueError: no idea" in capsys.readouterr().out
    grown = next(run for run in (tmp_path / "grown").iterdir())
    assert grow(tmp_path / "grown", "--policy", str(grown)) == EXIT_USAGE
    assert "has no PPO policy" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--policy", "ppo"), "--policy ppo is not trained yet"),
        (("--rounds", "2"), "--rounds is not an option of grow; give --trials or --minutes"),
        (("--reward", "shaped"), "--reward shaped is not an option of grow"),
        (("--patience", "0"), "--patience 0 is not valid: it must be 1 or more"),
        (("--trials", "0"), "--trials 0 is not valid: it must be 1 or more"),
        (("--minutes", "nan"), "--minutes nan is not valid: it must be above 0"),
        (("--max-parameters", "0.5x"), "--max-parameters '0.5x' is not valid: expected a multiple such as 1.5x"),
        (("--max-parameters", "9" * 400), "is not valid: expected a multiple such as 1.5x, or a number"),
        (("--max-parameters", "10"), "is less than the 1,702 parameters of your network; a multiple ends with an x"),
        (("--trials", "3", "--minutes", "3"), "not allowed with argument"),
        (
            ("--policy", "plan", "--plan", PLAN, "--max-parameters", "1.01x"),
            "times the parameters of your network, more",
        ),
        (("--policy", "heurstic"), "did you mean heuristic?"),
        (("--to", "{full}"), "is not empty; choose another directory with --to"),
        (("--to", "/proc/net-of-a-user"), "cannot write to /proc/net-of-a-user: No such file or directory; choose"),
        (("--to", "{full}/a/net"), "/full/a/net: Not a directory; choose another directory with --to"),
        (("--patiense", "3"), "unknown option --patiense"),
    ],
)
def test_wrong_options_are_refused_before_anything_trains(
    options: tuple[str, ...], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "a").touch()
    try:
        code = grow(tmp_path / "runs", *(option.format(full=full) for option in options))
    except SystemExit as error:
        code = error.code
    assert code == EXIT_USAGE
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_harvest_takes_the_best_env_or_the_one_that_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = [*SHORT, "--envs", "3", "--steps", "6", "--rounds", "1", "--policy", "full"]
    assert main([*train, "--telemetry-dir", str(tmp_path / "runs")]) == EXIT_OK
    run = only(tmp_path / "runs")
    last = [event for event in recorded(run) if isinstance(event, ev.EnvStepped)][-3:]
    best = max(last, key=lambda event: event.score).env
    assert main(["harvest", str(run), "--to", str(tmp_path / "best")]) == EXIT_OK
    assert read_structure(tmp_path / "best").provenance.env == best
    other = (best + 1) % 3
    capsys.readouterr()
    assert main(["harvest", str(run), "--env", str(other), "--to", str(tmp_path / "other")]) == EXIT_OK
    structure = read_structure(tmp_path / "other")
    assert structure.provenance.env == other
    assert f"env {other} of {run.name}" in capsys.readouterr().out
    assert main(["harvest", str(run), "--env", "3", "--to", str(tmp_path / "none")]) == EXIT_USAGE
    assert "has the envs 0 to 2" in capsys.readouterr().err
    assert main(["harvest", str(run), "--to", str(tmp_path / "best")]) == EXIT_USAGE
    assert "is not empty" in capsys.readouterr().err


def test_harvest_with_another_task_names_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = [*SHORT, "--envs", "1", "--steps", "1", "--rounds", "1", "--policy", "static"]
    assert main([*train, "--telemetry-dir", str(tmp_path / "runs")]) == EXIT_OK
    harvest = ["harvest", str(only(tmp_path / "runs")), "--to", str(tmp_path / "net")]
    for other in ("mnist1d", "digits_family"):
        assert main([*harvest, "--task", other]) == EXIT_USAGE
        assert f"the checkpoint was made with the task digits, not {other}" in capsys.readouterr().err


def test_harvest_of_a_live_run_changes_nothing_in_it(tmp_path: Path) -> None:
    options: dict[str, Any] = {"task": "digits", "envs": 2, "steps": 3, "rounds": 2, "policy": "full"}
    alone = LiveRun(tmp_path / "alone", **options)
    alone.start().finish()
    live = LiveRun(tmp_path / "live", interactive=True, **options).start_paused(5)
    assert is_live(live.run.directory)

    assert main(["harvest", str(live.run.directory), "--to", str(tmp_path / "network")]) == EXIT_OK

    live.control.put(RequestKind.RESUME, "test")
    assert live.finish().status == "done"
    assert computed(recorded(live.run.directory)) == computed(recorded(alone.run.directory))


def test_grow_from_python_returns_networks_that_train(tmp_path: Path) -> None:
    tiny: dict[str, Any] = {"training": {"samples_per_epoch": 128}, "devices": ("cpu:0",), "steps": 2, "envs": 5}
    result = esper.grow("digits", trials=2, objective="score", telemetry_dir=str(tmp_path), **tiny)
    assert result.best in result.front
    assert [network.structure.parameters for network in result.front] == sorted(
        network.structure.parameters for network in result.front
    )
    assert repr(result) == result.answer
    assert "<svg" in result._repr_html_()
    result.best.save(tmp_path / "network")
    assert {path.name for path in (tmp_path / "network").iterdir()} >= {WEIGHTS_FILE, STRUCTURE_FILE}
    model = esper.load_grown(tmp_path / "network", "digits")
    assert torch.equal(model.eval()(result.best.sample), result.best.model.eval()(result.best.sample))
    with pytest.raises(esper.ConfigError, match=r"esper\.grow"):
        esper.grow("digits", stepps=3)
