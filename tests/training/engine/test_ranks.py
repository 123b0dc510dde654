"""Tests of runs of several ranks: as threads that meet at a barrier, and (slower) started by torchrun over gloo."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import torch

from esper.common.configuration.config import Config, ConfigError
from esper.common.configuration.files import resolve_config
from esper.common.control import RequestKind
from esper.common.system import ranks
from esper.common.system.process import RankInfo
from esper.common.system.ranks import RankGroup, RankLostError, reduce_on_gpu
from esper.recordings import events as ev
from esper.recordings.checkpoints.catalog import checkpoint_path, list_checkpoints
from esper.recordings.checkpoints.manifest import CheckpointError
from esper.recordings.events.codec import encode_json, make_decoder
from esper.recordings.files.run_directory import RunDirectory
from esper.recordings.files.run_lock import RunLock
from esper.recordings.history.history import open_history
from esper.recordings.state.state import Keyframe
from esper.training.checkpoint.files import read_checkpoint
from esper.training.engine import setup, start_checks, thread
from esper.training.engine.ending import Ending
from esper.training.engine.run import Run
from esper.training.engine.start_checks import check_start
from esper.training.engine.start_point import RunCompleteError, StartPoint
from esper.training.engine.thread import EngineThread
from esper.training.lanes.device_names import assign_lanes_to_rank
from tests.ranks import ThreadRanks, together
from tests.runs import LiveRun, computed, only_run, recorded, tiny

ENVS, RANKS = 5, 2
PATIENCE = 300.0


# Ranks as threads


class RankedRun:
    """A run of two ranks as threads of this process. Requests and records are those of rank 0."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        telemetry_dir: Path,
        resume: Path | None = None,
        envs: int = ENVS,
        **options: Any,
    ) -> None:
        self.meeting = ThreadRanks(RANKS)
        self._here = threading.local()
        monkeypatch.setattr(RankInfo, "from_environment", lambda: self._here.place)

        def build(rank: int) -> LiveRun:
            self._here.place = RankInfo(rank, RANKS, rank, RANKS)
            place = self.meeting.rank(rank)
            return LiveRun(telemetry_dir, resume=resume, ranks=place, envs=envs, devices=("cpu:0", "cpu:1"), **options)

        with ThreadPoolExecutor(RANKS) as threads:
            self.ranks = list(threads.map(build, range(RANKS)))
        self.first = self.ranks[0]

    def start(self, *first: RequestKind) -> RankedRun:
        for kind in first:
            self.ask(kind)
        for rank in self.ranks:
            rank.start()
        return self

    def ask(self, kind: RequestKind, path: str | None = None) -> None:
        self.first.control.put(kind, "test", path)

    def finish(self) -> str:
        state = self.first.finish()
        for rank in self.ranks[1:]:
            rank.join()
        return state.status


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> LiveRun:
    """The same run in a single process."""
    return LiveRun.finished(tmp_path_factory.mktemp("alone"), envs=ENVS)


@pytest.fixture(scope="module")
def ranked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankedRun]:
    """A finished run of two ranks."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        live = RankedRun(monkeypatch, tmp_path_factory.mktemp("ranked")).start()
        assert live.finish() == "done"
        yield live


def test_rank_with_a_single_env_keeps_pace_with_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has one group of envs, and the other rank two: both must look for requests at the same steps."""
    live = RankedRun(monkeypatch, tmp_path, policy="static", envs=3, rounds=1).start()
    assert live.finish() == "done"


def assert_alike(got: list[ev.AnyEvent], wanted: list[ev.AnyEvent]) -> None:
    """Assert equal events, regardless of their order within a step, with numbers equal to float tolerance."""

    def key(event: ev.AnyEvent) -> tuple[object, ...]:
        return (getattr(event, "round", 0), getattr(event, "step", 99), type(event).__name__, getattr(event, "env", -1))

    assert len(got) == len(wanted)
    for one, other in zip(sorted(got, key=key), sorted(wanted, key=key), strict=True):
        close(msgspec.to_builtins(one), msgspec.to_builtins(other))


def close(one: object, other: object) -> None:
    if isinstance(one, dict) and isinstance(other, dict):
        assert one.keys() == other.keys()
        for key in one:
            close(one[key], other[key])
    elif isinstance(one, list) and isinstance(other, list):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            close(left, right)
    else:
        assert one == (pytest.approx(other, rel=1e-3, abs=1e-5) if isinstance(other, float) else other)


