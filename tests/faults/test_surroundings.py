"""Faults of what surrounds a run: its directory, its limits, its data, and those who attach to it."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from esper.cli.main import main
from esper.common.control import RequestKind
from esper.recordings import events as ev
from esper.recordings.attach.protocol import SOCKET_NAME, Acknowledged
from esper.recordings.attach.server import MAX_CONNECTIONS
from esper.recordings.checkpoints.catalog import list_checkpoints
from esper.recordings.history.history import open_history
from esper.training.checkpoint.files import read_checkpoint
from tests.faults.programs import TIMEOUT_S
from tests.recordings.attach.viewers import HELLO, Viewer, exchange
from tests.runs import LiveRun, only_run, recorded
from tests.terminals import assert_refused, printed, wait_until

OPTIONS = ("--no-tui", "--envs", "2", "--steps", "3", "--training.samples-per-epoch", "64")


@pytest.fixture(autouse=True)
def _in_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@contextlib.contextmanager
def file_size_limit(limit: int) -> Iterator[None]:
    """Limit the size in bytes of the files that this process writes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    ("devices", "max_file_bytes", "code", "sentence"),
    [
        (("cpu:0", "cpu:1"), 60_000, 2, "the worker processes of cpu:1 cannot be started: File too large"),
        pytest.param(
            *(("cpu:0",), 60_000, 1),
            "cannot record to telemetry/[^:]*: File too large; the last [0-9]+ events are lost",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *(("cpu:0",), 400_000, 1),
            "the checkpoint cannot be written to telemetry/[^:]*: File too large",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_file_size_limit_ends_a_run_in_one_sentence(
    tmp_path: Path,
    devices: tuple[str, ...],
    max_file_bytes: int,
    code: int,
    sentence: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = (*OPTIONS, "--rounds", "30", "--patience-minutes", "0", "--devices", *devices)
    with file_size_limit(max_file_bytes):
        ended = main(options)
    output = "".join(printed(capsys))
    assert ended == code, output
    assert "Traceback" not in output
    assert re.search(f"^esper-sanctum: .*{sentence}", output, re.MULTILINE), output
    for run in (tmp_path / "telemetry").glob("*"):
        history = open_history(run)
        assert [event.seq for event in history.events()] == list(range(1, history.length + 1))


def test_a_read_only_directory_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "telemetry").write_text("a file in the place of the directory, which also stops root")
    assert_refused(main([*OPTIONS, "--rounds", "1"]), *printed(capsys), "telemetry")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lose", "sentence", "left"),
    [
        (
            lambda run: subprocess.run(["rm", "-rf", run.parent], check=False),
            "cannot record to telemetry/{run}: the directory was deleted; its events and checkpoints are lost; start "
            "the run again",
            [],
        ),
        (
            lambda run: run.parent.rename("away"),
            r"the run waited for 0 minutes \(--patience-minutes\); put the directory back, then --resume "
            r"telemetry/{run} continues at round \d+, step \d; cannot record to telemetry/{run}: the directory was "
            r"moved or unmounted; the last \d+ events are lost",
            ["away"],
        ),
    ],
    ids=["deleted", "moved"],
)
def test_a_directory_that_vanishes_ends_an_unattended_run(
    lose: Callable[[Path], object], sentence: str, left: list[str], tmp_path: Path
) -> None:
    options = ("--rounds", "5000", "--checkpoint-every", "1", "--sync-seconds", "1", "--patience-minutes", "0")
    process = subprocess.Popen(
        [sys.executable, "-m", "esper", *OPTIONS, *options],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: any(tmp_path.glob("telemetry/*/checkpoints/*/manifest.json")))
    run = only_run(tmp_path)
    while (tmp_path / "telemetry").exists():  # `rm` fails if the run writes a file meanwhile
        lose(run)
    errors = process.communicate(timeout=TIMEOUT_S)[1]
    assert process.returncode == 1, errors
    assert re.fullmatch(f"esper-sanctum: {sentence.format(run=run.name)}\n", errors), errors
    assert [path.name for path in tmp_path.iterdir()] == left


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("mount") is None, reason="only root may mount file systems")
def test_a_file_system_that_is_unmounted_and_mounted_again_holds_the_run(tmp_path: Path) -> None:
    disk, telemetry = tmp_path / "disk", tmp_path / "telemetry"
    disk.mkdir()
    telemetry.mkdir()
    mount = ["mount", "--bind", str(disk), str(telemetry)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this system does not allow mounts")
    try:
        live = LiveRun(telemetry, rounds=5000).start()
        live.wait_for(ev.CheckpointSaved)
        subprocess.run(["umount", "--lazy", str(telemetry)], check=True)
        while (paused := live.wait_for(ev.Paused)).cause != "recording":
            pass
        assert "the directory was moved or unmounted" in (paused.reason or "")
        assert list(telemetry.iterdir()) == []
        subprocess.run(mount, check=True)
        live.wait_for(ev.Resumed)
        live.control.put(RequestKind.STOP, "test")
        assert live.finish().status == "stopped"
        told = [(event.seq, type(event)) for event in live.events]
        assert [(event.seq, type(event)) for event in recorded(live.run.directory)] == told
    finally:
        subprocess.run(["umount", "--lazy", str(telemetry)], check=False)


OWN_TASK = """
import torch
from torch import nn

import esper


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))


def loss(logits, target):
    value = nn.functional.cross_entropy(logits, target)
    return value * (float("nan") if {broken_loss} else 1.0)


inputs = torch.randn(64, 4)
inputs[5, 1] = {value}
split = (inputs, torch.arange(64) % 2)
task = esper.Task(
    name="own",
    model=Net,
    data=lambda directory: esper.Splits(train=split, validation=split, test=split),
    slots={{"mid": "body"}},
    loss=loss,
    optimizer=esper.SGD(0.05),
    seed_optimizer=esper.SGD(0.05),
)
"""


def write_task(directory: Path, *, value: str = "0.0", broken_loss: bool = False) -> str:
    path = directory / f"own_{broken_loss}_{value[7:10]}.py"
    path.write_text(textwrap.dedent(OWN_TASK).format(value=value, broken_loss=broken_loss))
    return path.name


@pytest.mark.parametrize("value", ["float('nan')", pytest.param("float('inf')", marks=pytest.mark.slow)])
def test_values_that_are_not_finite_in_the_data_are_refused(
    tmp_path: Path, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main([*OPTIONS, "--devices", "cpu:0", "--task", write_task(tmp_path, value=value)])
    assert_refused(code, *printed(capsys), "has values that are not finite")
    assert not (tmp_path / "telemetry").exists()


def test_a_loss_that_is_never_finite_is_rolled_back_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = write_task(tmp_path, broken_loss=True)
    assert main([*OPTIONS, "--devices", "cpu:0", "--rounds", "2", "--task", task]) == 0
    assert "Traceback" not in "".join(printed(capsys))
    run = only_run(tmp_path)
    assert any(isinstance(event, ev.GovernorRolledBack) for event in recorded(run))
    # NaN in the hosts reaches neither the policy nor the checkpoint.
    checkpoint = read_checkpoint(list_checkpoints(run)[-1])
    assert all(bool(tensor.isfinite().all()) for name, tensor in checkpoint.tensors.items() if name.startswith("agent"))


@pytest.mark.slow
def test_two_hundred_clients_do_not_disturb_a_run(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "esper", *OPTIONS, "--rounds", "100000"],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: any((tmp_path / "telemetry").glob(f"*/{SOCKET_NAME}")))
        run = only_run(tmp_path)
        clients = [connected(run) for _ in range(200)]
        for number, client in enumerate(clients):
            with contextlib.suppress(ConnectionError):  # the run has closed it: too many are open
                client.send((b"\xff" * 64, b"", b"GET / HTTP/1.1\r\n\r\n")[number % 3])
        for client in clients:
            client.connection.close()
        assert isinstance(exchange(run, HELLO), Acknowledged)
        assert len(clients) > MAX_CONNECTIONS
        process.send_signal(signal.SIGINT)
        assert (process.communicate(timeout=TIMEOUT_S)[1], process.returncode) == ("", 0)
    finally:
        process.kill()
    history = open_history(run)
    assert [event.seq for event in history.events()] == list(range(1, history.length + 1))


def connected(run: Path) -> Viewer:
    """Connect when the run has accepted enough of the earlier viewers."""
    while True:
        try:
            return Viewer(run)
        except BlockingIOError:
            time.sleep(0.005)
