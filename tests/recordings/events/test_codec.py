from __future__ import annotations

import math
import typing
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.common.domain import Stage, StageName
from esper.recordings import events as ev
from esper.recordings.events.codec import DECODE_ERRORS, encode_json, encode_lines, make_decoder
from esper.recordings.state.state import Keyframe, Record, RunState
from tests.factory import env_stepped, example_run
from tests.recordings.files.recordings import fold

KINDS = typing.get_args(ev.AnyEvent)
DECODER: msgspec.json.Decoder[Record] = make_decoder(Record)

text = st.text(st.characters(exclude_categories=["Cs"]))
integers = st.integers(-(2**63), 2**63 - 1)


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for all values of a type, including NaN and infinities for floats."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = {field.name: values(field.type) for field in msgspec.structs.fields(kind)}
        return st.builds(kind, **fields)
    if kind is Any:
        return st.none() | st.booleans() | integers | text | st.floats(allow_nan=False, allow_infinity=False)
    if origin is dict:
        return st.dictionaries(text, values(arguments[1]), max_size=3)
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if origin is list:
        return st.lists(values(arguments[0]), max_size=3)
    if arguments:
        return st.one_of([values(argument) for argument in arguments])
    return {int: integers, float: st.floats(), str: text, bool: st.booleans(), type(None): st.none()}[kind]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=settings().max_examples // 2)  # of each of many types
@given(data=st.data())
def test_event_round_trip_is_equal(kind: type[ev.Event], data: st.DataObject) -> None:
    event = data.draw(values(kind))

    line = encode_json(event)

    assert b"\n" not in line
    assert repr(DECODER.decode(line)) == repr(event)  # NaN != NaN, and -0.0 == 0.0


def test_json_has_non_finite_values_and_omits_missing_ones() -> None:
    event = env_stepped(loss=math.nan, grad_norm=math.inf, reward=-math.inf, value=None)

    written = msgspec.json.decode(encode_json(event))

    assert (written["loss"], written["grad_norm"], written["reward"]) == ("NaN", "Infinity", "-Infinity")
    assert "value" not in written
    in_list = env_stepped(slots=[ev.SlotReading(stage="training", grad_norm=math.nan)])
    assert msgspec.json.decode(encode_json(in_list))["slots"][0]["grad_norm"] == "NaN"


@given(events=st.lists(st.one_of([values(kind) for kind in KINDS]), max_size=4))
def test_encoding_many_equals_encoding_each(events: list[ev.AnyEvent]) -> None:
    unwritable = ev.Logged(severity="info", text="\udcff")

    for run in (events, [*events, unwritable]):
        assert encode_lines(run) == b"".join(encode_json(event) + b"\n" for event in run)


def test_events_accept_the_names_of_all_stages() -> None:
    assert typing.get_args(StageName) == tuple(stage.label for stage in Stage)


@pytest.mark.parametrize(
    ("valid", "wrong"),
    [
        (b'{"type":"Logged","seq":1,"time":1.0,"severity":"error","text":"x"}', (b'"error"', b'"critical"')),
        (encode_json(env_stepped()), (b'"stage":"dormant"', b'"stage":""')),
    ],
)
def test_name_that_no_screen_knows_is_damage(valid: bytes, wrong: tuple[bytes, bytes]) -> None:
    DECODER.decode(valid)
    assert wrong[0] in valid
    with pytest.raises(DECODE_ERRORS, match="Invalid enum value"):
        DECODER.decode(valid.replace(*wrong))


def test_unencodable_text_is_replaced() -> None:
    event = ev.Logged(severity="info", text="a path \udcff with a byte that is not UTF-8")

    assert DECODER.decode(encode_json(event)) == ev.Logged(severity="info", text=event.text.replace("\udcff", "?"))


def test_keyframe_round_trip_keeps_the_state() -> None:
    state = fold(example_run())
    assert None in state.curves["gradient norm/head tempo"].values
    state.walls.append(math.nan)
    state.envs[0].returns.append(-math.inf)

    line = encode_json(Keyframe.from_state(state))

    keyframe = DECODER.decode(line)
    assert isinstance(keyframe, Keyframe)
    assert (keyframe.seq, keyframe.time) == (state.seq, state.time)
    assert repr(keyframe.decode_state()) == repr(state)


def test_keyframe_decodes_to_an_independent_state() -> None:
    keyframe = Keyframe.from_state(fold(example_run()))

    keyframe.decode_state().envs[0].scores.append(1.0)

    assert repr(keyframe.decode_state()) == repr(fold(example_run()))
    assert isinstance(keyframe.decode_state(), RunState)
