"""Lessons: their returns, and their files."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import msgspec
import pytest
import safetensors.torch
import torch
from research.teaching.lessons import Lesson, join_alternatives, read_lesson, write_lesson
from torch import Tensor

from esper.common.configuration.config import ConfigError
from esper.training.policy.observation import ObservationShape
from research.teaching import lessons
from tests.research.teaching.made import made_lesson

SHAPE = ObservationShape(2, 3)


def tensors_of(lesson: Lesson) -> dict[str, Tensor]:
    """Return all tensors of a lesson, keyed by name."""
    named = {field.name: getattr(lesson, field.name) for field in fields(lesson)}
    return {name: value for name, value in named.items() if isinstance(value, Tensor)} | lesson.masks._asdict()


def assert_equal(found: Lesson, expected: Lesson) -> None:
    """Check that two lessons have the same tensors, bit for bit."""
    pairs = tensors_of(found), tensors_of(expected)
    assert pairs[0].keys() == pairs[1].keys()
    for name, value in pairs[1].items():
        assert value.dtype == pairs[0][name].dtype, name
        assert torch.equal(pairs[0][name], value), name


def test_return_is_gain_minus_rent_and_costs() -> None:
    lesson = made_lesson(1.0, [0.0, 0.3, -0.1], SHAPE)
    expected = torch.tensor([0.0, 0.3 - 0.001 - 3 * 0.01, -0.1 - 0.001 - 3 * 0.01], dtype=torch.float64)
    torch.testing.assert_close(lesson.returns(0.01), expected.expand(2, 3))
    torch.testing.assert_close(lesson.rewards(0.01)[0, 1], torch.tensor([0.289, -0.01, -0.01], dtype=torch.float64))


def test_lesson_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "course" / "00000.safetensors"
    write_lesson(path, made_lesson(1.0, [0.1, 0.2], SHAPE, seed=1))
    lesson = made_lesson(2.0, [0.0, 0.3, -0.1], SHAPE)
    write_lesson(path, lesson)
    found = read_lesson(path)
    assert found.info == lesson.info
    assert_equal(found, lesson)


def test_damaged_and_other_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "00000.safetensors"
    lesson = made_lesson(1.0, [0.1, 0.2], SHAPE)
    write_lesson(path, lesson)
    whole = path.read_bytes()
    info = {"info": msgspec.json.encode(lesson.info).decode()}
    tensors = {name: value for name, value in tensors_of(lesson).items() if name != "rent_OPT"}
    damaged = [
        whole[: len(whole) // 2],
        safetensors.torch.save(tensors),
        safetensors.torch.save(tensors, {"info": "no JSON"}),
        safetensors.torch.save(tensors, info),
    ]
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=r"00000\.safetensors is damaged: .*; delete it to play the lesson again"):
            read_lesson(path)
    path.write_bytes(whole)
    monkeypatch.setattr(lessons, "FORMAT", 3)
    with pytest.raises(ConfigError, match="has format 2, not 3; delete it"):
        read_lesson(path)
    with pytest.raises(OSError, match="none"):
        read_lesson(tmp_path / "none.safetensors")


def test_joined_lesson_has_the_alternatives_of_both() -> None:
    first, second = made_lesson(1.0, [0.0, 0.3], SHAPE), made_lesson(1.0, [0.1, 0.2, 0.4], SHAPE, seed=1)
    joined = join_alternatives(first, second)
    assert joined.info.alternatives == [*first.info.alternatives, *second.info.alternatives]
    for name, value in tensors_of(joined).items():
        assert torch.equal(value[:, :2], tensors_of(first)[name]), name
        assert torch.equal(value[:, 2:], tensors_of(second)[name]), name
