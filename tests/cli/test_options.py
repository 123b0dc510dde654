"""Options of the command line: one for each configuration key, named by its dotted key."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from esper.cli.commands.grow import FIXED_KEYS
from esper.cli.main import main
from esper.cli.options import EXIT_OK
from esper.common.configuration.config import GROWTH_CONFIG, Config
from esper.common.configuration.fields import ConfigField, list_fields
from esper.networks.tasks import TASK_NAMES, load_task
from esper.networks.tasks.settings import override_settings, settings_of
from esper.recordings import events as ev
from esper.recordings.checkpoints.catalog import list_checkpoints
from esper.recordings.files.notes import RunNotes, read_notes
from esper.training.checkpoint.files import read_checkpoint
from tests.runs import only_run, recorded, stopped_run
from tests.terminals import assert_refused, printed

FIELDS = {field.key: field for field in list_fields(Config)}
SETTINGS = ("host-learning-rate", "seed-learning-rate", "batch-size", "samples-per-epoch", "momentum", "weight-decay")


def config_printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """Run `config` and return the printed values, keyed by dotted key."""
    assert main(["config", *arguments]) == EXIT_OK
    output, errors = printed(capsys)
    assert errors == ""
    values = tomllib.loads(output)
    tables = {name: table for name, table in values.items() if isinstance(table, dict)}
    dotted = {f"{name}.{key}": value for name, table in tables.items() for key, value in table.items()}
    return {**{key: value for key, value in values.items() if key not in tables}, **dotted}


def code_of(arguments: list[str]) -> int:
    try:
        return main(arguments)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else -1


def help_all(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *command: str) -> str:
    monkeypatch.setenv("COLUMNS", "1000")  # one line for each text
    with pytest.raises(SystemExit) as ended:
        main([*command, "--help-all"])
    assert ended.value.code == EXIT_OK
    return printed(capsys)[0]


def test_config_prints_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    given = [word for name in SETTINGS for word in (f"--training.{name}", GIVEN[f"training.{name}"][0])]
    assert list(config_printed(capsys, *given)) == list(FIELDS)


GIVEN = {
    "training.host-clip": ("2", 2.0),
    "training.seed-clip": ("0.5", 0.5),
    "training.host-learning-rate": ("0.01", 0.01),
    "training.seed-learning-rate": ("3e-2", 0.03),
    "training.batch-size": ("32", 32),
    "training.samples-per-epoch": ("256", 256),
    "training.momentum": ("0", 0.0),
    "training.weight-decay": ("0", 0.0),
    "ppo.learning-rate": ("3e-4", 3e-4),
    "ppo.gamma": ("0.99", 0.99),
    "ppo.horizon": ("continuing", "continuing"),
    "ppo.gae-lambda": ("1", 1.0),
    "ppo.clip": ("inf", float("inf")),
    "ppo.epochs": ("2", 2),
    "ppo.minibatches": ("8", 8),
    "ppo.envs-per-host": ("1", 1),
    "ppo.value-coef": ("0.25", 0.25),
    "ppo.entropy-coef": ("0", 0.0),
    "ppo.max-grad-norm": ("1", 1.0),
    "ppo.target-kl": ("0.1", 0.1),
    "ppo.hidden": ("64", 64),
    "reward-weights.rent": ("0.004", 0.004),
    "reward-weights.rent-floor": ("100", 100),
    "reward-weights.op": ("0", 0.0),
    "reward-weights.contribution": ("0.2", 0.2),
    "reward-weights.penalty": ("2", 2.0),
    "anomalies.recovery": ("0.5", 0.5),
    "anomalies.explosion-factor": ("20", 20.0),
    "anomalies.explosion-steps": ("7", 7),
    "anomalies.chance-factor": ("2", 2.0),
    "anomalies.chance-steps": ("7", 7),
    "anomalies.skipped-steps": ("7", 7),
    "anomalies.dead-gradient": ("0.5", 0.5),
    "anomalies.dead-seed-steps": ("7", 7),
    "anomalies.stalled-steps": ("7", 7),
    "anomalies.stalled-gap": ("0.5", 0.5),
    "anomalies.stalled-envs": ("0.5", 0.5),
    "anomalies.stalled-rounds": ("7", 7),
    "anomalies.kl": ("0.5", 0.5),
    "anomalies.entropy": ("0.5", 0.5),
    "anomalies.memory": ("0.5", 0.5),
    "anomalies.memory-growth": ("0.5", 0.5),
    "anomalies.straggler-ratio": ("20", 20.0),
    "anomalies.stale-steps": ("20", 20.0),
}


def test_an_option_for_every_key_of_a_table_sets_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(GIVEN) == [key for key in FIELDS if "." in key]
    before = config_printed(capsys)
    words = [word for key, (text, _) in GIVEN.items() for word in (f"--{key}", text)]
    after = config_printed(capsys, *words)
    assert after == {**before, **{key: value for key, (_, value) in GIVEN.items()}}
    assert all(after[key] != before.get(key) for key in GIVEN)


def test_an_option_changes_its_key_only(capsys: pytest.CaptureFixture[str]) -> None:
    before = config_printed(capsys)
    assert config_printed(capsys, "--ppo.clip=0.3") == {**before, "ppo.clip": 0.3}


LEARNING_RATES = "--training.host-learning-rate, --training.seed-learning-rate or --ppo.learning-rate"
REFUSED = {
    ("--ppo.learning-rate", "2"): "--ppo.learning-rate '2' is not valid: it must be a number <= 1.0",
    ("--ppo.learning-rate", "-1e-3"): "--ppo.learning-rate '-1e-3' is not valid: it must be a number > 0.0",
    ("--ppo.clip", "nan"): "--ppo.clip 'nan' is not valid: it must be a number > 0.0",
    ("--ppo.gamma", "high"): "--ppo.gamma 'high' is not valid: it must be a number\n",
    ("--ppo.horizon", "episodes"): "--ppo.horizon 'episodes' is not valid; did you mean episode?",
    ("--ppo.horizon", "continuing"): "--ppo.horizon continuing needs a --ppo.gamma below 1, not 1; for example",
    ("--ppo.hidden",): "--ppo.hidden: expected one argument",
    ("--reward-weights.rent", "inf"): "--reward-weights.rent 'inf' is not valid: it must be a number <= 1000000.0",
    ("--reward-weights.op", "-inf"): "--reward-weights.op '-inf' is not valid: it must be a number >= 0.0",
    ("--training.batch-size", "0"): "--training.batch-size '0' is not valid: it must be a whole number >= 1",
    ("--training.batch-size", "1.5"): "--training.batch-size '1.5' is not valid: it must be a whole number\n",
    ("--training.momentum", "1"): "--training.momentum '1' is not valid: it must be a number < 1.0",
    ("--ppo.learning-rat", "1"): "unknown option --ppo.learning-rat; did you mean --ppo.learning-rate?",
    ("--pop.clip=0.3",): "unknown option --pop.clip; did you mean --ppo.clip?",
    ("--ppo.rent", "0"): "unknown option --ppo.rent; valid: --ppo.learning-rate, ",
    ("--lerning-rate", "1"): f"unknown option --lerning-rate; did you mean {LEARNING_RATES}?",
    ("--learning-rate", "1"): f"unknown option --learning-rate; did you mean {LEARNING_RATES}?",
    ("--lr", "1"): f"unknown option --lr; did you mean {LEARNING_RATES}?",
    ("--zzz", "1"): "unknown option --zzz; list the valid ones with `esper-sanctum",
    ("--clip", "0.3"): "unknown option --clip; did you mean --ppo.clip?",
    ("--anomalies.recovery", "1"): "--anomalies.recovery '1' is not valid: it must be a number < 1.0",
    ("--anomalies.kl", "0"): "--anomalies.kl '0' is not valid: it must be a number > 0.0",
    ("--reward-weights.zzz", "1"): "unknown option --reward-weights.zzz; valid: --reward-weights.rent, ",
}


@pytest.mark.parametrize("command", [[], ["config"], ["devices"]], ids=["train", "config", "devices"])
@pytest.mark.parametrize(("arguments", "named"), REFUSED.items(), ids=[" ".join(words) for words in REFUSED])
def test_a_wrong_dotted_option_is_refused_in_one_sentence(
    command: list[str],
    arguments: tuple[str, ...],
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_refused(code_of([*command, *arguments]), *printed(capsys), named)
    assert list(tmp_path.iterdir()) == []


def test_an_option_that_has_another_name_here_is_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(code_of(["--headless"]), *printed(capsys), "unknown option --headless; did you mean --no-tui?")


def test_the_command_line_beats_a_table_of_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.toml"
    file.write_text("[ppo]\nclip = 0.3\ngamma = 0.9\n[training]\nmomentum = 0.5\nbatch-size = 64\n")
    before = config_printed(capsys)
    after = config_printed(capsys, "--config", str(file), "--ppo.clip", "0.4", "--training.momentum", "0.6")
    changed = {"ppo.clip": 0.4, "ppo.gamma": 0.9, "training.momentum": 0.6, "training.batch-size": 64}
    assert after == {**before, **changed}


def test_a_refusal_names_the_file_or_the_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.toml"
    file.write_text("[training]\nbatch-size = 0\n")
    code = main(["config", "--config", str(file), "--training.momentum", "0.6"])
    named = f"training.batch-size = 0 in {file} is not valid: it must be a whole number >= 1"
    assert_refused(code, *printed(capsys), named)


# Help


def test_help_all_has_range_unit_and_default(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = " ".join(help_all(capsys, monkeypatch).split())
    assert "the last round [>0, <=1] (default: 0.001)" in text
    assert "the current pass [nats, >0] (default: 0.03)" in text
    assert "samples per optimizer step [samples, 1 to 1,000,000,000] (default: 128 for digits_impaired" in text
    assert "(default: 1024 for digits_impaired, digits, digits_family, mnist1d; 512 for synthetic, recall; 128" in text
    assert "(default: 0.9)" in text  # momentum, which the task with AdamW does not have
    assert "scope of the fp16 loss scale: env (overflows affect one env); device (" in text


def test_help_of_grow_has_its_own_defaults(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    text = help_all(capsys, monkeypatch, "grow")
    for name, value in GROWTH_CONFIG.items():
        found = re.search(rf"^  --{name} \S+\s+(.*)$", text, re.M)
        assert (found is None) == (name in FIXED_KEYS)
        assert found is None or found[1].endswith(f"(default: {value})")


def test_help_all_groups_the_options_by_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = help_all(capsys, monkeypatch)
    headings = ("options:", "\n[training]:", "\n[ppo]:", "\n[reward-weights]:", "\n[anomalies]:")
    before, training, ppo, rewards, anomalies = map(text.index, headings)
    places = {key: text.index(f"  --{key} ") for key in FIELDS}
    limits = {
        "": (before, training),
        "training": (training, ppo),
        "ppo": (ppo, rewards),
        "reward-weights": (rewards, anomalies),
    }
    for key, field in FIELDS.items():
        low, high = limits.get(field.table, (anomalies, len(text)))
        assert low < places[key] < high, key


@pytest.mark.parametrize("field", FIELDS.values(), ids=list(FIELDS))
def test_every_number_of_a_table_has_a_range(field: ConfigField) -> None:
    assert field.description
    if field.table and not field.choices:
        assert field.range


# Settings of the task


@pytest.mark.parametrize("task", TASK_NAMES)
def test_config_prints_the_settings_of_the_task_as_comments(task: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that fixed them would change, or break, the training of another task."""
    assert main(["config", "--task", task]) == EXIT_OK
    output, own = printed(capsys)[0], settings_of(load_task(task))
    assert tomllib.loads(output)["training"].keys() == {"host-clip", "seed-clip"}
    for name in SETTINGS:
        value = own[name.replace("-", "_")]
        if value is None:
            assert (task, name) == ("recall", "momentum")
        text = f"{name}: no value, or several," if value is None else f"{name} = {value}"
        assert f"\n# {text} in task {task}\n" in output


