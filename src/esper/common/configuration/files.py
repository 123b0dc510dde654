"""Reads a configuration from a TOML file and the command line, and writes one as TOML."""

from __future__ import annotations

import json
import textwrap
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from esper.common.configuration.config import Config, ConfigError
from esper.common.configuration.fields import list_fields
from esper.common.formatting import strip_control, suggest

MAX_TOML_BYTES = 1 << 20
"""Maximum size of a TOML file that is read."""


def read_config_file(file: Path | None) -> dict[str, Any]:
    """Return the content of a TOML file, or an empty table without a file.

    Raises:
        ConfigError: The file cannot be read, is not TOML, or has an unknown key.
    """
    table = read_toml(file, f"--config {file}") if file else {}
    check_keys(table, Config, f"{file}")
    return table


def resolve_config(
    file: Path | None,
    options: Mapping[str, Any],
    base: Mapping[str, Any] | None = None,
    table: Mapping[str, Any] | None = None,
) -> Config:
    """Return the configuration of a run. The command line overrides the file, and the file overrides the defaults.

    Args:
        file: TOML file given with `--config`, or None.
        options: Options given on the command line, keyed by field name: `envs`, or `ppo.learning_rate` for a key of a
            table.
        base: Values that replace the defaults: the configuration of the checkpoint from which the run resumes.
        table: Content of the file, if the caller has read it already, because a pipe can be read only once.

    Raises:
        ConfigError: The file cannot be read, a key is unknown, or a value is not valid, alone or with another one.
    """
    table = read_config_file(file) if table is None else table
    given = {name.replace("_", "-"): value for name, value in options.items()}
    values = dict(base or {})
    for key, value in table.items():
        values[key] = {**values.get(key, {}), **value} if isinstance(value, dict) else value
    for key, value in given.items():
        table_name, _, name = key.rpartition(".")
        if table_name:
            values[table_name] = {**values.get(table_name, {}), name: value}
        else:
            values[key] = value
    try:
        config = msgspec.convert(values, Config, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(format_validation_error(str(error), values, given, file)) from None
    if config.ppo.horizon == "continuing" and config.ppo.gamma == 1:  # the sum of the rewards would have no limit
        raise ConfigError("--ppo.horizon continuing needs a --ppo.gamma below 1, not 1; for example --ppo.gamma 0.99")
    return config


def read_toml(file: Path, description: str) -> dict[str, Any]:
    """Read a TOML file.

    Args:
        description: Words for the file in messages.

    Raises:
        ConfigError: It cannot be read, is too large, or is not TOML.
    """
    try:
        with file.open("rb") as opened:  # possibly a pipe, whose size is not known
            content = opened.read(MAX_TOML_BYTES + 1)
        if len(content) > MAX_TOML_BYTES:
            raise ConfigError(f"{description} is larger than {MAX_TOML_BYTES:,} bytes")
        return tomllib.loads(content.decode("utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"cannot read {description}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{description} is not TOML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{description} is nested too deeply") from None


def check_keys(table: Mapping[str, Any], section: type[msgspec.Struct], where: str) -> None:
    """Refuse unknown keys. Unlike msgspec, suggest the nearest valid one."""
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(section)}
    tables = {key: kind for key, kind in fields.items() if isinstance(kind, type) and issubclass(kind, msgspec.Struct)}
    for key, value in table.items():
        if key not in fields:
            raise ConfigError(f"unknown key {key!r} in {where}; {suggest(key, fields)}")
        if key in tables:
            if not isinstance(value, dict):
                raise ConfigError(f"{key!r} in {where} must be a table, [{key}]")
            check_keys(cast("dict[str, Any]", value), tables[key], f"[{key}] of {where}")
        elif isinstance(value, dict):
            raise ConfigError(f"unknown table {key!r} in {where}; {suggest(key, tables)}")


_TYPE_NAMES = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "array": "a list",
    "object": "a table",
    "bool": "true or false",
}
"""Plain words for the type names in msgspec's messages."""


def format_validation_error(
    message: str,
    values: Mapping[str, Any],
    given: Mapping[str, Any],
    file: Path | None,
    section: type[msgspec.Struct] = Config,
) -> str:
    """Convert a message of msgspec (`Expected int >= 1 - at $.envs`) to a sentence with the option and its value.

    Args:
        message: Message of the validation error.
        values: The values that were converted.
        given: Those of them that are options of the command line, by key.
        file: File that has the others; None without one.
        section: Struct to which they were converted.
    """
    complaint, _, path = message.replace(" | null`", "`").partition(" - at `$.")
    key = path.rstrip("`").split("[")[0]
    value: Any = values
    for part in key.split("."):
        value = value[part]
    source = f"{key} = {value!r} in {file}"
    if key in given:
        source = f"--{key} {value!r}"
        complaint = complaint.removesuffix(", got `str`")  # every command-line value is a string
    choices = next((field.choices for field in list_fields(section) if field.key == key), None)
    if choices and "array" not in complaint:
        return f"{source} is not valid; {suggest(str(value), choices)}"
    for term, words in _TYPE_NAMES.items():
        complaint = complaint.replace(f"`{term}`", words)
    complaint = complaint.replace("Expected ", "it must be ").replace("got ", "not ").replace("`", "")
    return f"{source} is not valid: {complaint}"


def to_toml(config: Config, task_settings: Mapping[str, float | None]) -> str:
    """Return TOML that `resolve_config` reads back as the same configuration, with a comment for each key.

    Keys without a value are comments with the value of the task, because the file may be used with another task.

    Args:
        task_settings: Result of `settings_of` for its task.
    """
    return "".join(_toml_lines(config, task_settings))


def _toml_lines(config: Config, task_settings: Mapping[str, float | None]) -> Iterator[str]:
    builtins, table = msgspec.to_builtins(config), ""
    for field in list_fields(Config):
        if field.table != table:
            table = field.table
            yield f"\n{_comment(field.table_description)}[{table}]\n"
        value = (builtins[table] if table else builtins)[field.name]
        yield _comment(field.details)
        if value is not None:
            yield f"{field.name} = {_toml_value(value)}\n"
            continue
        own, task = task_settings[field.name.replace("-", "_")], strip_control(config.task)
        setting = f"{field.name}: no value, or several," if own is None else f"{field.name} = {_toml_value(own)}"
        yield f"# {setting} in task {task}\n"


def _comment(text: str) -> str:
    return textwrap.fill(text, 100, initial_indent="# ", subsequent_indent="# ") + "\n"


def _toml_value(value: str | float | Sequence[str]) -> str:
    match value:
        case str():
            # A string of JSON is one of TOML, but for DEL, which TOML wants escaped.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case list() | tuple():
            return f"[{', '.join(map(_toml_value, value))}]"
        case _:
            return repr(value)
