"""Exactness and cost of simulations: `python -m benchmarks.what_if [exact] [cost]`.

    exact  episodes of ten kinds of run that are reproduced exactly (all)
    cost   CPU and wall time of leaving out every decision of a 40-step episode, as a multiple of one unchanged episode
           on one lane (≤ 12), on one lane and on two

Targets are in parentheses. Compared programs run in turns. `benchmarks.live` measures a live run beside a simulation.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from esper.common.decisions import WAIT
from esper.networks.tasks.loading import load_task
from esper.networks.tasks.prepare import prepare_task
from esper.recordings.effects.change import Change, without_decision
from esper.recordings.effects.episode import RecordedEpisode, read_round
from esper.recordings.history.history import open_history
from esper.studies.simulation.simulator import SimulationJob, Simulator

ESPER = [sys.executable, "-m", "esper"]
RANKS = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "esper"]
SMALL_GPT = str(Path(__file__).resolve().parents[1] / "examples" / "small_gpt.py")
SIZES = "--envs 5 --rounds 4 --steps 20 --training.samples-per-epoch 512"
KINDS = {
    "static": f"{SIZES} --policy static",
    "heuristic": f"{SIZES} --policy heuristic",
    "PPO": f"{SIZES} --policy ppo",
    "random, bf16": f"{SIZES} --policy random --amp bf16",
    "family": f"{SIZES} --policy random --task digits_family+recall",
    "own network": f"--envs 5 --rounds 4 --steps 6 --training.samples-per-epoch 128 --policy random --task {SMALL_GPT}",
    "fp16": f"{SIZES} --policy random --amp fp16",
    "breakdowns, fp16": f"{SIZES} --policy full --amp fp16 --training.host-learning-rate 60 --training.host-clip 1000",
    "resumed": f"{SIZES} --policy random --amp fp16",
    "two ranks": f"{SIZES} --policy ppo",
}
"""Options of the runs, keyed by kind. The run `resumed` is stopped in its second round."""
DECISIONS = 20
"""Wanted number of decisions of the episode whose cost is measured."""


def record(options: str, directory: Path, kind: str = "") -> Path:
    """Record a run, and return its directory."""
    arguments = ["--no-tui", *shlex.split(options), "--checkpoint-every", "1", "--telemetry-dir", str(directory)]
    arguments += ["--devices", "cpu:0", "cpu:1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    start = RANKS if kind == "two ranks" else ESPER
    if kind == "resumed":
        with subprocess.Popen([*start, *arguments], stdout=subprocess.DEVNULL) as process:
            while not (directory.exists() and any(len(open_history(run).rounds) > 1 for run in directory.iterdir())):
                time.sleep(0.1)
            process.send_signal(signal.SIGTERM)
        arguments = ["--no-tui", "--resume", str(next(directory.iterdir()))]
    subprocess.run([*start, *arguments], check=True, capture_output=True, env=environment)
    return next(directory.iterdir())


def episodes_of(run: Path) -> list[RecordedEpisode]:
    """Return all episodes of a run."""
    history = open_history(run)
    numbers = range(1, len(history.rounds) + 1)
    return [episode for number in numbers for episode in read_round(history, number).values()]


def open_simulator(episodes: Sequence[RecordedEpisode], lanes: Sequence[str], num_plays: int) -> Simulator:
    """Return a simulator for episodes of one run."""
    config = episodes[0].config
    task = load_task(SMALL_GPT) if config.task == "small_gpt" else None
    return Simulator(config, prepare_task(config, task), lanes, num_plays, Path())


def measure_exactness(lanes: Sequence[str], count: int) -> None:
    """Count the exactly reproduced episodes of each kind of run, and print what differs."""
    total = exact = 0
    for kind, options in KINDS.items():
        with tempfile.TemporaryDirectory() as name:
            found = episodes_of(record(options, Path(name) / "runs", kind))[: -(-count // len(KINDS))]
            simulator = open_simulator(found, lanes, len(found))
            results = list(simulator.simulate([SimulationJob(episode=episode) for episode in found], lambda _: None))
            simulator.close()
        broken = sum(result.trajectory.broke_down for result in results)
        of_kind = sum(result.is_exact for result in results)
        total, exact = total + len(results), exact + of_kind
        print(f"{kind:18}{of_kind:4} of {len(results)} exact, {broken} with a breakdown", flush=True)
        for text in sorted({str(result.reproduction) for result in results if not result.is_exact}):
            print(f"    {text}")
    print(f"exact: {exact} of {total}", flush=True)


def measure_cost(turns: int) -> None:
    """Measure the simulation without each decision of an episode, and print medians over the turns."""
    with tempfile.TemporaryDirectory() as name:
        found = episodes_of(record("--envs 8 --rounds 2 --steps 40 --policy random", Path(name)))

    def decisions(episode: RecordedEpisode) -> list[Change]:
        return [without_decision(episode, step.step) for step in episode.steps if step.op != WAIT]

    episode = min(found, key=lambda candidate: abs(len(decisions(candidate)) - DECISIONS))
    changes = decisions(episode)
    jobs = {"unchanged": SimulationJob(episode=episode), "all": SimulationJob(episode=episode, changes=changes)}
    simulators = {
        lanes: open_simulator([episode], lanes, 1 + len(changes)) for lanes in (("cpu:0",), ("cpu:0", "cpu:1"))
    }
    cases = (("unchanged", ("cpu:0",)), ("all", ("cpu:0",)), ("all", ("cpu:0", "cpu:1")))
    times: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for turn in range(turns + 1):  # the first one warms up
        for job, lanes in cases:
            wall, cpu = time.perf_counter(), cpu_seconds()
            list(simulators[lanes].simulate([jobs[job]], lambda _: None))
            if turn:
                measured = time.perf_counter() - wall, cpu_seconds() - cpu
                times.setdefault((job, len(lanes)), []).append(measured)
    for simulator in simulators.values():
        simulator.close()
    one = times["unchanged", 1]
    print(f"cost: {len(changes)} decisions of {len(episode.steps)} steps, medians of {turns} turns")
    for (job, lanes), measured in times.items():
        wall, cpu = (statistics.median(column) for column in zip(*measured, strict=True))
        ratios = [[a / b for a, b in zip(row, base, strict=True)] for row, base in zip(measured, one, strict=True)]
        by_wall, by_cpu = (statistics.median(column) for column in zip(*ratios, strict=True))
        target = " (≤ 12)" if job == "all" and lanes == 1 else ""
        print(
            f"    {job:10}{lanes} lanes: wall {wall:6.2f} s, {by_wall:5.1f} x{target}; "
            f"CPU {cpu:6.2f} s, {by_cpu:5.1f} x{target}",
            flush=True,
        )


def cpu_seconds() -> float:
    """Return the CPU time of this process and its workers."""
    process = psutil.Process()
    return sum(sum(each.cpu_times()[:2]) for each in (process, *process.children(recursive=True)))


def main() -> None:
    """Run the benchmarks that the command line names, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmarks", nargs="*", help="exact, cost (default: both)")
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--lanes", nargs="+", default=["cpu:0", "cpu:1"])
    options = parser.parse_args()
    selected = options.benchmarks or ["exact", "cost"]
    print(f"load average: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
    if "exact" in selected:
        measure_exactness(options.lanes, options.episodes)
    if "cost" in selected:
        measure_cost(options.turns)
    print(f"load average: {os.getloadavg()[0]:.1f}", flush=True)


if __name__ == "__main__":
    main()
