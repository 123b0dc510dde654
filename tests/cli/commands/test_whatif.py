"""`whatif`: questions about a recorded episode, from the command line and from Python."""

from __future__ import annotations

import re
import shlex
import shutil
from contextlib import closing, redirect_stdout
from io import StringIO
from pathlib import Path
from statistics import median

import msgspec
import pytest
from msgspec.structs import replace

import esper
from esper.cli.main import main
from esper.cli.options import EXIT_OK, EXIT_USAGE
from esper.common.configuration.config import ConfigError
from esper.common.decisions import Decision
from esper.common.formatting import APPROXIMATE
from esper.common.intervals import t_interval
from esper.recordings.checkpoints.catalog import find_checkpoint
from esper.recordings.effects.change import WITHOUT_GROWTH, Change, describe_change, without_steps
from esper.recordings.effects.episode import read_episode, read_round
from esper.recordings.effects.report import ChangeReport, EpisodeReport, GrowthReport, Report, SampleReport, mean_effect
from esper.recordings.effects.results import Reproduction
from esper.recordings.effects.store import RESULTS_FILE, EffectStore
from esper.recordings.history.history import open_history
from esper.studies.simulation.question import Inquiry, Question
from esper.training.envs.env import Env
from tests.runs import pass_interrupts

PLAN = "1:conv_light@early 2:depthwise@mid 7:cull@mid"
"""In both episodes, the seed in mid is culled."""
STEPS = 8


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of a plan."""
    directory = tmp_path_factory.mktemp("runs")
    options = f"--envs 2 --rounds 2 --steps {STEPS} --devices cpu:0 --policy plan --checkpoint-every 0"
    options += " --training.samples-per-epoch 256"
    arguments = ["--no-tui", *options.split(), "--plan", PLAN, "--telemetry-dir", str(directory)]
    assert main(arguments) == EXIT_OK
    (run,) = directory.iterdir()
    return run


@pytest.fixture(scope="module")
def answered(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Report]:
    """A copy of the run with the results of two of its episodes, one of each round, and the answer about them."""
    run = shutil.copytree(recorded, tmp_path_factory.mktemp("answered") / recorded.name)
    printed = StringIO()
    with redirect_stdout(printed):
        assert main(["whatif", str(run), "--devices", "cpu:0", "--json", "--rounds", "1-2", "--sample", "2"]) == EXIT_OK
    return run, msgspec.json.decode(printed.getvalue(), type=Report)


@pytest.fixture
def run(answered: tuple[Path, Report], tmp_path: Path) -> Path:
    """A copy of the run with its stored results."""
    return shutil.copytree(answered[0], tmp_path / answered[0].name)


@pytest.fixture
def unanswered(recorded: Path, tmp_path: Path) -> Path:
    """A copy of the run without stored results."""
    return shutil.copytree(recorded, tmp_path / recorded.name)


def ask(capsys: pytest.CaptureFixture[str], run: Path, *options: str) -> Report:
    """Return the answer of the command as an object."""
    assert main(["whatif", str(run), "--devices", "cpu:0", "--json", *options]) == EXIT_OK
    return msgspec.json.decode(capsys.readouterr().out, type=Report)


def test_every_decision_has_its_effect(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = ask(capsys, run, "--round", "2", "--env", "1")
    assert isinstance(report, EpisodeReport)
    assert report.exact
    episode = read_episode(open_history(run), 2, 1)
    assert report.recorded.scores[1:] == pytest.approx([step.score for step in episode.steps], rel=1e-4)
    assert report.recorded.net_return == pytest.approx(
        sum(step.reward - step.reward_parts.get("dependence", 0.0) for step in episode.steps), abs=1e-4
    )
    effects = {decision.step: decision.effect for decision in report.decisions}
    assert list(effects) == [step.step for step in episode.steps if step.op != "wait"]
    for seed in episode.seeds:
        change = ask(capsys, run, "--round", "2", "--env", "1", "--without", f"seed:{seed.slot}:{seed.step}")
        same = ask(capsys, run, "--round", "2", "--env", "1", "--without", f"step:{seed.step}")
        assert isinstance(change, ChangeReport)
        assert change == same
        effect = effects[seed.step]
        assert effect
        assert -change.difference.net_return == effect.net_return
        assert change.changed.net_return == pytest.approx(report.recorded.net_return - effect.net_return)
    text = str(report)
    assert "reproduced exactly, 8 of 8 steps" in text
    assert "germinate conv_light in early" in text


def test_nothing_is_simulated_twice(
    answered: tuple[Path, Report], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, first = answered
    assert isinstance(first, SampleReport)
    assert (first.episodes, first.exact) == (2, 2)
    assert first.groups["blueprint"].keys() == {"conv_light", "depthwise"}
    assert first.groups["op"]["germinate"].n == 4
    assert first.plantings
    assert (first.plantings.n, first.plantings.episodes, first.plantings.exact) == (4, 2, 2)
    assert str(first).splitlines()[1] == f"plantings that pay: {first.plantings}"

    def fails(*_: object) -> None:
        pytest.fail("an env was trained")

    monkeypatch.setattr(Env, "train_epoch", fails)
    assert ask(capsys, run, "--rounds", "1-2", "--sample", "2") == first


@pytest.mark.slow
def test_growth_is_answered_for_all_rounds_and_the_seeds_of_the_last_one(
    unanswered: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    report = ask(capsys, unanswered, "--growth")
    assert isinstance(report, GrowthReport)
    assert [found.round for found in report.rounds] == [1, 2]
    for found in report.rounds:
        episodes = read_round(open_history(unanswered), found.round).values()
        assert found.score == median(episode.ended.score for episode in episodes if episode.ended)
        assert found.reference
        assert (found.reference.envs, found.reference.exact) == (2, True)
    assert {blueprint: worth.net.n for blueprint, worth in report.seeds.items()} == {"conv_light": 2, "depthwise": 2}
    stored = EffectStore(unanswered).read()
    assert [found.change for found in stored].count(WITHOUT_GROWTH) == 4
    assert "without growth" in str(report)
    monkeypatch.setattr("esper.studies.simulation.question.RecordingSimulator", None)
    assert ask(capsys, unanswered, "--growth") == report


def test_interrupted_question_keeps_its_results(
    unanswered: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    train, left = Env.train_epoch, STEPS

    def interrupted(env: Env, step: int) -> object:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        return train(env, step)

    monkeypatch.setattr(Env, "train_epoch", interrupted)
    pass_interrupts(monkeypatch)
    assert main(["whatif", str(unanswered), "--devices", "cpu:0"]) == 130
    said = capsys.readouterr()
    assert "reproduced exactly" in said.out  # the unchanged episode was finished
    assert "interrupted; the same command continues" in said.err
    assert len((unanswered / RESULTS_FILE).read_bytes().splitlines()) == 1
    left = 4 * STEPS  # four unchanged episodes, of which one is known
    assert main(["whatif", str(unanswered), "--devices", "cpu:0", "--rounds", "1-2"]) == 130
    partial = capsys.readouterr().out
    assert "4 episodes, 4 of them reproduced exactly" in partial
    monkeypatch.setattr(Env, "train_epoch", train)
    complete = ask(capsys, unanswered, "--rounds", "1-2")
    assert isinstance(complete, SampleReport)
    assert complete.groups["op"]["germinate"].n == 8


@pytest.mark.slow
def test_results_are_described_as_they_come(unanswered: Path) -> None:
    def inquire(**question: object) -> tuple[list[str], Report | None]:
        asked = Question(run=str(unanswered), devices=["cpu:0"], **question)  # pyright: ignore[reportArgumentType]
        with closing(Inquiry(asked, unanswered.parent)) as inquiry:
            return list(inquiry.simulate(lambda _: None)), inquiry.report()

    lines, report = inquire(round=1, env=0, without=["step:1"], repeats=1)
    assert isinstance(report, ChangeReport)
    assert report.repeats
    assert lines[0] == "round 1, env 0: reproduced exactly, 8 of 8 steps"
    assert lines[1].startswith("other host 1: net return ")
    assert lines[2] == f"{report.change}: net return {report.difference.net_return:+.3f}"
    assert lines[3] == f"other host 1, {report.change}: net return {report.repeats.mean:+.3f}"
    assert inquire(round=1, env=0, without=["step:1"], repeats=1) == ([], report)
    lines, _ = inquire(rounds=(2, 2))
    assert [line.partition(":")[0] for line in lines] == ["round 2, env 0", "round 2, env 1"]


def test_illegal_decision_is_named_with_what_was_measured(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    episode = ["--round", "1", "--env", "0"]
    illegal = ask(capsys, run, *episode, "--do", "2:fossilize@late")
    waiting = ask(capsys, run, *episode, "--do", "2:wait")
    assert isinstance(illegal, ChangeReport)
    assert isinstance(waiting, ChangeReport)
    assert illegal.illegal == [2]
    assert illegal.difference == waiting.difference
    assert waiting.illegal == []
    assert "the new decision was illegal in step 2, so the env waited" in str(illegal)


def test_host_on_which_the_decision_is_illegal_is_not_counted(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--round", "1", "--env", "0", "--without", "step:1", "--repeats", "3"]
    before = ask(capsys, run, *options)
    assert isinstance(before, ChangeReport)
    assert (before.repeats and before.repeats.n, before.illegal_repeats) == (3, 0)
    store = EffectStore(run)
    known = {(found.change.key, found.repeat): found for found in store.read()}
    differences: list[float] = []
    for repeat in (1, 2, 3):
        unchanged = known[Change().key, repeat]
        (changed,) = (found for (key, of), found in known.items() if of == repeat and key != Change().key)
        differences.append(changed.trajectory.net_return - unchanged.trajectory.net_return)
        if repeat == 2:
            trajectory = replace(unchanged.trajectory, waited=[1])
            store.add(replace(unchanged, trajectory=trajectory))
    after = ask(capsys, run, *options)
    assert isinstance(after, ChangeReport)
    assert before.repeats
    assert before.repeats.mean == pytest.approx(sum(differences) / 3)
    assert after.repeats
    assert (after.repeats.n, after.illegal_repeats) == (2, 1)
    assert after.repeats.mean == pytest.approx((differences[0] + differences[2]) / 2)
    assert "other hosts on which the change was illegal: 1" in str(after)


def test_approximate_results_are_marked_wherever_shown(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    questions = [
        ["--round", "2", "--env", "1"],
        ["--round", "2", "--env", "1", "--without", "step:1"],
        ["--rounds", "2"],
    ]
    for question in questions:
        assert APPROXIMATE not in str(ask(capsys, run, *question))
    store = EffectStore(run)
    for found in store.read():
        if found.reproduction and found.env == 1:
            store.add(replace(found, reproduction=Reproduction(steps=STEPS, differs_from=3, quantity="loss")))
    for question in questions:
        report = ask(capsys, run, *question)
        assert not isinstance(report, SampleReport) or (report.episodes, report.exact) == (2, 1)
        body = [re.sub(r"\[.*\]", "", line) for line in report.lines() if not line.startswith("Effect")]
        numbers = re.findall(r"≈?(?:[+-]\d+\.\d+|×\d+\.\d+|(?<![-+.\d])\d+\.\d+%)", "\n".join(body))
        assert len(numbers) > 5
        assert all(number.startswith(APPROXIMATE) for number in numbers), numbers


def test_policy_of_a_ppo_run_is_its_newest_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = "--envs 2 --rounds 1 --steps 3 --devices cpu:0 --policy ppo --task recall --training.samples-per-epoch 64"
    assert main(["--no-tui", *options.split(), "--telemetry-dir", str(tmp_path)]) == EXIT_OK
    (run,) = tmp_path.iterdir()
    capsys.readouterr()
    question = ["--do", "1:wait", "--then", "policy"]
    report = ask(capsys, run, *question)
    assert isinstance(report, ChangeReport)
    newest = find_checkpoint(run)
    assert report.change.endswith(f", then {newest}")
    shutil.rmtree(newest.parent)
    assert main(["whatif", str(run), *question]) == EXIT_USAGE
    said = capsys.readouterr().err
    assert "checkpoint" in said
    assert said.count("\n") == 1


def test_joint_change_names_every_decision(run: Path) -> None:
    episode = read_episode(open_history(run), 1, 0)
    early, mid = episode.seeds
    advance = early.decisions[1]
    left_out = without_steps([advance, *mid.decisions])  # the other decisions about the seed in mid need no words
    planted = Change(decisions={1: Decision("germinate", "early", "norm")})
    joint = Change(decisions=left_out.decisions | planted.decisions, then="wait")
    assert describe_change(joint, episode) == (
        "step 1: germinate norm in early; without germinate depthwise in mid, step 2; "
        f"without advance in early, step {advance}, then wait"
    )


def test_answer_from_python_is_that_of_the_command(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match=re.escape("do must be a text or a list of texts, not {3: 'wait'}")):
        esper.what_if(str(run), round=1, env=0, do={3: "wait"})  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="--plan is blank"):
        esper.what_if(str(run), round=1, env=0, plan="")
    answer = esper.what_if(str(run), round=1, env=0, without="step:1", devices=["cpu:0"])
    assert answer == ask(capsys, run, "--round", "1", "--env", "0", "--without", "step:1")
    assert isinstance(answer, ChangeReport)
    assert answer._repr_html_().endswith(answer.plot().svg)
    assert "<b>" not in replace(answer, change="slot <b>", run="<b>")._repr_html_()
    assert "difference: net return" in str(answer)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--round 3", "round:3 is not in this recording; it has round:1 to round:2"),
        ("--env 7", "env 7 has no step in round 2 of"),
        ("--round 0", "--round 0 is not valid: it must be 1 or more"),
        ("--without step:99", "'step:99': the episode has steps 1 to 8"),
        ("--without seed:late:1", "'seed:late:1' is not a seed of this episode; its seeds: seed:early:1, seed:mid:2"),
        ("--without step:01 --do 1:wait", "--without and --do both change step 1; remove one of them"),
        ("--rounds 2-1", "--rounds 2-1 is not valid; expected for example 60-70"),
        ("--rounds 1-2 --repeats 2", "--repeats is for one episode; remove it, or --rounds"),
        ("--sample 2", "--sample draws episodes from several rounds; add --rounds, for example --rounds 60-70"),
        (
            "--rounds 1 --env 0",
            "--rounds measures all decisions of many episodes; remove --round, --env and the change",
        ),
        ("--then wait", "--then says what follows a change; add --without or --do"),
        ("--without step:1 --then ppo", "--then ppo has no trained network; name a run or a checkpoint, or pretrained"),
        ("--plan ' '", "--plan is blank; give --do 1:wait --then wait for an episode without any decision"),
        ("--growth --without step:1", "--growth has its own changes and its own sample; remove the change"),
        ("--growth --env 0", "--growth is about whole rounds; give --rounds in place of --round and --env"),
        ("--growth --rounds 3", "round:3 is not in this recording; it has round:1 to round:2"),
        ("--task recall", "the run was made with the task digits_impaired, not recall"),
        ("--devices cpu:99", "cpu:99"),
    ],
)
def test_wrong_questions_are_refused(run: Path, capsys: pytest.CaptureFixture[str], options: str, message: str) -> None:
    assert main(["whatif", str(run), *shlex.split(options)]) == EXIT_USAGE
    said = capsys.readouterr().err
    assert said.startswith("esper-sanctum: ")
    assert message in said
    assert said.count("\n") == 1


def test_mean_effect_is_a_t_interval() -> None:
    found = mean_effect([0.01, -0.02, 0.04, 0.0])
    interval = t_interval([0.01, -0.02, 0.04, 0.0])
    assert found
    assert (found.mean, found.low, found.high) == (interval.mean, interval.low, interval.high)
    assert (found.n, found.pays, found.costs) == (4, 0.5, 0.25)
    assert mean_effect([]) is None
