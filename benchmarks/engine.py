"""Throughput, memory and time per phase of the engine: `python benchmarks/engine.py [--envs 16 64] [--task NAME] …`.

Each setting runs in a separate process, so that its memory can be measured. The first round is a warm-up and is not
measured. An env-step is one decision, one epoch of training and one validation of one env. If other programs use the
same cores, "per CPU-s" (env-steps per second of the run's CPU time) times the number of lanes is more reliable than
"env-steps/s" (of wall time). "× plain" is the ratio to the epochs per second of a plain PyTorch loop
(`benchmarks/plain.py`), which is measured immediately before and after; `--no-plain` leaves it out.

On a GPU, "GPU" is the memory in use on all GPUs of the run, by all processes. "per env" is the slope between two
numbers of envs, of the memory of the processes and of the GPU.

`--seconds` limits the time of training of each setting, warm-up included. If the limit ends the first round, its steps
from the third on are measured instead, and the line says so.

With `--memory` the benchmark instead prints the resident memory at the end of each round, and size and duration of the
checkpoints: `python benchmarks/engine.py --memory --envs 64 --rounds 50`. Envs keep removed seeds, so the memory should
be constant once every env has planted every blueprint in every slot.

The engine's performance target refers to `python benchmarks/engine.py --task synthetic --steps 10 --amp bf16`.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec
import psutil

from esper.common.configuration.files import resolve_config
from esper.common.control import RequestKind, RequestQueue
from esper.recordings import events as ev
from esper.recordings.state.state import Keyframe, Record


class Result(msgspec.Struct):
    """Measurements of one setting."""

    envs: int
    env_steps_per_second: float
    """Env-steps per second of wall time."""
    env_steps_per_cpu_second: float | None
    """Env-steps per second of CPU time, summed over all threads and processes; None if the limit ended round 1."""
    busy: dict[str, float]
    """Fraction of the time in which each lane trained or validated, keyed by lane."""
    phase_fractions: dict[str, float]
    """Fraction of the wall time (0 to 1) per phase."""
    rss_mib: list[float]
    """Resident memory of all processes at the end of each round, including the warm-up round, MiB."""
    checkpoints: list[tuple[int, float]]
    """Size in bytes and duration in seconds of each checkpoint."""
    gpu_mib: float | None
    """Maximum memory in use on the GPUs of the run, MiB; None without a GPU."""
    steps: int
    """Number of measured steps."""
    is_cut: bool
    """True if the limit ended the run before its last round."""


class Setting(msgspec.Struct):
    """Options of the measured run."""

    envs: int
    rounds: int
    """Number of measured rounds; one warm-up round precedes them."""
    task: str
    steps: int
    policy: str
    plan: str
    amp: str
    devices: tuple[str, ...]
    seconds: float
    """Limit of the time of training; 0: none."""


def measure(setting: Setting) -> Result:
    """Train a run in this process and measure it."""
    from esper.training.engine.run_kind import RunKind
    from esper.training.engine.setup import set_up_run  # imports torch, which the parent process does not need
    from esper.training.engine.start_point import RunOptions, StartPoint

    records: SimpleQueue[Record] = SimpleQueue()
    control = RequestQueue()
    with tempfile.TemporaryDirectory() as directory:
        options = msgspec.structs.asdict(setting) | {"rounds": setting.rounds + 1, "telemetry_dir": directory}
        del options["seconds"]
        run = set_up_run(StartPoint(resolve_config(None, options)), control, records, RunOptions(), RunKind())
        thread = threading.Thread(target=run.train)
        start = time.monotonic()
        thread.start()
        processes = [psutil.Process(pid) for pid in {pid for lane in run.pool.lanes for pid in lane.pids}]
        timed, sampled = list[ev.PhaseTimed](), list[ev.DeviceSampled]()
        cpu_start, cpu, used = 0.0, 0.0, dict[str, int]()
        rss, checkpoints = list[float](), list[tuple[int, float]]()
        while thread.is_alive() or not records.empty():
            record = records.get()
            if isinstance(record, ev.RoundStarted) and record.round == 2:
                cpu_start = cpu_seconds(processes)
            if isinstance(record, ev.DeviceSampled) and not control.stop_requested:
                sampled.append(record)
                if record.launching is not None and record.used is not None:
                    used[record.device] = max(record.used, used.get(record.device, 0))
            if isinstance(record, ev.PhaseTimed) and not control.stop_requested:
                timed.append(record)
                if 0 < setting.seconds < time.monotonic() - start:
                    control.put(RequestKind.ABANDON, "benchmark")
                if record.step == setting.steps or control.stop_requested:
                    rss.append(sum(process.memory_info().rss for process in processes) / (1 << 20))
                    cpu = cpu_seconds(processes) - cpu_start
            if isinstance(record, ev.CheckpointSaved) and record.seconds is not None:
                checkpoints.append((record.bytes, record.seconds))
            if isinstance(record, ev.RunEnded | Keyframe):
                break
        thread.join()
    measured = [step for step in timed if step.round > 1]
    env_steps_per_cpu_second = setting.envs * len(measured) / cpu if measured else None
    measured = measured or timed[2:] or timed
    wall = sum(step.wall for step in measured)
    busy: dict[str, float] = {}
    for index, sample in enumerate(sampled):
        step = timed[index * len(timed) // len(sampled)]  # each step ends with one sample per lane
        if step in measured and sample.busy is not None:
            busy[sample.device] = busy.get(sample.device, 0.0) + sample.busy * step.wall / wall
    seconds_by_phase: dict[str, float] = {}
    for step in measured:
        for name, seconds in step.phases.items():
            seconds_by_phase[name] = seconds_by_phase.get(name, 0.0) + seconds
    return Result(
        envs=setting.envs,
        env_steps_per_second=setting.envs * len(measured) / wall,
        env_steps_per_cpu_second=env_steps_per_cpu_second,
        busy=busy,
        phase_fractions={name: seconds / wall for name, seconds in seconds_by_phase.items()},
        rss_mib=rss,
        checkpoints=checkpoints,
        gpu_mib=sum(used.values()) / (1 << 20) if used else None,
        steps=len(measured),
        is_cut=len(timed) < setting.steps * (setting.rounds + 1),
    )


def cpu_seconds(processes: Sequence[psutil.Process]) -> float:
    """Return user and system time of all processes, seconds."""
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def plain_epochs_per_second(task: str) -> float:
    """Measure the plain PyTorch loop in a separate process."""
    command = [sys.executable, str(Path(__file__).with_name("plain.py")), "--task", task]
    return float(subprocess.run(command, check=True, capture_output=True).stdout)


def print_memory(result: Result) -> None:
    """Print resident memory by round, and size and duration of the checkpoints."""
    rss = result.rss_mib
    print(f"{result.envs} envs: resident memory at the end of each round, MiB (round 1 is the warm-up)")
    for start in range(0, len(rss), 10):
        print(f"  from round {start + 1:3}: " + " ".join(f"{value:7.1f}" for value in rss[start : start + 10]))
    if len(rss) > 1:
        print(f"  change from round 2 to round {len(rss)}: {rss[-1] - rss[1]:+.1f} MiB")
    sizes, seconds = zip(*result.checkpoints, strict=True)
    print(
        f"  {len(sizes)} checkpoints: maximum size {max(sizes) / (1 << 20):.1f} MiB, "
        f"median duration {statistics.median(seconds):.3f} s, maximum duration {max(seconds):.3f} s",
        flush=True,
    )


def main() -> None:
    """Measure every number of envs in a separate process, and print one line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--task", default="digits_impaired")
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--policy", default="ppo")
    parser.add_argument("--plan", default="", help="plan of --policy plan")
    parser.add_argument("--amp", default="auto")
    parser.add_argument("--devices", nargs="+", default=["auto"])
    parser.add_argument("--seconds", type=float, default=0.0, help="limit of the training of a setting; 0: none")
    parser.add_argument("--no-plain", action="store_true", help="do not measure the plain loop")
    parser.add_argument("--memory", action="store_true", help="print memory by round, and the cost of checkpoints")
    parser.add_argument("--setting", help=argparse.SUPPRESS)  # JSON of a Setting: measure it in this process
    options = vars(parser.parse_args())
    setting, envs, memory = options.pop("setting"), options.pop("envs"), options.pop("memory")
    with_plain = not options.pop("no_plain") and not memory
    if setting:
        result = measure(msgspec.json.decode(setting, type=Setting))
        sys.stdout.buffer.write(msgspec.json.encode(result))
        return
    print(", ".join(f"{name} {value}" for name, value in options.items()), "(after one warm-up round)")
    if not memory:
        print(f"{'envs':>5} {'env-steps/s':>12} {'× plain':>8} {'per CPU-s':>10} {'RSS':>10} {'per env':>9}", end="")
        print(f" {'GPU':>10} {'per env':>9}  % of wall time: busy lanes | by phase", flush=True)
    plain_rates = [plain_epochs_per_second(options["task"])] if with_plain else []
    previous: Result | None = None
    for count in envs:
        result = measure_apart({"envs": count, **options})
        if memory:
            print_memory(result)
            continue
        if with_plain:
            plain_rates.append(plain_epochs_per_second(options["task"]))
        print_result(result, previous, statistics.fmean(plain_rates[-2:]) if with_plain else None)
        previous = result


