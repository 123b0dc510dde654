"""Recordings and checkpoints written by earlier code can still be used, or are refused.

`tests/fixtures/before-redesign` holds the recording of a run of three rounds, as the code before November 2026 wrote
it, and the manifests of its first and last checkpoint, which have an older format. `before-redesign-show.json` is the
output of `show --json` at that time. `tests/fixtures/format-9` holds the same run with checkpoints of format 9;
`format-9-machine.json` names the machine that trained it.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from esper.checkpoint.catalog import list_checkpoints
from esper.checkpoint.files import Checkpoint, read_checkpoint
from esper.checkpoint.manifest import TELEMETRY_FILE
from esper.cli.main import main
from esper.config import PPOConfig
from esper.control import RequestKind
from esper.history.history import open_history
from esper.telemetry.codec import encode_json, make_decoder
from esper.telemetry.health_stats import EnvStepStats
from esper.telemetry.state import Keyframe, RunState
from tests.runs import LiveRun
from tests.terminals import printed, run

FIXTURES = Path(__file__).parents[1] / "fixtures"
OLD_RECORDING = FIXTURES / "before-redesign"
OLD_RUN = FIXTURES / "format-9"
OPTIONS: dict[str, Any] = {"task": "digits", "seed": 7, "envs": 2, "steps": 4, "rounds": 3, "ppo": PPOConfig(hidden=8)}
CHANGED_KEYS = {"path"}
"""Keys of `show --json` that may differ: `path` is the argument of the command."""


@pytest.fixture
def old_run(tmp_path: Path) -> Path:
    """A copy of the run with checkpoints that a test may change."""
    return Path(shutil.copytree(OLD_RUN, tmp_path / OLD_RUN.name))


def machine() -> dict[str, str]:
    """Return what the results of floating-point kernels depend on: the CPU and the version of torch."""
    text = Path("/proc/cpuinfo").read_text()
    fields = dict(re.findall(r"^(model name|cpu family|model)\s*: (.*)$", text, re.MULTILINE))
    return {
        "cpu": f"{fields.get('model name')}, family {fields.get('cpu family')}, model {fields.get('model')}",
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
    }


def assert_equal_bit_for_bit(found: Checkpoint, expected: Checkpoint) -> None:
    """Compare tensors by their bytes: a NaN equals itself, and -0.0 is not 0.0."""
    assert (found.round, found.step) == (expected.round, expected.step)
    assert repr(found.state) == repr(expected.state)
    assert found.tensors.keys() == expected.tensors.keys()
    for name, tensor in expected.tensors.items():
        assert (found.tensors[name].dtype, found.tensors[name].shape) == (tensor.dtype, tensor.shape), name
        assert found.tensors[name].numpy().tobytes() == tensor.numpy().tobytes(), name


def test_old_recording_replays_to_the_same_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "--json", str(OLD_RECORDING)]) == 0
    output, errors = printed(capsys)
    assert errors == ""  # no warning about damage or unknown fields
    expected = json.loads((FIXTURES / "before-redesign-show.json").read_text())
    found = json.loads(output)
    assert found.keys() == expected.keys()
    for key in expected.keys() - CHANGED_KEYS:
        assert found[key] == expected[key], key


@pytest.mark.parametrize("index", [0, 1])
def test_old_keyframe_equals_the_fold_of_the_events(index: int) -> None:
    """A keyframe stores the fields of the state by name: a renamed field would lose its value without an error."""
    checkpoint = list_checkpoints(OLD_RECORDING)[index]
    keyframe = make_decoder(Keyframe).decode((checkpoint / TELEMETRY_FILE).read_bytes()).decode_state()
    folded = open_history(OLD_RECORDING).state_at(keyframe.seq)  # the numbers of the events have no gap
    assert (folded.seq, folded.round, folded.step) == (keyframe.seq, index * 2 + 1, 4)
    assert comparable(folded) == comparable(keyframe)


def comparable(state: RunState) -> dict[str, Any]:
    """Return a state as JSON values without the sentences of its log, and without what old keyframes do not have."""
    values = json.loads(encode_json(state))
    for line in values["log"]:
        assert line.pop("text")
        del line["group"], line["step"]
    values["learning"].pop("within_step_explained_variance", None)
    values["vitals"].pop("rounds", None)
    for env in values["envs"]:
        env.pop("best_after", None)
    for env in values["vitals"]["envs"].values():
        env.pop("ends", None)
        env["recent"] = [step[: EnvStepStats.__struct_fields__.index("train_loss")] for step in env["recent"]]
    return values


def test_checkpoint_of_an_older_format_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = list_checkpoints(OLD_RECORDING)[-1]
    assert main(["--resume", str(checkpoint), "--no-tui"]) == 2
    assert f"{checkpoint} has checkpoint format 5; this is esper-sanctum" in printed(capsys)[1]


def test_old_checkpoint_restores_and_saves_the_same_state(old_run: Path) -> None:
    checkpoint = list_checkpoints(old_run)[0]
    expected = read_checkpoint(checkpoint)
    live = LiveRun(old_run.parent, resume=checkpoint, **OPTIONS)
    saved, _, _ = live.run.trainer.run_control.checkpointer.save(live.run.trainer.state)
    assert saved == checkpoint
    assert_equal_bit_for_bit(read_checkpoint(saved), expected)
    live.control.put(RequestKind.ABANDON, "test")
    live.start().finish()


@pytest.mark.slow
def test_old_checkpoint_resumes_to_the_same_result(old_run: Path) -> None:
    first, last = list_checkpoints(old_run)
    expected = read_checkpoint(last)
    result = run("--resume", str(first), "--no-tui", cwd=old_run.parent)
    assert result.returncode == 0, result.stderr
    assert list_checkpoints(old_run)[-1] == last
    found = read_checkpoint(last)
    assert (found.round, found.step) == (expected.round, expected.step) == (3, 0)
    assert found.tensors.keys() == expected.tensors.keys()
    fixture_machine = json.loads((FIXTURES / "format-9-machine.json").read_text())
    if machine() != fixture_machine:
        pytest.skip(f"resumed; values not compared: trained on {fixture_machine}, this is {machine()}")
    assert_equal_bit_for_bit(found, expected)