def test_two_ranks_compute_the_same_as_one_process(alone: LiveRun, ranked: RankedRun) -> None:
    run = ranked.first.run.directory
    assert_alike(computed(recorded(run)), computed(recorded(alone.run.directory)))
    mine, theirs = (read_checkpoint(list_checkpoints(each)[-1]) for each in (run, alone.run.directory))
    assert mine.tensors.keys() == theirs.tensors.keys()
    for name, tensor in theirs.tensors.items():
        assert torch.allclose(mine.tensors[name].double(), tensor.double(), rtol=1e-3, atol=1e-5), name


def test_dashboard_and_recording_have_envs_of_all_ranks(ranked: RankedRun) -> None:
    run, live = ranked.first.run.directory, ranked.first.state
    history = open_history(run)
    assert history.notices == []
    assert encode_json(history.state_at(history.length)) == encode_json(Keyframe.from_state(live).decode_state())
    events = list(history.events())
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert all(env.stepped is not None for env in live.envs)
    assert live.started is not None
    assert live.started.lanes == ["cpu:0", "cpu:0", "cpu:1", "cpu:1", "cpu:1"]
    assert [device.envs for device in live.devices.values()] == [2, 3]
    assert all(live.records.empty() and not live.state.envs for live in ranked.ranks[1:])
    assert not list(run.glob("rank*"))