def test_config_prints_the_settings_of_an_own_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "my_slow_digits.py"
    file.write_text(
        "from dataclasses import replace\nfrom esper.networks.tasks.builtin.digits import DIGITS_TASK\n"
        "print('imported')\ntask = replace(DIGITS_TASK, name='slow', batch_size=77)\n"
    )
    assert main(["config", "--task", str(file)]) == EXIT_OK
    assert f"\n# batch-size = 77 in task {file}\n" in capsys.readouterr().out


def test_setting_that_the_optimizer_lacks_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.toml"
    file.write_text("[training]\nmomentum = 0.5\n")
    code = main(["config", "--task", "recall", "--config", str(file)])
    named = "training.momentum = 0.5 does not apply to task recall, whose optimizer is AdamW, which has no momentum; "
    assert_refused(code, *printed(capsys), named + "remove --training.momentum, or the key from the file of --config")


def test_a_setting_on_the_command_line_reaches_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    short = ("--no-tui", "--devices", "cpu:0", "--envs", "1", "--rounds", "1", "--steps", "2", "--policy", "static")
    settings = ("--training.batch-size", "32", "--training.samples-per-epoch", "80", "--training.momentum", "0.5")
    assert main([*short, *settings]) == EXIT_OK
    started = next(event for event in recorded(only_run(tmp_path)) if isinstance(event, ev.RunStarted))
    assert started.batches == 3
    expected = {"batch-size": 32, "samples-per-epoch": 80, "momentum": 0.5, "host-learning-rate": 0.05}
    assert started.config["training"].items() >= expected.items()
    saved = read_checkpoint(list_checkpoints(only_run(tmp_path))[-1]).config
    task = override_settings(load_task(saved.task), saved.training)
    assert (task.batch_size, task.samples_per_epoch) == (32, 80)
    assert task.optimizer == replace(load_task(saved.task).optimizer, momentum=0.5)
    capsys.readouterr()


