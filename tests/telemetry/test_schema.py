from __future__ import annotations

import typing
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from esper.telemetry import events as ev
from esper.telemetry.codec import encode
from esper.telemetry.schema import json_schema
from tests.factory import env_stepped, example_run
from tests.telemetry.recordings import recording
from tests.telemetry.test_codec import KINDS, values

SCHEMA: Any = json_schema()
VALIDATOR = Draft202012Validator(SCHEMA)


@given(event=st.one_of([values(kind) for kind in KINDS]))
def test_whatever_is_recorded_conforms_to_the_schema(event: ev.AnyEvent) -> None:
    schema: Any = {**SCHEMA, **SCHEMA["$defs"][type(event).__name__]}
    Draft202012Validator(schema).validate(msgspec.json.decode(encode(event)))


def test_every_line_of_a_recording_conforms() -> None:
    for line in recording(example_run(envs=2, rounds=1)).splitlines():
        VALIDATOR.validate(msgspec.json.decode(line))


@pytest.mark.parametrize(
    ("field", "value"),
    [("loss", "nan"), ("loss", None), ("accuracy", "0.5"), ("env", 0.5), ("slots", {}), ("type", "X")],
)
def test_what_no_version_writes_does_not_conform(field: str, value: object) -> None:
    line: Any = msgspec.json.decode(encode(env_stepped()))

    assert VALIDATOR.is_valid(line)
    line[field] = value
    assert not VALIDATOR.is_valid(line)


def test_every_event_and_field_is_described() -> None:
    assert {kind.__name__ for kind in typing.get_args(ev.AnyEvent)} < SCHEMA["$defs"].keys()
    for name, definition in SCHEMA["$defs"].items():
        assert definition["description"], name
        for field, value in definition.get("properties", {}).items():
            assert value["description"], f"{name}.{field}"


def test_the_description_of_a_field_is_that_of_its_source() -> None:
    fields = SCHEMA["$defs"]["DeviceSampled"]["properties"]

    assert fields["temperature"]["description"] == "Degrees Celsius."
    assert fields["seq"]["description"] == "Sequence number in the run, from 1, without gaps."
