"""The configuration as TOML: the output of `config` reads back as the same configuration."""

from __future__ import annotations

import math
import tomllib
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.cli.main import main
from esper.cli.options import EXIT_OK, EXIT_USAGE
from esper.common.configuration.config import (
    AnomalyConfig,
    Config,
    ConfigError,
    PPOConfig,
    RewardConfig,
    TrainingConfig,
)
from esper.common.configuration.files import resolve_config, to_toml
from esper.networks.tasks import fill_in_settings, load_task, with_task_settings
from esper.networks.tasks.optimizers import SGD, AdamW
from esper.networks.tasks.settings import settings_of
from esper.networks.tasks.task import Task
from esper.recordings.events.codec import encode_json

DIGITS = settings_of(load_task("digits"))

texts = st.text(st.characters(exclude_categories=["Cs"]))
positive = st.floats(min_value=0, exclude_min=True, allow_nan=False)
configs = st.builds(
    Config,
    envs=st.integers(1, 65_536),
    devices=st.lists(texts, min_size=1, max_size=4).map(tuple),
    task=texts,
    slots=st.lists(texts, max_size=3).map(tuple),
    seed=st.integers(0, 2**63 - 1),
    telemetry_dir=texts.filter(bool),
    data_dir=texts,
    training=st.builds(TrainingConfig, host_clip=positive, batch_size=st.none() | st.integers(1, 10**9)),
    ppo=st.builds(PPOConfig, learning_rate=st.floats(0, 1, exclude_min=True), gamma=st.floats(0, 1)),
    reward_weights=st.builds(RewardConfig, rent=st.floats(0, 1e6)),
    anomalies=st.builds(AnomalyConfig, kl=positive, recovery=st.floats(0, 1, exclude_min=True, exclude_max=True)),
)


@given(configs)
def test_config_toml_round_trip_is_equal(config: Config) -> None:
    assert msgspec.convert(tomllib.loads(to_toml(config, DIGITS)), Config) == config


def limits_of_tasks() -> set[float]:
    """Return the limits of the recorded settings of a task."""
    info = cast("msgspec.inspect.StructType", msgspec.inspect.type_info(TrainingConfig))
    kinds = [part for field in info.fields for part in getattr(field.type, "types", (field.type,))]
    found = {getattr(kind, name, None) for kind in kinds for name in ("gt", "ge", "lt", "le")}
    return {limit for limit in found if limit is not None}


def around(limit: float) -> list[object]:
    """Return a limit, the numbers next to it and beyond it, and the same as other types."""
    near = [limit, math.nextafter(limit, -math.inf), math.nextafter(limit, math.inf), limit - 1, 2 * limit + 1]
    whole = [int(number) for number in near]
    return [*near, *whole, *map(np.float64, near), *map(np.float32, near), *map(np.int64, whole), Fraction(whole[0], 3)]


numbers: st.SearchStrategy[Any] = st.sampled_from(
    [math.nan, math.inf, True, "0.1", None, 2**64, *(value for limit in limits_of_tasks() for value in around(limit))]
)
valid = st.sampled_from([0.1, 0.5])
"""Most settings of a drawn task are valid, so that tasks with one setting at a limit are accepted."""
rates = valid | numbers
optimizers = st.sampled_from([SGD, AdamW])


@given(st.data())
def test_task_that_is_accepted_can_be_read_from_the_recorded_configuration(data: st.DataObject) -> None:
    def optimizer() -> SGD | AdamW:
        kind = data.draw(optimizers)
        own: dict[str, Any] = {"momentum": data.draw(rates)} if kind is SGD else {"betas": (data.draw(rates), 0.9)}
        return kind(data.draw(rates), weight_decay=data.draw(rates), **own)

    counts = st.just(128) | numbers
    try:
        task = Task(
            name="drawn",
            model=lambda: pytest.fail("not called"),
            slots={"first": "0"},
            data=lambda _: pytest.fail("not called"),
            optimizer=optimizer(),
            seed_optimizer=optimizer(),
            batch_size=data.draw(counts),
            samples_per_epoch=data.draw(counts),
        )
    except ValueError:
        return
    config = fill_in_settings(Config(task=task.name), task)
    recorded = encode_json(msgspec.to_builtins(config))
    assert msgspec.convert(msgspec.json.decode(recorded), Config, strict=False) == config
    assert msgspec.convert(tomllib.loads(to_toml(config, settings_of(task))), Config) == config


@pytest.mark.parametrize("key", ["envs", "devices", "task"])
def test_config_table_instead_of_value_is_refused(key: str, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(f"[{key}]\na = 1\n")
    with pytest.raises(
        ConfigError, match=f"unknown table {key!r} in .*; valid: training, ppo, reward-weights, anomalies"
    ):
        resolve_config(file, {}, msgspec.to_builtins(Config()))


def test_config_lists_every_field_with_a_description() -> None:
    lines = to_toml(with_task_settings(Config()), DIGITS).splitlines()
    keys = [line.partition(" = ")[0] for line in lines if " = " in line and not line.startswith("#")]
    sections = (Config, TrainingConfig, PPOConfig, RewardConfig, AnomalyConfig)
    fields = [field for section in sections for field in msgspec.structs.fields(section)]
    assert sorted(keys) == sorted(
        field.encode_name for field in fields if not isinstance(field.default, msgspec.Struct)
    )
    for number, line in enumerate(lines):
        if " = " in line and not line.startswith("#"):
            assert lines[number - 1].startswith("# "), line
            assert lines[number - 1] != "# ", line


def test_config_prints_the_configuration_of_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "first.toml"
    file.write_text("envs = 5\n[ppo]\nclip = 0.3\n")
    options: dict[str, Any] = {"envs": "3", "slots": ["mid", "late"], "counterfactual": "off"}
    arguments = [
        word
        for name, value in options.items()
        for word in (f"--{name}", *([value] if isinstance(value, str) else value))
    ]
    assert main(["config", "--config", str(file), *arguments]) == EXIT_OK
    printed = capsys.readouterr()
    assert printed.err == ""
    again = tmp_path / "second.toml"
    again.write_text(printed.out)
    config = resolve_config(again, {})
    assert config == resolve_config(file, options)
    assert (config.envs, config.ppo.clip, config.slots) == (3, 0.3, ("mid", "late"))


def test_config_file_with_bom_and_crlf_is_read(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_bytes(b"\xef\xbb\xbfenvs = 7\r\n")
    assert resolve_config(tmp_path / "run.toml", {}).envs == 7


def test_config_refuses_options_like_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--counterfactual", "shaply"]) == EXIT_USAGE
    said = capsys.readouterr()
    assert said.out == ""
    assert "--counterfactual 'shaply' is not valid; did you mean shapley?" in said.err
    assert main(["config", "--task", "digit"]) == EXIT_USAGE
    assert capsys.readouterr() == ("", "esper-sanctum: unknown task 'digit'; did you mean digits?\n")
