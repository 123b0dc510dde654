"""Tests of checkpoints: complete and verified, or refused."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import safetensors.torch
import torch

from esper.common.configuration.config import Config, PPOConfig, TaskError, TrainingConfig
from esper.common.control import RequestKind
from esper.common.domain import VERSION
from esper.recordings import events as ev
from esper.recordings.checkpoints.catalog import (
    checkpoint_path,
    find_checkpoint,
    list_checkpoints,
    prune_checkpoints,
    remove_incomplete,
    run_directory_of,
    step_number_of,
)
from esper.recordings.checkpoints.manifest import (
    CHECKPOINT_FORMAT,
    MANIFEST_FILE,
    STATE_FILE,
    TELEMETRY_FILE,
    TENSORS_FILE,
    CheckpointError,
    FileEntry,
    Manifest,
    check_compatible,
    config_from_manifest,
    digest,
    read_manifest,
)
from esper.recordings.events.codec import encode_json
from esper.recordings.files.run_lock import LOCK_FILE
from esper.recordings.state.state import Keyframe, RunState
from esper.training.checkpoint import files as checkpoints
from esper.training.checkpoint.files import Checkpoint, read_checkpoint, write_checkpoint
from tests.runs import LiveRun, stopped_run

FILES = (TENSORS_FILE, STATE_FILE, TELEMETRY_FILE, MANIFEST_FILE)


def example(round_number: int = 3) -> Checkpoint:
    return Checkpoint(
        config=Config(envs=2, ppo=PPOConfig(target_kl=math.inf)),
        round=round_number,
        step=2,
        state={
            "agent": {"nan": math.nan, "infinity": -math.inf, "absent": None, "third": 1 / 3, "text": "é"},
            "episodes": [],
            "scalers": {},
        },
        tensors={
            "float32": torch.tensor([1 / 3, math.nan, -math.inf, -0.0]),
            "int64": torch.tensor([[2**62, -1]]),
            "bool": torch.tensor([True, False]),
            "scalar": torch.tensor(7.0),
            "empty": torch.empty(0, 3),
            "transposed": torch.arange(6.0).view(2, 3).T,
            "channels_last": torch.arange(8.0).view(1, 2, 2, 2).to(memory_format=torch.channels_last),
        },
        telemetry=encode_json(Keyframe.from_state(RunState(seq=9))),
    )


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = checkpoint_path(tmp_path, 3, 2)
    write_checkpoint(path, example())
    return path


def sign(directory: Path, files: dict[str, FileEntry] | None = None, **changes: Any) -> None:
    """Write a manifest whose digests match the files in the directory."""
    contents = {name: (directory / name).read_bytes() for name in (TENSORS_FILE, STATE_FILE, TELEMETRY_FILE)}
    entries = {name: FileEntry(len(content), digest(content)) for name, content in contents.items()}
    fields = {"format": CHECKPOINT_FORMAT, "round": 3, "step": 2, "config": msgspec.to_builtins(example().config)}
    manifest = Manifest(**{**fields, "files": entries if files is None else files, **changes})
    (directory / MANIFEST_FILE).write_bytes(encode_json(manifest.with_digest()))


def damage(content: bytes, position: float) -> bytes:
    """Flip a bit of one byte."""
    at = int(position * (len(content) - 1))
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


# Round trip


def test_checkpoint_restores_every_tensor_and_scalar(written: Path) -> None:
    expected, found = example(), read_checkpoint(written)
    assert (found.config, found.round, found.step) == (expected.config, expected.round, expected.step)
    assert found.telemetry == expected.telemetry
    assert repr(found.state) == repr(expected.state)  # repr: a NaN is not equal to itself
    assert found.tensors.keys() == expected.tensors.keys()
    for name, tensor in expected.tensors.items():
        assert found.tensors[name].dtype == tensor.dtype
        torch.testing.assert_close(found.tensors[name], tensor, rtol=0, atol=0, equal_nan=True)


def test_checkpoint_size_is_the_size_of_its_files(tmp_path: Path) -> None:
    path = checkpoint_path(tmp_path, 1, 0)
    assert write_checkpoint(path, example()) == sum(file.stat().st_size for file in path.iterdir())


@pytest.mark.parametrize(("policy", "steps", "paused"), [("ppo", 8, 13), ("heuristic", 20, 16)])
def test_restore_reads_everything_in_a_checkpoint(policy: str, steps: int, paused: int, tmp_path: Path) -> None:
    options = {"policy": policy, "rounds": 2, "steps": steps}
    first = LiveRun(tmp_path, **options).start_paused(paused)
    path = first.stop()
    before = read_checkpoint(path)
    assert any(name.startswith("env.0.momentum.slot") for name in before.tensors)  # or it would show less

    second = LiveRun(tmp_path, resume=path, **options)
    again, _, _ = second.run.trainer.run_control.checkpointer.save(second.run.trainer.state)
    second.control.put(RequestKind.ABANDON, "test")
    second.start().finish()
    after = read_checkpoint(again)
    assert (after.round, after.step, repr(after.state)) == (before.round, before.step, repr(before.state))
    assert after.tensors.keys() == before.tensors.keys()
    for name, tensor in before.tensors.items():
        torch.testing.assert_close(after.tensors[name], tensor, rtol=0, atol=0, equal_nan=True, msg=name)


# Damage is refused


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("position", [0.0, 0.6])
def test_flipped_bit_is_refused(written: Path, name: str, position: float) -> None:
    file = written / name
    file.write_bytes(damage(file.read_bytes(), position))
    with pytest.raises(CheckpointError, match=name):
        read_checkpoint(written)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("share", [0.0, 0.99])
def test_truncated_file_is_refused(written: Path, name: str, share: float) -> None:
    file = written / name
    os.truncate(file, int(share * file.stat().st_size))
    with pytest.raises(CheckpointError, match=f"{name} is damaged"):
        read_checkpoint(written)


@pytest.mark.parametrize("name", FILES)
def test_missing_file_is_refused(written: Path, name: str) -> None:
    (written / name).unlink()
    with pytest.raises(CheckpointError, match=name):
        read_checkpoint(written)


@pytest.mark.parametrize(
    ("run_json", "advice"),
    [
        (None, ""),
        (b"{", ""),
        (b'{"versions": {"esper-sanctum": "0.0.7"}}', "; version 0.0.7 wrote it: install that version to use it"),
    ],
)
def test_another_format_is_refused_with_the_version_to_install(
    written: Path, tmp_path: Path, run_json: bytes | None, advice: str
) -> None:
    if run_json is not None:
        (tmp_path / "run.json").write_bytes(run_json)
    (written / MANIFEST_FILE).write_bytes(b'{"format": %d, "all_else": "may be different"}' % (CHECKPOINT_FORMAT - 1))
    reads = f"this is esper-sanctum {VERSION}, which reads format {CHECKPOINT_FORMAT}"
    sentence = f"{written} has checkpoint format {CHECKPOINT_FORMAT - 1}; {reads}{advice}"
    for read in (read_manifest, read_checkpoint):
        with pytest.raises(CheckpointError, match=f"^{re.escape(sentence)}$"):
            read(written)


NOW = f'{{"format": {CHECKPOINT_FORMAT},'.encode()
HOSTILE = {
    "not JSON": b"\x80\x04\x95",
    "nested": b"[" * 1_000_000,
    "nested in the right place": NOW + b' "config": ' + b'{"a":' * 100_000,
    "a list": b"[]",
    "round before the first": NOW + b' "round": -1, "step": 0, "config": {}, "files": {}}',
    "round beyond all bounds": NOW + b' "round": 1' + b"0" * 5000 + b', "step": 0, "config": {}, "files": {}}',
    "unsigned": NOW + b' "round": 1, "step": 0, "config": {}, "files": {}}',
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_invalid_manifest_is_refused(written: Path, content: bytes) -> None:
    (written / MANIFEST_FILE).write_bytes(content)
    with pytest.raises(CheckpointError, match=MANIFEST_FILE):
        read_manifest(written)
    with pytest.raises(CheckpointError, match=MANIFEST_FILE):
        read_checkpoint(written)


def test_manifest_with_outside_paths_is_refused(written: Path) -> None:
    entries = read_manifest(written).files
    shutil.move(written / STATE_FILE, written.parent / STATE_FILE)
    (written / STATE_FILE).write_text("{}")
    sign(written, files={f"../{name}": entry for name, entry in entries.items()})
    with pytest.raises(CheckpointError, match="damaged"):
        read_checkpoint(written)


@pytest.mark.parametrize("config", [{"envs": 0}, {"nonsense": 1}])
def test_invalid_configuration_is_refused(written: Path, config: dict[str, Any]) -> None:
    sign(written, config=config)
    with pytest.raises(CheckpointError, match="configuration that this version cannot read"):
        config_from_manifest(read_manifest(written), written)
    with pytest.raises(CheckpointError, match="configuration that this version cannot read"):
        read_checkpoint(written)


@pytest.mark.parametrize("name", [TENSORS_FILE, STATE_FILE])
@pytest.mark.parametrize("content", [b"", b"{}", b"\x80\x04\x95pickle", b"[" * 1_000_000, b"\xff" * 64])
def test_invalid_content_with_valid_digests_is_refused(written: Path, name: str, content: bytes) -> None:
    (written / name).write_bytes(content)
    sign(written)
    with pytest.raises(CheckpointError, match="damaged"):
        read_checkpoint(written)


# An interrupted write


CHANGES = ("fsync", "rename", "replace", "unlink", "rmdir")
"""System calls of a write that change the disk."""


def _kill_before_change(number: int) -> None:
    """Kill the process with SIGKILL just before the given change to the disk."""
    changes = iter(range(number + 1))

    def watched(call: Callable[..., Any]) -> Callable[..., Any]:
        def change(*args: Any, **options: Any) -> Any:
            if next(changes) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **options)

        return change

    for name in CHANGES:
        setattr(os, name, watched(getattr(os, name)))


def _write_and_die(target: Path, number: int) -> bool:
    """Write in a separate process that is killed before the given change. False if the write finished before that."""
    child = os.fork()
    if child == 0:
        _kill_before_change(number)
        write_checkpoint(target, example(round_number=4))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFEXITED(status) or os.WTERMSIG(status) == signal.SIGKILL
    return os.WIFSIGNALED(status)


@pytest.mark.parametrize("number", range(7))
def test_kill_during_write_keeps_the_previous_checkpoint(written: Path, tmp_path: Path, number: int) -> None:
    target = checkpoint_path(tmp_path, 4, 2)
    assert _write_and_die(target, number)
    renamed = number == 6
    assert list_checkpoints(tmp_path) == ([written, target] if renamed else [written])
    assert [read_checkpoint(path).round for path in list_checkpoints(tmp_path)] == ([3, 4] if renamed else [3])
    remove_incomplete(tmp_path)
    write_checkpoint(target, example(round_number=4))
    assert read_checkpoint(target).round == 4
    assert sorted(target.parent.iterdir()) == [written, target]


@pytest.mark.parametrize("number", range(13))
def test_kill_during_replacement_loses_no_checkpoint(written: Path, tmp_path: Path, number: int) -> None:
    """Between the two renames only the renamed old checkpoint exists; it remains valid and gets its name back."""
    assert _write_and_die(written, number)
    (found,) = list_checkpoints(tmp_path)
    assert (step_number_of(found), run_directory_of(found)) == ((3, 2), tmp_path)
    assert read_checkpoint(found).round == (3 if number < 7 else 4)
    remove_incomplete(tmp_path)
    assert list(written.parent.iterdir()) == [written]
    write_checkpoint(written, example(round_number=4))
    assert list(written.parent.iterdir()) == [written]


def test_failed_replacement_loses_no_checkpoint(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = os.replace

    def refuse(source: Path, target: Path) -> None:
        if Path(target) == written:
            raise OSError(errno.EIO, "Input/output error")
        replace(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="Input/output error"):
        write_checkpoint(written, example(round_number=4))
    (found,) = list_checkpoints(run_directory_of(written))
    assert read_checkpoint(found).round == 3


def test_undeletable_replaced_checkpoint_is_not_an_error(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        write_checkpoint(written, example(round_number=4))
    assert list_checkpoints(run_directory_of(written)) == [written]
    assert read_checkpoint(written).round == 4
    remove_incomplete(run_directory_of(written))
    assert list(written.parent.iterdir()) == [written]


def test_kill_tests_cover_every_disk_operation(written: Path) -> None:
    assert not _write_and_die(checkpoint_path(run_directory_of(written), 4, 2), 7)
    assert not _write_and_die(written, 13)


def test_full_disk_keeps_previous_checkpoint_and_no_remains(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = checkpoints.write_synced

    def full(path: Path, content: bytes) -> None:
        if path.name == STATE_FILE:
            raise OSError(28, "No space left on device", str(path))
        write(path, content)

    monkeypatch.setattr(checkpoints, "write_synced", full)
    for target in (written, checkpoint_path(run_directory_of(written), 4, 2)):
        with pytest.raises(OSError, match="No space left"):
            write_checkpoint(target, example(round_number=4))
    assert read_checkpoint(written).round == 3
    assert list(written.parent.iterdir()) == [written]


# Listing


def fake(run: Path, *moments: tuple[int, int]) -> list[Path]:
    paths = [checkpoint_path(run, *moment) for moment in moments]
    for path in paths:
        path.mkdir(parents=True)
        (path / MANIFEST_FILE).write_text("{}")
    return paths


def test_checkpoint_is_named_after_its_step(tmp_path: Path) -> None:
    live = LiveRun(tmp_path, policy="static", rounds=2, checkpoint_every=1).start_paused(2)
    live.control.put(RequestKind.CHECKPOINT, "test")
    live.control.put(RequestKind.RESUME, "test")
    live.finish()
    saved = [event for event in live.events if isinstance(event, ev.CheckpointSaved)]
    names = ["round-00001-step-0002", "round-00001-step-0004", "round-00002-step-0004"]
    assert [Path(event.path).name for event in saved] == names
    assert [(event.round, event.step) for event in saved] == [(1, 2), (1, 4), (2, 4)]
    assert [path.name for path in list_checkpoints(live.run.directory)] == names
    assert [step_number_of(Path(event.path)) for event in saved] == [(event.round, event.step) for event in saved]


def test_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    paths = fake(tmp_path, (10, 0), (9, 24), (9, 3), (2, 0))
    prune_checkpoints(tmp_path, 2)
    assert list_checkpoints(tmp_path) == [paths[1], paths[0]]
    assert sorted(tmp_path.glob("checkpoints/*")) == [paths[1], paths[0]]
    prune_checkpoints(tmp_path, 5)
    assert list_checkpoints(tmp_path) == [paths[1], paths[0]]


def test_foreign_files_beside_checkpoints_are_kept(tmp_path: Path) -> None:
    old, kept = fake(tmp_path, (1, 0), (2, 0))
    theirs = [old.with_name(f"{old.name}.bak"), old.with_name("round-1.txt"), old.with_name("round-1.partial")]
    theirs[0].mkdir()
    theirs[1].write_text("the best so far")
    theirs[2].mkdir()
    prune_checkpoints(tmp_path, 1)
    remove_incomplete(tmp_path)
    assert sorted(old.parent.iterdir()) == sorted([*theirs, kept])


def test_newest_checkpoint_of_a_run_is_found(tmp_path: Path) -> None:
    paths = fake(tmp_path, (9, 0), (10, 0), (99_999, 9_999), (99_999, 10_000), (100_000, 0))
    assert list_checkpoints(tmp_path) == paths
    assert find_checkpoint(tmp_path) == paths[-1]
    assert find_checkpoint(paths[0]) == paths[0]
    assert run_directory_of(paths[0]) == tmp_path


def test_interrupted_checkpoint_is_not_listed(tmp_path: Path) -> None:
    (path,) = fake(tmp_path, (9, 0))
    for suffix in (".partial", ".removed"):
        shutil.copytree(path, path.with_name(f"round-00010-step-0000{suffix}"))
    checkpoint_path(tmp_path, 11, 0).mkdir()  # no manifest
    assert list_checkpoints(tmp_path) == [path]


@pytest.mark.parametrize("place", ["nothing", "checkpoints"])
def test_run_without_checkpoints_says_so(tmp_path: Path, place: str) -> None:
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(CheckpointError, match=f"{place} has no checkpoint; give a run"):
        find_checkpoint(tmp_path / place)


def test_checkpoint_outside_a_run_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not in the checkpoints/ directory of a run"):
        run_directory_of(tmp_path / "round-00001-step-0000")


# Compatibility


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"task": "digits"}, "--task digits_impaired, not digits"),
        ({"policy": "random"}, "--policy ppo, not random"),
        ({"init_policy": "pretrained"}, '--init-policy "", not pretrained'),
        ({"envs": 3}, "--envs 2, not 3"),
        ({"steps": 7}, "--steps 40, not 7"),
        ({"slots": ("early",)}, "--slots early mid, not early"),
        ({"seed": 1}, "--seed 0, not 1"),
        ({"reward": "sparse"}, "--reward shaped, not sparse"),
        ({"counterfactual": "off"}, "--counterfactual ablation, not off"),
        ({"ppo": PPOConfig(hidden=64)}, "--ppo.hidden 128, not 64"),
    ],
)
def test_resume_refuses_changes_of_fixed_options_by_name(change: dict[str, Any], sentence: str) -> None:
    saved = Config(envs=2, slots=("early", "mid"))
    with pytest.raises(CheckpointError, match=f"made with {sentence}; this setting cannot change on resume"):
        check_compatible(saved, msgspec.structs.replace(saved, **change), Path("some"))


def test_resume_accepts_changes_of_free_options() -> None:
    saved = Config(envs=2, slots=("early", "mid"))
    other = msgspec.structs.replace(
        saved,
        rounds=7,
        slots=("mid", "early"),  # names; the order does not matter
        devices=("cpu:0", "cpu:1"),
        checkpoint_every=2,
        keep=1,
        ppo=PPOConfig(learning_rate=1e-4),
        training=TrainingConfig(host_clip=2.0),
    )
    check_compatible(saved, other, Path("some"))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a run that has one checkpoint."""
    return stopped_run(tmp_path_factory.mktemp("stopped"))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"envs": 4}, "--envs"),
        ({"slots": ("early",)}, "--slots"),
        ({"task": "digits"}, "made with the task digits_impaired, not digits"),
        ({"ppo": {"hidden": 64}}, "ppo.hidden"),
    ],
)
def test_checkpoint_of_other_shape_leaves_run_unchanged(stopped: Path, options: dict[str, Any], named: str) -> None:
    def contents() -> dict[Path, bytes]:
        """Return the content of all files but the lock, which names the process that held it last."""
        return {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file() and path.name != LOCK_FILE}

    before, threads = contents(), set(threading.enumerate())
    with pytest.raises((CheckpointError, TaskError), match=named):
        LiveRun(stopped.parent, resume=find_checkpoint(stopped), **options)
    assert set(threading.enumerate()) <= threads
    assert contents() == before


