"""JSON in which a number that is not finite stays itself, and what was not measured stays absent.

msgspec writes NaN as `null`, which must not happen: a NaN is the very thing that one looks for. Here NaN and the
infinities are written as the strings "NaN", "Infinity" and "-Infinity", and are read back as floats wherever the type
says float. In an untyped place, such as `RunStarted.config`, they stay strings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

NON_FINITE_STRINGS = ("NaN", "Infinity", "-Infinity")
"""How numbers that are not finite are written."""

T = TypeVar("T")

_encoder = msgspec.json.Encoder()
_encode = _encoder.encode


def encode_json(value: object) -> bytes:
    """Write a value as one line of JSON, without the line's end. Lone surrogates in text become question marks."""
    try:
        line = _encode(value)
    except UnicodeEncodeError:
        return _encode(_to_builtins(value))
    # Absent fields are left out, so a null is most likely a number that was not finite.
    return _encode(_to_builtins(value)) if b"null" in line else line


def encode_lines(values: Sequence[object]) -> bytes:
    """Write values as lines of JSON, each with its end: what `encode` writes, at less cost."""
    try:
        lines = _encoder.encode_lines(values)
    except UnicodeEncodeError:
        lines = b"null"
    return b"".join([encode_json(value) + b"\n" for value in values]) if b"null" in lines else lines


def make_decoder(kind: type[T] | Any) -> msgspec.json.Decoder[T]:
    """Make a decoder of what `encode` writes."""
    return msgspec.json.Decoder(kind, strict=False)


def _to_builtins(value: object) -> object:
    """The value as dicts, lists and scalars, all of which msgspec can write without loss."""
    return _writable(msgspec.to_builtins(value, builtin_types=(msgspec.Raw,)))


def _writable(value: Any) -> Any:
    match value:
        case float() if not math.isfinite(value):
            nan, infinity, minus_infinity = NON_FINITE_STRINGS
            return nan if math.isnan(value) else infinity if value > 0 else minus_infinity
        case str():
            return value.encode("utf-8", "replace").decode()
        case dict():
            return {_writable(key): _writable(item) for key, item in value.items()}
        case list() | tuple():
            return [_writable(item) for item in value]
        case _:
            return value