def test_notes_are_stored_with_the_run_and_replaced_on_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    short = ("--no-tui", "--devices", "cpu:0", "--envs", "1", "--rounds", "1", "--steps", "1", "--policy", "static")
    settings = ("--training.batch-size", "32", "--training.samples-per-epoch", "32")
    notes = ("--name", "low entropy", "--tag", "a", "--tag", "b", "--tag", "a", "--study", "s", "--trial", "0")
    assert main([*short, *settings, *notes]) == EXIT_OK
    run = only_run(tmp_path)
    assert read_notes(run) == RunNotes(name="low entropy", tags=("a", "b"), study="s", trial=0)
    assert b"low entropy" not in b"".join(path.read_bytes() for path in (run / "run.json", *run.glob("events-*")))

    again = ["--resume", "low entropy", "--rounds", "2", "--no-tui", "--tag", "c", "--note", "one more round"]
    assert main(again) == EXIT_OK
    expected = RunNotes(name="low entropy", tags=("c",), note="one more round", study="s", trial=0)
    assert read_notes(run) == expected
    capsys.readouterr()


# Checkpoints


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped run with one checkpoint."""
    return stopped_run(tmp_path_factory.mktemp("stopped"))


CHANGED = {
    "host-learning-rate": ("0.06", "0.05, not 0.06"),
    "seed-learning-rate": ("0.3", "0.2, not 0.3"),
    "batch-size": ("64", "128, not 64"),
    "samples-per-epoch": ("512", "256, not 512"),
    "momentum": ("0.8", "0.9, not 0.8"),
    "weight-decay": ("0", "0.0005, not 0.0"),
}


def test_a_resumed_run_cannot_change_a_task_setting(stopped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tuple(CHANGED) == SETTINGS
    for name, (value, named) in CHANGED.items():
        code = main(["--resume", str(stopped), f"--training.{name}", value, "--no-tui"])
        assert_refused(
            code, *printed(capsys), f"was made with --training.{name} {named}; this setting cannot change on resume"
        )
