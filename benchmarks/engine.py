"""Throughput, memory and time per phase of the engine: `python benchmarks/engine.py [--envs 16 64] [--task NAME] …`.

Each setting runs in a separate process, so that its memory can be measured. The first round is a warm-up and is not
measured. An env-step is one decision, one epoch of training and one validation of one env. If other programs use the
same cores, "per CPU-s" (env-steps per second of the run's CPU time) times the number of lanes is more reliable than
"env-steps/s" (of wall time). "× plain" is the ratio to the epochs per second of a plain PyTorch loop
(`benchmarks/plain.py`), which is measured immediately before and after.

With `--memory` the benchmark instead prints the resident memory at the end of each round, which should be constant from
the second round on, and size and duration of the checkpoints:
`python benchmarks/engine.py --memory --envs 64 --rounds 50`.

The engine's performance target refers to `python benchmarks/engine.py --task synthetic --steps 10 --amp bf16`.
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
    """Measurements of one setting."""

    envs: int
    env_steps_per_second: float
    """Env-steps per second of wall time."""
    env_steps_per_cpu_second: float
    """Env-steps per second of CPU time, summed over all threads and processes."""
    phase_fractions: dict[str, float]
    """Fraction of the wall time (0 to 1) per phase."""
    rss_mib: list[float]
    """Resident memory of all processes at the end of each round, including the warm-up round, MiB."""
    checkpoints: list[tuple[int, float]]
    """Size in bytes and duration in seconds of each checkpoint."""


class Setting(msgspec.Struct):
    """Options of the measured run."""

    envs: int
    rounds: int
    """Number of measured rounds; one warm-up round precedes them."""
    task: str
    steps: int
    policy: str
    amp: str
    devices: tuple[str, ...]


def measure(setting: Setting) -> Result:
    """Train a run in this process and measure it."""
    from esper.engine.run import Run  # imports torch, which the parent process does not need

    records: SimpleQueue[Record] = SimpleQueue()
    with tempfile.TemporaryDirectory() as directory:
        options = msgspec.structs.asdict(setting) | {"rounds": setting.rounds + 1, "telemetry_dir": directory}
        run = Run(resolve_config(None, options), RequestQueue(), records, None)
        thread = threading.Thread(target=run.train)
        thread.start()
        processes = [psutil.Process(pid) for pid in {pid for lane in run.pool.lanes for pid in lane.pids}]
        wall, steps, seconds_by_phase, cpu_start, cpu = 0.0, 0, dict[str, float](), 0.0, 0.0
        rss, checkpoints = list[float](), list[tuple[int, float]]()
        while thread.is_alive() or not records.empty():
            record = records.get()
            if isinstance(record, ev.RoundStarted) and record.round == 2:
                cpu_start = cpu_seconds(processes)
            if isinstance(record, ev.PhaseTimed) and record.round > 1:
                wall, steps = wall + record.wall, steps + 1
                for name, seconds in record.phases.items():
                    seconds_by_phase[name] = seconds_by_phase.get(name, 0.0) + seconds
            if isinstance(record, ev.PhaseTimed) and record.step == setting.steps:
                rss.append(sum(process.memory_info().rss for process in processes) / (1 << 20))
                cpu = cpu_seconds(processes) - cpu_start
            if isinstance(record, ev.CheckpointSaved) and record.seconds is not None:
                checkpoints.append((record.bytes, record.seconds))
            if isinstance(record, ev.RunEnded | Keyframe):
                break
        thread.join()
    env_steps = setting.envs * steps
    fractions = {name: seconds / wall for name, seconds in seconds_by_phase.items()}
    return Result(setting.envs, env_steps / wall, env_steps / cpu, fractions, rss, checkpoints)


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
    parser.add_argument("--amp", default="auto")
    parser.add_argument("--devices", nargs="+", default=["auto"])
    parser.add_argument("--memory", action="store_true", help="print memory by round, and the cost of checkpoints")
    parser.add_argument("--setting", help=argparse.SUPPRESS)  # JSON of a Setting: measure it in this process
    options = vars(parser.parse_args())
    setting, envs, memory = options.pop("setting"), options.pop("envs"), options.pop("memory")
    if setting:
        result = measure(msgspec.json.decode(setting, type=Setting))
        sys.stdout.buffer.write(msgspec.json.encode(result))
        return
    print(", ".join(f"{name} {value}" for name, value in options.items()), "(after one warm-up round)")
    plain_rates: list[float] = []
    if not memory:
        header = f"{'envs':>5} {'env-steps/s':>12} {'× plain':>8} {'per CPU-s':>10} {'RSS':>10} {'per env':>9}"
        print(f"{header}  % of wall time by phase")
        plain_rates.append(plain_epochs_per_second(options["task"]))
    previous: Result | None = None
    for count in envs:
        command = [sys.executable, __file__, "--setting", msgspec.json.encode({"envs": count, **options}).decode()]
        result = msgspec.json.decode(subprocess.run(command, check=True, capture_output=True).stdout, type=Result)
        if memory:
            print_memory(result)
            continue
        by_size = sorted(result.phase_fractions.items(), key=lambda item: -item[1])
        phases = "  ".join(f"{name} {fraction:.1%}" for name, fraction in by_size)
        # The memory of an env is the slope between two numbers of envs: the rest belongs to the process.
        slope = (max(result.rss_mib) - max(previous.rss_mib)) / (count - previous.envs) if previous else None
        per_env = "" if slope is None else f"{slope:5.2f} MiB"
        plain_rates.append(plain_epochs_per_second(options["task"]))
        ratio = result.env_steps_per_second / statistics.fmean(plain_rates[-2:])
        print(
            f"{count:5} {result.env_steps_per_second:12.1f} {ratio:8.2f} {result.env_steps_per_cpu_second:10.1f} "
            f"{max(result.rss_mib):6.0f} MiB {per_env:>9}  {phases}",
            flush=True,
        )
        previous = result


if __name__ == "__main__":
    main()