def test_requests_at_first_rank_reach_all(alone: LiveRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    live = RankedRun(monkeypatch, tmp_path).start(RequestKind.PAUSE)
    live.first.wait_for(ev.Paused)
    assert [(each.run.trainer.state.round, each.run.trainer.state.step) for each in live.ranks] == [(0, 1)] * 2
    for env in (0, ENVS - 1):  # of rank 0, and of the last rank
        live.first.control.put(RequestKind.EXPLAIN, "test", env=env)
        assert live.first.wait_for(ev.DecisionExplained).env == env
    live.ask(RequestKind.CHECKPOINT)
    saved = live.first.wait_for(ev.CheckpointSaved)
    live.ask(RequestKind.STEP)
    live.first.wait_for(ev.Paused)
    live.ask(RequestKind.RESTORE, str(checkpoint_path(live.first.run.directory, 7, 0)))
    assert "is not a checkpoint" in live.first.wait_for(ev.Logged).text
    assert [(each.run.trainer.state.round, each.run.trainer.state.step) for each in live.ranks] == [(0, 2)] * 2
    live.ask(RequestKind.RESTORE, saved.path)
    live.first.wait_for(ev.Resumed)
    assert live.finish() == "done"
    assert_alike(computed(recorded(live.first.run.directory)), computed(recorded(alone.run.directory)))


@pytest.mark.slow
def test_run_resumes_with_another_number_of_ranks(
    alone: LiveRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Resume from two ranks to one in the middle of a round, and back to two."""
    first = RankedRun(monkeypatch, tmp_path).start(
        RequestKind.PAUSE, RequestKind.STEP, RequestKind.STEP, RequestKind.STOP
    )
    assert first.finish() == "stopped"
    run = first.first.run.directory
    with monkeypatch.context() as by_itself:
        by_itself.setattr(RankInfo, "from_environment", RankInfo)
        second = LiveRun(tmp_path, resume=list_checkpoints(run)[-1], envs=ENVS).start_paused(3)
        second.stop()
    third = RankedRun(monkeypatch, tmp_path, resume=list_checkpoints(run)[-1]).start()
    assert third.finish() == "done"
    assert_alike(computed(recorded(run)), computed(recorded(alone.run.directory)))


def test_checkpoint_at_the_end_of_a_round_has_the_events_of_all_ranks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A resumed run discards the events after its checkpoint."""
    live = RankedRun(monkeypatch, tmp_path, policy="periodic", rounds=1, steps=2).start()
    assert live.finish() == "done"
    saved = read_checkpoint(list_checkpoints(live.first.run.directory)[-1])
    assert len(make_decoder(Keyframe).decode(saved.telemetry).decode_state().finals) == ENVS


def test_failed_rank_ends_the_run_of_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    live = RankedRun(monkeypatch, tmp_path)
    live.ask(RequestKind.PAUSE)
    with ThreadPoolExecutor(RANKS) as threads:
        training = [threads.submit(rank.run.train) for rank in live.ranks]
        live.first.wait_for(ev.Paused)
        live.meeting.leave()
        ended = live.first.wait_for(ev.RunEnded)
        for rank in training:
            with pytest.raises(RankLostError, match=r"no checkpoint was written; start the run again$"):
                rank.result()
    assert ended.outcome == "failed"
    assert str(ended.reason).startswith("rank 0 has lost another of the 2 ranks")
    history = open_history(live.first.run.directory)
    assert history.state_at(history.length).status == "failed"


def test_rank_lost_at_the_end_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    live = RankedRun(monkeypatch, tmp_path)
    run = live.first.wait_for(ev.RunStarted).run

    def lose(_: Run) -> str:
        live.meeting.leave()
        return "done"

    monkeypatch.setattr(Run, "_train", lose)
    for rank in live.ranks:
        with pytest.raises(RankLostError, match="has lost another of the 2 ranks"):
            rank.run.train()
    ended = recorded(tmp_path / run)[-1]
    assert isinstance(ended, ev.RunEnded)
    assert ended.outcome == "failed"
    assert "has lost another of the 2 ranks" in str(ended.reason)


# Where the ranks start


def starts(decided: StartPoint | Exception, restarts: Sequence[int], restart: StartPoint) -> list[object]:
    """Return the start of each of two ranks, or the error that it raises. Only rank 0 sees the run."""

    def agree(ranks: RankGroup) -> object:
        engine = EngineThread(None if ranks.rank else decided, restart=lambda: restart)
        try:
            return engine._agree_on_start(ranks, RankInfo(ranks.rank, RANKS, restarts=restarts[ranks.rank]))
        except (RunCompleteError, CheckpointError) as error:
            return str(error)

    return together(RANKS, agree)


def test_rank_0_decides_where_all_ranks_start() -> None:
    new, again = (StartPoint(Config(devices=("cpu:0",), seed=seed)) for seed in (1, 2))
    assert starts(new, (0, 0), again) == [new, new]
    assert starts(new, (1, 1), again) == [new, new]
    assert starts(new, (0, 1), again) == [again, again]  # torchrun has restarted the ranks of the other machine only
    assert starts(RunCompleteError("it is done"), (0, 0), again) == ["it is done"] * RANKS
    assert starts(CheckpointError("it is damaged"), (0, 0), again) == ["it is damaged"] * RANKS


def test_a_decision_after_a_restart_can_lock_the_same_run(tmp_path: Path) -> None:
    """Rank 0, which was not restarted, had locked the run when it decided first."""
    config = Config(devices=("cpu:0",))
    first = StartPoint(config, lock=RunLock(RunDirectory(tmp_path)))
    engine = EngineThread(first, restart=lambda: StartPoint(config, lock=RunLock(RunDirectory(tmp_path))))

    def agree(ranks: RankGroup) -> bool:
        one = engine if ranks.rank == 0 else EngineThread(None)
        start = one._agree_on_start(ranks, RankInfo(ranks.rank, RANKS, restarts=ranks.rank))
        return start.lock is not None

    assert together(RANKS, agree) == [True, *[False] * (RANKS - 1)]


# Refused configurations


def lanes_of(lanes: list[str], *place: int, leave_out: bool = False) -> list[str]:
    return assign_lanes_to_rank(lanes, RankInfo(*place), leave_out=leave_out)


def test_rank_that_is_stopped_before_the_run_has_begun_ends_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its failure makes torchrun end the others, which wait for it."""
    begun, go_on = threading.Event(), threading.Event()

    def never_meet(_: RankInfo) -> RankGroup:
        begun.set()
        go_on.wait()
        raise RankLostError

    monkeypatch.setattr(RankInfo, "from_environment", lambda: RankInfo(1, RANKS, 1, RANKS))
    monkeypatch.setattr(ranks, "init_ranks", never_meet)
    monkeypatch.setattr(thread, "PREPARATION_GRACE_S", 0.05)
    engine = EngineThread(StartPoint(resolve_config(None, tiny(tmp_path))))
    engine.start()
    begun.wait()
    engine.control.put(RequestKind.STOP, "signal")
    assert engine.stop_effect == "nothing is to be saved while the run is set up"
    engine.join()
    assert engine.must_exit
    told = "esper-sanctum: rank 1 was stopped before the run had begun; nothing was saved"
    assert engine.ending == Ending("failed", told)
    go_on.set()


def test_lanes_are_split_equally_among_the_ranks_of_a_node() -> None:
    gpus = [f"cuda:{index}" for index in range(5)]
    assert lanes_of(gpus) == gpus
    assert [lanes_of(gpus[:4], rank, 2, rank, 2) for rank in range(2)] == [["cuda:0", "cuda:2"], ["cuda:1", "cuda:3"]]
    assert [lanes_of(gpus, rank, 2, rank, 2, leave_out=True) for rank in range(2)] == [gpus[0:4:2], gpus[1:4:2]]
    assert lanes_of(gpus[:2], 3, 4, 1, 2, 1, 2) == ["1/cuda:1"]
    with pytest.raises(ConfigError, match=r"2 ranks on a machine cannot share cpu:0: .*--nproc-per-node 1"):
        lanes_of(["cpu:0"], 0, 2, 0, 2)
    unequal = "2 ranks on a machine cannot share 3 devices equally; name 2 of cuda:0, cuda:1, cuda:2 with --devices"
    with pytest.raises(ConfigError, match=f"^{unequal}, or start torchrun with --nproc-per-node 3$"):
        lanes_of(gpus[:3], 0, 2, 0, 2)


def test_rank_with_a_gpu_of_its_own_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a scheduler sets CUDA_VISIBLE_DEVICES for each rank: all of them call their GPU cuda:0."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setattr(start_checks, "max_device_counts", lambda: {"cuda": 1, "cpu": 2})
    assert [lanes_of(["cuda:0"], rank, 2, rank, 2) for rank in range(2)] == [["0/cuda:0"], ["1/cuda:0"]]
    monkeypatch.setattr(start_checks, "early_lanes", lambda *_: ["0/cuda:0"])
    check_start(Config(devices=("cuda:0",), policy_device="cuda:0"), RankInfo(0, 2, 0, 2), is_new=False)
    with pytest.raises(ConfigError, match="cannot share cpu:0"):
        lanes_of(["cpu:0"], 0, 2, 0, 2)


@pytest.mark.parametrize(
    ("uuids", "refused"), [(["a", "b"], None), (["a", "a"], "ranks 0 and 1 would use the same GPU; set CUDA_VISIBLE")]
)
def test_two_ranks_on_one_gpu_are_refused(
    uuids: list[str], refused: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    meeting, here = ThreadRanks(2), threading.local()
    monkeypatch.setattr(setup, "cuda_uuid", lambda _: here.uuid)

    def check(rank: int) -> str | None:
        here.uuid = uuids[rank]
        try:
            setup._check_gpus([f"{rank}/cuda:0", "cpu:0"], RankInfo(rank, 2, rank, 2), meeting.rank(rank))
        except ConfigError as error:
            return str(error)
        return None

    with ThreadPoolExecutor(2) as threads:
        for found in threads.map(check, range(2)):
            assert found is None if refused is None else found and found.startswith(refused)


def test_only_gpu_tensors_of_the_policy_are_reduced_by_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[tuple[str, object]] = []
    monkeypatch.setattr(torch.distributed, "new_group", lambda backend, **_: backend)
    monkeypatch.setattr(
        torch.distributed, "all_reduce", lambda values, **options: used.append((values.device.type, options))
    )
    ranks = ThreadRanks(2).rank(0)
    assert reduce_on_gpu(ranks, "cpu") is ranks
    on_gpu = reduce_on_gpu(ranks, "cuda:0")
    on_gpu.all_reduce_(torch.ones(1))
    assert used == [("cpu", {"async_op": True})]


def test_rank_without_an_env_is_refused() -> None:
    with pytest.raises(ConfigError, match="--envs 1 is too few for 2 ranks"):
        check_start(Config(envs=1, devices=("cpu:0",)), RankInfo(0, 2, 0, 1), is_new=False)


def test_ranks_of_a_node_cannot_share_a_policy_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_checks, "max_device_counts", lambda: {"cuda": 1, "cpu": 2})
    config = Config(devices=("cpu:0", "cpu:1"), policy_device="cuda:0")
    with pytest.raises(ConfigError, match="--policy-device cuda:0 cannot serve 2 ranks on one machine"):
        check_start(config, RankInfo(0, 2, 0, 2), is_new=False)


# Ranks started by torchrun


def torchrun(cwd: Path, *options: str, program: Sequence[str] = ("-m", "esper")) -> subprocess.Popen[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    return subprocess.Popen(
        [*launcher, *program, "--no-tui", "--devices", "cpu:0", "cpu:1", "--envs", str(ENVS), "--steps", "4", *options],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


TASK_OF_RANKS = """
from pathlib import Path

import torch

import esper


def data(directory):
    with Path("calls.txt").open("a") as file:
        file.write("called\\n")
    {line}
    x = torch.randn(96, 6, generator=torch.Generator().manual_seed(0))
    split = x, x[:, :3].argmax(1)
    return esper.Splits(train=split, validation=split, test=split)


task = esper.Task(
    name="counted", model=lambda: torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)),
    slots={{"hidden": "1"}}, data=data, optimizer=esper.SGD(0.05), seed_optimizer=esper.SGD(0.05),
)
"""


LISTS_THREADS = """
import sys
from pathlib import Path
from esper.cli.main import main
code = main()
print("threads:", *(path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")))
sys.exit(code)
"""


@pytest.mark.slow
def test_torchrun_computes_the_same_as_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although one rank, and then the whole run, are stopped and continue, as if the machine were suspended."""
    (tmp_path / "threads.py").write_text(LISTS_THREADS)
    (tmp_path / "counted.py").write_text(TASK_OF_RANKS.format(line=""))
    small = ("--ppo.hidden", "16", "--ppo.epochs", "2", "--ppo.minibatches", "2")
    options = ("--task", "counted.py", "--rounds", "8", "--checkpoint-every", "1", *small)
    process = torchrun(tmp_path, *options, program=["threads.py"])
    wait_for_steps(process, tmp_path)
    launcher = psutil.Process(process.pid)
    ranks = launcher.children()
    for stopped in (ranks[1:], [launcher, *ranks]):
        for each in stopped:
            each.suspend()
        time.sleep(2)
        for each in stopped:
            each.resume()
    out, errors = process.communicate(timeout=PATIENCE)
    run = only_run(tmp_path)
    assert "Traceback" not in errors
    assert (tmp_path / "calls.txt").read_text() == "called\n"  # the data are loaded once on a machine
    assert out.count("threads: ") == RANKS
    assert "gloo" not in out  # a thread of gloo that is left when Python exits can abort the process
    assert out.count(f"run {run.name}: done") == 1  # one rank speaks
    task = f"{tmp_path / 'counted.py'}:task"
    monkeypatch.chdir(tmp_path)  # the task writes there
    alone = LiveRun.finished(tmp_path / "alone", task=task, envs=ENVS, rounds=8, training={})
    assert_alike(computed(recorded(run)), computed(recorded(alone.run.directory)))


@pytest.fixture
def endless(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a run of two ranks, and wait until it has recorded steps."""
    process = torchrun(tmp_path, "--rounds", "100000", "--checkpoint-every", "0")
    try:
        wait_for_steps(process, tmp_path)
        yield process
    finally:
        end(process)


def wait_for_steps(process: subprocess.Popen[str], cwd: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not any(map(steps_in, cwd.glob("telemetry/*"))):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)


def end(process: subprocess.Popen[str]) -> None:
    """Kill the launcher and its ranks unless they have ended."""
    if process.poll() is None:
        for each in [*psutil.Process(process.pid).children(), process]:
            each.kill()
    process.communicate()


def steps_in(directory: Path) -> bool:
    return any('"EnvStepped"' in path.read_text() for path in directory.glob("events-*.jsonl"))


@pytest.mark.slow
def test_signal_to_torchrun_checkpoints_and_ends_all_ranks(endless: subprocess.Popen[str], tmp_path: Path) -> None:
    endless.send_signal(signal.SIGTERM)
    endless.communicate(timeout=PATIENCE)
    run = only_run(tmp_path)
    assert len(list_checkpoints(run)) == 1
    history = open_history(run)
    assert history.state_at(history.length).status == "stopped"
    assert history.notices == []


@pytest.mark.slow
def test_killed_rank_ends_the_run_with_a_message(endless: subprocess.Popen[str], tmp_path: Path) -> None:
    ranks = {each.environ().get("RANK"): each for each in psutil.Process(endless.pid).children()}
    ranks["0"].kill()
    _, errors = endless.communicate(timeout=PATIENCE)
    assert endless.returncode == 1
    assert "esper-sanctum: rank 1 has lost another of the 2 ranks: it has ended" in errors
    assert not ranks["1"].is_running()
    history = open_history(only_run(tmp_path))
    assert history.state_at(history.length).status == "running"  # only rank 0 could have recorded the end
    assert list_checkpoints(only_run(tmp_path)) == []


RAISES = """
import sys
from esper.cli.main import main
from esper.training.envs.env import Env

train = Env.train_epoch


def broken(env, step):
    if (env.index, step) == (4, 2):  # of rank 1
        raise ValueError("no such number")
    return train(env, step)


Env.train_epoch = broken
sys.exit(main())
"""


@pytest.mark.slow
def test_fault_in_one_rank_gives_a_message_from_each(tmp_path: Path) -> None:
    (tmp_path / "raises.py").write_text(RAISES)
    process = torchrun(tmp_path, "--rounds", "3", program=["raises.py"])
    try:
        _, errors = process.communicate(timeout=PATIENCE)
    finally:
        end(process)
    assert process.returncode == 1
    run = only_run(tmp_path)
    trace = run.relative_to(tmp_path) / "traceback-rank-1.txt"
    place = rf"\({re.escape(str(tmp_path))}/.*\.py, line \d+\)"
    fault = rf"esper-sanctum: env 04 on cpu:1 failed: ValueError: no such number {place} \(traceback in {trace}\); "
    assert re.search(fault, errors), errors
    assert "esper-sanctum: rank 0 has lost another of the 2 ranks: it has ended" in errors
    assert 'raise ValueError("no such number")' in (tmp_path / trace).read_text()
    history = open_history(run)
    assert history.state_at(history.length).status == "failed"


@pytest.mark.slow
def test_data_that_cannot_be_loaded_end_every_rank(tmp_path: Path) -> None:
    (tmp_path / "counted.py").write_text(TASK_OF_RANKS.format(line='raise OSError("no such tape")'))
    process = torchrun(tmp_path, "--rounds", "1", "--task", "counted.py")
    _, errors = process.communicate(timeout=PATIENCE)
    assert errors.count("esper-sanctum: data of task counted: OSError: no such tape") == RANKS
    assert (tmp_path / "calls.txt").read_text() == "called\n"
    assert not (tmp_path / "telemetry").exists()


STUCK_LOSS = """
import dataclasses
import os
import time

from esper.training.lanes import call_watch

call_watch.OVERDUE_S, call_watch.LIMIT_S = 2.0, 8.0
count = 0


def loss(output, y):
    global count
    count += 1
    while count > 200 and os.environ["RANK"] == "1":
        time.sleep(1)
    return torch.nn.functional.cross_entropy(output, y)


task = dataclasses.replace(task, loss=loss)
"""
"""Makes a task of one that never returns from its loss in rank 1, and is called overdue and abandoned sooner."""


@pytest.mark.slow
@pytest.mark.parametrize("stops_all", [True, False], ids=["torchrun", "rank 0"])
def test_call_that_never_returns_in_another_rank_is_named_and_ends_with_a_stop(stops_all: bool, tmp_path: Path) -> None:
    (tmp_path / "stuck.py").write_text(TASK_OF_RANKS.format(line="") + STUCK_LOSS)
    process = torchrun(tmp_path, "--rounds", "1000", "--task", "stuck.py")
    try:
        deadline = time.monotonic() + PATIENCE
        while not any('"CallOverdue"' in path.read_text() for path in tmp_path.glob("telemetry/*/events-*.jsonl")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        found = {each.environ().get("RANK"): each for each in psutil.Process(process.pid).children()}
        start = time.monotonic()
        (process if stops_all else found["0"]).send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE)
    finally:
        end(process)
    assert time.monotonic() - start < 20
    assert re.search(r"esper-sanctum: env 0[34] on cpu:1 has been in loss for \d+ s .* and did not return", errors)
    history = open_history(only_run(tmp_path))
    assert history.state_at(history.length).status == "failed"


HANGS = """
import datetime, time
from esper.common.system import ranks
from esper.common.system.process import RankInfo
ranks.COLLECTIVE_TIMEOUT = datetime.timedelta(seconds=2)
place = RankInfo.from_environment()
joined = ranks.init_ranks(place)
assert joined.all_gather_object(place.rank) == [0, 1]
if place.rank == 1:
    time.sleep(60)
try:
    joined.all_gather_object("anybody?")
except ranks.RankLostError as error:
    print(error)
    raise SystemExit(5)
"""


@pytest.mark.slow
def test_hanging_rank_times_out(tmp_path: Path) -> None:
    (tmp_path / "hangs.py").write_text(HANGS)
    program = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "hangs.py"]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 1
    assert "rank 0 has lost another of the 2 ranks: it has ended, or has not answered for 0:00:02" in done.stdout
