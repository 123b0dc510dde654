from __future__ import annotations

import typing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from esper.cli.commands.schema import json_schema
from esper.cli.main import main
from esper.recordings import events as ev
from esper.recordings.events.codec import encode_json
from tests.factory import env_stepped, example_run
from tests.recordings.events.test_codec import KINDS, values
from tests.recordings.files.recordings import recording, write_segment

SCHEMA: Any = json_schema()
VALIDATOR = Draft202012Validator(SCHEMA)


@given(event=st.one_of([values(kind) for kind in KINDS]))
def test_recorded_events_conform_to_the_schema(event: ev.AnyEvent) -> None:
    schema: Any = {**SCHEMA, **SCHEMA["$defs"][type(event).__name__]}
    Draft202012Validator(schema).validate(msgspec.json.decode(encode_json(event)))


def test_recording_lines_conform_to_the_schema() -> None:
    for line in recording(example_run(envs=2, rounds=1)).splitlines():
        VALIDATOR.validate(msgspec.json.decode(line))


@pytest.mark.parametrize(
    ("field", "value"),
    [("loss", "nan"), ("loss", None), ("score", "0.5"), ("env", 0.5), ("slots", {}), ("type", "X")],
)
def test_invalid_events_do_not_conform_to_the_schema(field: str, value: object) -> None:
    line: Any = msgspec.json.decode(encode_json(env_stepped()))

    assert VALIDATOR.is_valid(line)
    line[field] = value
    assert not VALIDATOR.is_valid(line)


def test_schema_describes_every_event_and_field() -> None:
    assert {kind.__name__ for kind in typing.get_args(ev.AnyEvent)} < SCHEMA["$defs"].keys()
    for name, definition in SCHEMA["$defs"].items():
        assert definition["description"], name
        for field, value in definition.get("properties", {}).items():
            assert value["description"], f"{name}.{field}"


def test_schema_descriptions_come_from_docstrings() -> None:
    fields = SCHEMA["$defs"]["DeviceSampled"]["properties"]

    assert fields["temperature"]["description"] == "Temperature in degrees Celsius."
    assert fields["seq"]["description"] == "Sequence number in the run, from 1, without gaps."


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of two runs."""
    directory = tmp_path_factory.mktemp("runs")
    for name in ("one", "two"):
        write_segment(directory / name, 1, recording(example_run()))
    return directory


@pytest.mark.parametrize(
    ("name", "arguments", "struct"),
    [
        ("show", ["show", "one"], "RunSummary"),
        ("compare", ["compare", "one", "two"], "RunSummary"),
        ("compare-groups", ["compare", "one", "two", "--group-by"], "GroupSummary"),
        ("runs", ["runs"], "RunInfo"),
    ],
)
def test_output_conforms_to_its_schema(
    name: str, arguments: list[str], struct: str, two_runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--json", "--telemetry-dir", str(two_runs)]) == 0
    output = capsys.readouterr().out
    assert main(["schema", "--of", name]) == 0
    schema = msgspec.json.decode(capsys.readouterr().out)
    Draft202012Validator(schema).validate(msgspec.json.decode(output))
    names = schema["$defs"][struct]["properties"]
    first = msgspec.json.decode(output)[0] if name != "show" else msgspec.json.decode(output)
    assert first.keys() <= names.keys()
    assert all(
        field["description"] for kind in schema["$defs"].values() for field in kind.get("properties", {}).values()
    )


def test_unknown_schema_is_refused_with_the_nearest_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "--of", "shwo"]) == 2
    assert capsys.readouterr().err == "esper-sanctum: --of 'shwo' has no schema; did you mean show?\n"
