"""Throughput, memory and the time of each phase: `python benchmarks/engine.py [--envs 16 64] [--task NAME] …`.

Each setting runs in a separate process, so that its memory can be measured. The first round is a warm-up and does not
count. An env-step is one decision, one epoch of training and one validation of one env. On a machine with other load,
use env-steps per second of CPU time, times the lanes, instead of wall time. "× plain" is the ratio to the epochs of a
plain PyTorch loop (`benchmarks/plain.py`), measured directly before and after.

With `--memory`, it prints the resident memory at the end of each round, which must be constant from the second round
on, and the cost of checkpoints: `python benchmarks/engine.py --memory --envs 64 --rounds 50`.

The throughput target refers to: `python benchmarks/engine.py --task synthetic --steps 10 --amp bf16`.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue

import msgspec
import psutil

from esper.config_files import resolve_config
from esper.control import RequestQueue
from esper.telemetry import events as ev
from esper.telemetry.state import Keyframe, Record


class Result(msgspec.Struct):
    envs: int
    env_steps_per_second: float
    env_steps_per_core_second: float
    """CPU seconds of all threads and processes."""
    phases: dict[str, float]
    rss_mib: list[float]
    """Resident bytes of all processes at the end of each round, including the warm-up round."""
    checkpoints: list[tuple[int, float]]
    """Bytes and seconds of each checkpoint."""


class Setting(msgspec.Struct):
    """Measure a run of `rounds` rounds after a warm-up round."""

    envs: int
    rounds: int
    task: str
    steps: int
    policy: str
    amp: str
    devices: tuple[str, ...]


def measure(setting: Setting) -> Result:
    from esper.engine.run import Run

    records: SimpleQueue[Record] = SimpleQueue()
    with tempfile.TemporaryDirectory() as directory:
        options = msgspec.structs.asdict(setting) | {"rounds": setting.rounds + 1, "telemetry_dir": directory}
        run = Run(resolve_config(None, options), RequestQueue(), records, None)
        thread = threading.Thread(target=run.train)
        thread.start()
        processes = [psutil.Process(lane) for lane in {lane.worker_pid for lane in run.pool.lanes}]
        wall, steps, phases, began, burnt = 0.0, 0, dict[str, float](), 0.0, 0.0
        rss, checkpoints = list[float](), list[tuple[int, float]]()
        while thread.is_alive() or not records.empty():
            record = records.get()
            if isinstance(record, ev.RoundStarted) and record.round == 2:
                began = cpu_seconds(processes)
            if isinstance(record, ev.PhaseTimed) and record.round > 1:
                wall, steps = wall + record.wall, steps + 1
                for name, seconds in record.phases.items():
                    phases[name] = phases.get(name, 0.0) + seconds
            if isinstance(record, ev.PhaseTimed) and record.step == setting.steps:
                rss.append(sum(process.memory_info().rss for process in processes) / (1 << 20))
                burnt = cpu_seconds(processes) - began
            if isinstance(record, ev.CheckpointSaved) and record.seconds is not None:
                checkpoints.append((record.bytes, record.seconds))
            if isinstance(record, ev.RunEnded | Keyframe):
                break
        thread.join()
    done = setting.envs * steps
    shares = {name: seconds / wall for name, seconds in phases.items()}
    return Result(setting.envs, done / wall, done / burnt, shares, rss, checkpoints)


def cpu_seconds(processes: Sequence[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def plain_epochs_per_second(task: str) -> float:
    command = [sys.executable, str(Path(__file__).with_name("plain.py")), "--task", task]
    return float(subprocess.run(command, check=True, capture_output=True).stdout)


def print_memory(result: Result) -> None:
    rss = result.rss_mib
    print(f"{result.envs} envs: resident MiB at the end of each round, including the warm-up round")
    for start in range(0, len(rss), 10):
        print(f"  from {start + 1:3}: " + " ".join(f"{value:7.1f}" for value in rss[start : start + 10]))
    if len(rss) > 1:
        print(f"  growth from the end of round 2 to the end of round {len(rss)}: {rss[-1] - rss[1]:+.1f} MiB")
    sizes, seconds = zip(*result.checkpoints, strict=True)
    print(
        f"  {len(sizes)} checkpoints: {max(sizes) / (1 << 20):.1f} MiB at most, "
        f"{statistics.median(seconds):.3f} s in the median, {max(seconds):.3f} s at most",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--task", default="digits_impaired")
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--policy", default="ppo")
    parser.add_argument("--amp", default="auto")
    parser.add_argument("--devices", nargs="+", default=["auto"])
    parser.add_argument("--memory", action="store_true", help="print memory per round and the cost of checkpoints")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = vars(parser.parse_args())
    one, envs, memory = options.pop("one"), options.pop("envs"), options.pop("memory")
    if one:
        result = measure(msgspec.json.decode(one, type=Setting))
        sys.stdout.buffer.write(msgspec.json.encode(result))
        return
    print(", ".join(f"{name} {value}" for name, value in options.items()), "(after one warm-up round)")
    plain: list[float] = []
    if not memory:
        heads = f"{'envs':>5} {'env-steps/s':>12} {'× plain':>8} {'per CPU-s':>10} {'RSS':>10} {'per env':>9}"
        print(f"{heads}  fraction of wall time")
        plain.append(plain_epochs_per_second(options["task"]))
    before: Result | None = None
    for count in envs:
        setting = msgspec.json.encode({"envs": count, **options}).decode()
        command = [sys.executable, __file__, "--one", setting]
        result = msgspec.json.decode(subprocess.run(command, check=True, capture_output=True).stdout, type=Result)
        if memory:
            print_memory(result)
            continue
        shares = "  ".join(f"{name} {share:.1%}" for name, share in sorted(result.phases.items(), key=lambda x: -x[1]))
        # The slope is the memory per env; the intercept is the process.
        slope = (max(result.rss_mib) - max(before.rss_mib)) / (count - before.envs) if before else None
        each = "" if slope is None else f"{slope:5.2f} MiB"
        plain.append(plain_epochs_per_second(options["task"]))
        ratio = result.env_steps_per_second / statistics.fmean(plain[-2:])
        print(
            f"{count:5} {result.env_steps_per_second:12.1f} {ratio:8.2f} {result.env_steps_per_core_second:10.1f} "
            f"{max(result.rss_mib):6.0f} MiB {each:>9}  {shares}",
            flush=True,
        )
        before = result


if __name__ == "__main__":
    main()
