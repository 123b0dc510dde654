"""JSON codec that preserves non-finite numbers and leaves out fields that were not measured.

msgspec writes NaN as `null`, which would hide the values that a user looks for. This codec writes NaN and infinities as
the strings "NaN", "Infinity" and "-Infinity", and reads them back as floats if the type is float. In untyped fields,
such as `RunStarted.config`, they stay strings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeVar, cast

import msgspec

NON_FINITE_STRINGS = ("NaN", "Infinity", "-Infinity")
"""Encoding of NaN, positive and negative infinity."""

DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Exceptions of a decoder for malformed bytes; the last one is for deep nesting."""

T = TypeVar("T")

_encoder = msgspec.json.Encoder()
_encode = _encoder.encode


def encode_json(value: object) -> bytes:
    """Return a value as one line of JSON, without a newline. Lone surrogates in text become question marks."""
    try:
        line = _encode(value)
    except UnicodeEncodeError:
        return _encode(_to_builtins(value))
    # Fields that are None are left out, so a null is most likely a non-finite number.
    return _encode(_to_builtins(value)) if b"null" in line else line


def encode_lines(values: Sequence[object]) -> bytes:
    """Return values as lines of JSON with newlines. Faster than `encode_json` for each of them."""
    try:
        lines = _encoder.encode_lines(values)
    except UnicodeEncodeError:
        lines = b"null"
    return b"".join([encode_json(value) + b"\n" for value in values]) if b"null" in lines else lines


def make_decoder(kind: type[T] | Any) -> msgspec.json.Decoder[T]:
    """Return a decoder of the output of `encode_json`."""
    return msgspec.json.Decoder(kind, strict=False)


def _to_builtins(value: object) -> object:
    """Return the value as dicts, lists and scalars that msgspec can write without loss."""
    return _writable(msgspec.to_builtins(value, builtin_types=(msgspec.Raw,)))


def _writable(value: object) -> object:
    match value:
        case float() if not math.isfinite(value):
            nan, infinity, minus_infinity = NON_FINITE_STRINGS
            return nan if math.isnan(value) else infinity if value > 0 else minus_infinity
        case str():
            return value.encode("utf-8", "replace").decode()
        case dict():
            items = cast(dict[object, object], value).items()
            return {_writable(key): _writable(item) for key, item in items}
        case list() | tuple():
            return [_writable(item) for item in cast(Sequence[object], value)]
        case _:
            return value