def measure_apart(setting: dict[str, Any]) -> Result:
    """Measure a setting in a process of its own."""
    command = [sys.executable, __file__, "--setting", msgspec.json.encode(setting).decode()]
    finished = subprocess.run(command, check=False, stdout=subprocess.PIPE)
    if finished.returncode:
        sys.exit(f"the run of {setting['envs']} envs failed with exit code {finished.returncode}; its error is above")
    return msgspec.json.decode(finished.stdout, type=Result)


def print_result(result: Result, previous: Result | None, plain: float | None) -> None:
    """Print the line of a setting.

    Args:
        previous: Result with another number of envs; None for the first setting.
        plain: Epochs per second of the plain loop; None if it was not measured.
    """

    def per_env(total: float | None, before: float | None) -> str:
        # The memory of an env is the slope between two numbers of envs: the rest belongs to the process.
        if total is None or before is None or previous is None or result.envs == previous.envs:
            return ""
        return f"{(total - before) / (result.envs - previous.envs):5.2f} MiB"

    rss, gpu = max(result.rss_mib), result.gpu_mib
    memory = f"{rss:6.0f} MiB {per_env(rss, max(previous.rss_mib) if previous else None):>9}"
    on_gpu = f"{'' if gpu is None else f'{gpu:6.0f} MiB':>10} {per_env(gpu, previous.gpu_mib if previous else None):>9}"
    by_size = sorted(result.phase_fractions.items(), key=lambda item: -item[1])
    phases = "  ".join(f"{name} {fraction:.1%}" for name, fraction in by_size)
    cpu = result.env_steps_per_cpu_second
    busy = " ".join(f"{100 * fraction:.1f}" for fraction in result.busy.values())
    print(
        f"{result.envs:5} {result.env_steps_per_second:12.1f} "
        f"{'' if plain is None else f'{result.env_steps_per_second / plain:.2f}':>8} "
        f"{'' if cpu is None else f'{cpu:.1f}':>10} {memory} {on_gpu}  {busy} | {phases}"
        + (f"  (cut by the limit: {result.steps} steps measured)" if result.is_cut else ""),
        flush=True,
    )


if __name__ == "__main__":
    main()
