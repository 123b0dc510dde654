"""Throughput, memory and the share of each phase: `python benchmarks/engine.py [--envs 16 64] [--task NAME]`.

Each setting runs in a process of its own, so that its memory is its own. The first round warms up and is not counted.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import threading
from queue import SimpleQueue

import msgspec

from esper.config import resolve
from esper.control import Control
from esper.telemetry import events as ev
from esper.telemetry.state import Keyframe, Record


class Result(msgspec.Struct):
    envs: int
    env_steps_per_second: float
    peak_rss_mib: float
    phases: dict[str, float]


def measure(envs: int, rounds: int, task: str, devices: list[str]) -> Result:
    from esper.engine.run import Run

    records: SimpleQueue[Record] = SimpleQueue()
    with tempfile.TemporaryDirectory() as directory:
        options = {
            "envs": envs,
            "rounds": rounds + 1,
            "task": task,
            "devices": tuple(devices),
            "telemetry_dir": directory,
        }
        run = Run(resolve(None, options), Control(), records, None)
        thread = threading.Thread(target=run.train)
        thread.start()
        wall, steps, phases = 0.0, 0, dict[str, float]()
        while thread.is_alive() or not records.empty():
            record = records.get()
            if isinstance(record, ev.PhaseTimed) and record.round > 1:
                wall, steps = wall + record.wall, steps + 1
                for name, seconds in record.phases.items():
                    phases[name] = phases.get(name, 0.0) + seconds
            if isinstance(record, ev.RunEnded | Keyframe):
                break
        thread.join()
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Result(envs, envs * steps / wall, rss, {name: seconds / wall for name, seconds in phases.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--envs", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--task", default="digits_impaired")
    parser.add_argument("--devices", nargs="+", default=["auto"])
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        result = measure(options.one, options.rounds, options.task, options.devices)
        sys.stdout.buffer.write(msgspec.json.encode(result))
        return
    print(f"{options.task}, {options.rounds} rounds after one to warm up, devices {' '.join(options.devices)}")
    print(f"{'envs':>5} {'env-steps/s':>12} {'peak RSS':>10}  share of the wall time")
    for envs in options.envs:
        command = [
            sys.executable,
            __file__,
            "--one",
            str(envs),
            "--rounds",
            str(options.rounds),
            "--task",
            options.task,
        ]
        output = subprocess.run([*command, "--devices", *options.devices], check=True, capture_output=True).stdout
        result = msgspec.json.decode(output, type=Result)
        shares = "  ".join(f"{name} {share:.1%}" for name, share in sorted(result.phases.items(), key=lambda x: -x[1]))
        print(
            f"{result.envs:5} {result.env_steps_per_second:12.1f} {result.peak_rss_mib:6.0f} MiB  {shares}", flush=True
        )


if __name__ == "__main__":
    main()
