"""JSON codec that preserves non-finite numbers and leaves out fields that were not measured.

msgspec writes NaN as `null`, which would hide the values that a user looks for. This codec writes NaN and infinities as
the strings "NaN", "Infinity" and "-Infinity", and reads them back as floats if the type is float. In untyped fields,
such as `RunStarted.config`, they stay strings.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

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
        return _encode(_writable(_to_builtins(value)))
    if b"null" not in line:
        return line
    # A null is None or a non-finite number. The state of a run has thousands of None, but rarely one such number.
    plain = _to_builtins(value)
    return _encode(_writable(plain)) if _has_non_finite([plain]) else line


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
    """Return the value as dicts, lists, tuples and scalars."""
    return msgspec.to_builtins(value, builtin_types=(msgspec.Raw,))


def _has_non_finite(values: Iterable[Any]) -> bool:
    """Return True if one of the values, or of the values in them, is a non-finite number."""
    for value in values:
        kind = value.__class__
        if kind is float:
            if not math.isfinite(value):
                return True
        elif kind is dict:
            if _has_non_finite(value.values()):
                return True
        elif (kind is list or kind is tuple) and _has_non_finite(value):
            return True
    return False


def _writable(value: Any) -> Any:
    """Return the value with everything replaced that msgspec cannot write without loss."""
    kind = value.__class__
    if kind is float and not math.isfinite(value):
        nan, infinity, minus_infinity = NON_FINITE_STRINGS
        return nan if math.isnan(value) else infinity if value > 0 else minus_infinity
    if kind is str and not value.isascii():
        return value.encode("utf-8", "replace").decode()
    if kind is dict:
        return {_writable(key): _writable(item) for key, item in value.items()}
    return [_writable(item) for item in value] if kind is list or kind is tuple else value