WEIGHT = "env.2.network.host.head.linear.weight"
FORGED_TENSORS: list[Callable[[dict[str, torch.Tensor]], object]] = [
    lambda tensors: tensors.pop(WEIGHT),
    lambda tensors: tensors.update({WEIGHT: torch.zeros(10, 17)}),
    lambda tensors: (tensors.clear(), tensors.update({"model.layers.0.weight": torch.zeros(3)})),
]
FORGED_STATES: list[Callable[[list[dict[str, Any]]], object]] = [
    lambda episodes: episodes.pop(),
    lambda episodes: episodes[2].update(gate_refusals=[]),
    lambda episodes: episodes[2]["slots"][0].update(stage="blooming"),
]
"""Changes of the state of the envs."""


def forge_tensors(path: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = safetensors.torch.load_file(path / TENSORS_FILE)
    change(tensors)
    safetensors.torch.save_file(tensors, path / TENSORS_FILE)


def forge_state(path: Path, change: Callable[[list[dict[str, Any]]], object]) -> None:
    state = json.loads((path / STATE_FILE).read_bytes())
    change(state["episodes"])
    (path / STATE_FILE).write_text(json.dumps(state))


def forge_telemetry(path: Path) -> None:
    """Write an event where a state is expected."""
    (path / TELEMETRY_FILE).write_bytes(encode_json(ev.RoundStarted(round=1)))


@pytest.fixture(scope="module")
def stepped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LiveRun, Path]]:
    """A paused run, and its checkpoint of the step before."""
    live = LiveRun(tmp_path_factory.mktemp("stepped")).start_paused(3)
    trainer = live.run.trainer
    path, _, _ = trainer.run_control.checkpointer.save(trainer.state)
    live.control.put(RequestKind.STEP, "test")
    live.wait_for(ev.Paused)
    yield live, path
    live.abandon()


