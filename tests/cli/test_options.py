"""Options of the command line: one for each configuration key, named by its dotted key."""

from __future__ import annotations

import re
import tomllib
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from esper.cli.commands.grow import FIXED_KEYS
from esper.cli.main import main
from esper.cli.options import EXIT_OK
from esper.common.configuration.config import GROWTH_CONFIG, Config, ConfigError
from esper.common.configuration.fields import ConfigField, list_fields
from esper.common.configuration.files import resolve_config
from esper.networks.tasks import load_task
from esper.networks.tasks.settings import override_settings, settings_of
from esper.recordings import events as ev
from esper.recordings.checkpoints.catalog import list_checkpoints
from esper.recordings.files.notes import RunNotes, read_notes
from esper.training.checkpoint.files import read_checkpoint
from tests.runs import only_run, recorded
from tests.terminals import assert_refused, printed

FIELDS = {field.key: field for field in list_fields(Config)}


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


def another_value(field: ConfigField) -> str:
    """Return a valid value of a key of a table that is not its default."""
    if field.choices:
        return next(word for word in field.choices if word != field.default)
    for text in ("0.5", "0.25", "7", "20"):
        with suppress(ConfigError):
            name = field.key.replace("-", "_")
            if attrgetter(name)(resolve_config(None, {name: text})) != field.default:
                return text
    pytest.fail(f"none of the numbers is a valid value of {field.key}")


def test_an_option_for_every_key_of_a_table_sets_it(capsys: pytest.CaptureFixture[str]) -> None:
    given = {field.key: another_value(field) for field in FIELDS.values() if field.table}
    words = [word for key, text in given.items() for word in (f"--{key}", text)]
    after = config_printed(capsys, *words)
    assert list(after) == list(FIELDS)
    expected = {key: text if FIELDS[key].choices else float(text) for key, text in given.items()}
    assert after == {**config_printed(capsys), **expected}


LEARNING_RATES = "--training.host-learning-rate, --training.seed-learning-rate or --ppo.learning-rate"
REFUSED = {
    ("--ppo.learning-rate", "2"): "--ppo.learning-rate '2' is not valid: it must be a number <= 1.0",
    ("--ppo.learning-rate", "-1e-3"): "--ppo.learning-rate '-1e-3' is not valid: it must be a number > 0.0",
    ("--ppo.clip", "nan"): "--ppo.clip 'nan' is not valid: it must be a number > 0.0",
    ("--ppo.gamma", "high"): "--ppo.gamma 'high' is not valid: it must be a number\n",
    ("--ppo.horizon", "episodes"): "--ppo.horizon 'episodes' is not valid; did you mean episode?",
    ("--ppo.horizon", "continuing"): "--ppo.horizon continuing needs a --ppo.gamma below 1, not 1; for example",
    ("--reward-weights.op", "-inf"): "--reward-weights.op '-inf' is not valid: it must be a number >= 0.0",
    ("--training.batch-size", "0"): "--training.batch-size '0' is not valid: it must be a whole number >= 1",
    ("--training.batch-size", "1.5"): "--training.batch-size '1.5' is not valid: it must be a whole number\n",
    ("--training.momentum", "1"): "--training.momentum '1' is not valid: it must be a number < 1.0",
    ("--ppo.learning-rat", "1"): "unknown option --ppo.learning-rat; did you mean --ppo.learning-rate?",
    ("--pop.clip=0.3",): "unknown option --pop.clip; did you mean --ppo.clip?",
    ("--ppo.rent", "0"): "unknown option --ppo.rent; valid: --ppo.",
    ("--lerning-rate", "1"): f"unknown option --lerning-rate; did you mean {LEARNING_RATES}?",
    ("--lr", "1"): f"unknown option --lr; did you mean {LEARNING_RATES}?",
    ("--zzz", "1"): "unknown option --zzz; list the valid ones with `esper-sanctum",
    ("--clip", "0.3"): "unknown option --clip; did you mean --ppo.clip?",
    ("--headless",): "unknown option --headless; did you mean --no-tui?",
}


@pytest.mark.parametrize(("arguments", "named"), REFUSED.items(), ids=[" ".join(words) for words in REFUSED])
def test_a_wrong_dotted_option_is_refused_in_one_sentence(
    arguments: tuple[str, ...],
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_refused(code_of([*arguments]), *printed(capsys), named)
    assert list(tmp_path.iterdir()) == []


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


def test_help_all_has_range_unit_and_default_of_every_key_by_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = help_all(capsys, monkeypatch)
    tables = dict.fromkeys(field.table for field in FIELDS.values())
    headings = [whole.index(f"\n[{table}]:") if table else 0 for table in tables]
    limits = dict(zip(tables, pairwise([*headings, len(whole)]), strict=True))
    for key, field in FIELDS.items():
        assert limits[field.table][0] < whole.index(f"  --{key} ") < limits[field.table][1], key
        assert field.description, key
        assert field.range or field.choices or not field.table, f"the number {key} has no range"
    text = " ".join(whole.split())
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


# Settings of the task


@pytest.mark.parametrize("task", ["digits", "recall", "digits_family"])
def test_config_prints_the_settings_of_the_task_as_comments(task: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that fixed them would change, or break, the training of another task."""
    assert main(["config", "--task", task]) == EXIT_OK
    output, own = printed(capsys)[0], settings_of(load_task(task))
    assert tomllib.loads(output)["training"] == {}
    for field, value in own.items():
        name = field.replace("_", "-")
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


def test_settings_and_notes_reach_the_run_and_its_continuation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line beats the file, and the new notes the old ones."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "run.toml"
    file.write_text("policy = 'static'\nenvs = 9\nrounds = 1\nsteps = 1\n[training]\nmomentum = 0.5\nbatch-size = 64\n")
    short = ("--no-tui", "--devices", "cpu:0", "--envs", "1", "--config", str(file))
    settings = ("--training.batch-size", "32", "--training.samples-per-epoch", "80")
    notes = ("--name", "low entropy", "--tag", "a", "--tag", "b", "--tag", "a", "--study", "s", "--trial", "0")
    assert main([*short, *settings, *notes]) == EXIT_OK
    run = only_run(tmp_path)
    started = next(event for event in recorded(run) if isinstance(event, ev.RunStarted))
    assert (started.policy, len(started.lanes), started.batches) == ("static", 1, 3)
    expected = {"batch-size": 32, "samples-per-epoch": 80, "momentum": 0.5, "host-learning-rate": 0.05}
    assert started.config["training"].items() >= expected.items()
    saved = read_checkpoint(list_checkpoints(run)[-1]).config
    task = override_settings(load_task(saved.task), saved.training)
    assert (task.batch_size, task.samples_per_epoch) == (32, 80)
    assert task.optimizer == replace(load_task(saved.task).optimizer, momentum=0.5)
    assert read_notes(run) == RunNotes(name="low entropy", tags=("a", "b"), study="s", trial=0)
    assert b"low entropy" not in b"".join(path.read_bytes() for path in (run / "run.json", *run.glob("events-*")))

    again = ["--resume", "low entropy", "--rounds", "2", "--no-tui", "--tag", "c", "--note", "one more round"]
    assert main(again) == EXIT_OK
    assert read_notes(run) == RunNotes(name="low entropy", tags=("c",), note="one more round", study="s", trial=0)