@pytest.mark.parametrize(
    "forge",
    [
        *(partial(forge_tensors, change=change) for change in FORGED_TENSORS),
        *(partial(forge_state, change=change) for change in FORGED_STATES),
        forge_telemetry,
    ],
)
def test_unfitting_checkpoint_leaves_trainer_unchanged(
    stepped: tuple[LiveRun, Path], tmp_path: Path, forge: Callable[[Path], None]
) -> None:
    """The digests match but the content does not fit: the restore fails partway, and the live run must continue."""
    live, path = stepped
    trainer = live.run.trainer
    checkpointer = trainer.run_control.checkpointer
    now, _, _ = checkpointer.save(trainer.state)
    expected = read_checkpoint(now)
    shutil.copytree(path, tmp_path / "saved")
    forge(path)
    sign(path, config=read_manifest(now).config)
    with pytest.raises(CheckpointError, match=r"does not fit this version|state\.json is damaged"):
        checkpointer.restore(trainer.state, path)
    shutil.copytree(tmp_path / "saved", path, dirs_exist_ok=True)
    again, _, _ = checkpointer.save(trainer.state)
    assert again == now
    found = read_checkpoint(again)
    assert repr(found.state) == repr(expected.state)
    assert found.tensors.keys() == expected.tensors.keys()
    assert all(torch.equal(found.tensors[name], tensor) for name, tensor in expected.tensors.items())
