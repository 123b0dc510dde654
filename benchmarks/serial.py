"""Cost of the serial part of a step: `python benchmarks/serial.py [--envs 16 64 256] [--turns 3]`.

The serial part is everything in a step that is neither training nor validation: the policy's decisions, the ops, the
rewards, the gates, the events and their recording, and the policy's update after a round. Whole runs are made of one
CPU lane, with PPO and the recorder, by the product's own loop. Only one function is replaced:

    Env.run_epoch    returns recorded results at once. The first epoch of every env is trained and validated, and its
                     losses, scores and gradient norm of the host are returned from then on. The values of seeds
                     (gradient norms, dependences, Shapley values) come from one real epoch for each combination of
                     trained and measured slots, which all envs share. So weights do not change, and no env breaks down.

Counted is CPU time of the thread that does the work, because other programs may use the same cores; for phases that
contain others, without them. Not counted, because they belong to another part of a run: the hosts and first
validations of a round (`EnvPool.reset`), the epochs, recorded or replayed, and the checkpoint at the end of each turn.
"recorder" is the thread that writes the events beside the engine. "wall" is the wall time of the whole loop without the
uncounted parts. The cost of the clock is subtracted, except from "wall".

A turn is one round of each number of envs; the turns alternate, after one warm-up round. The table shows medians over
the turns in ms per env-step. The digest of each column is that of all events of its envs, in any order within a step:
two versions of the product with equal results print equal digests on the same machine, with the same options.

`--envs 16 64 256 1024` takes several minutes. A change that renames one of the functions of `PHASES` renames it here.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import os
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec
import torch
from torch import Tensor

from esper.common.configuration.config import Config
from esper.common.configuration.files import resolve_config
from esper.common.control import RequestQueue
from esper.common.system.process import NamedThread, freeze_loaded_objects
from esper.recordings import events as ev
from esper.recordings.state.state import Record
from esper.training.engine.run_kind import RunKind
from esper.training.engine.setup import set_up_run
from esper.training.engine.start_point import RunOptions, StartPoint
from esper.training.envs.env import Env
from esper.training.envs.stopwatch import PhaseTimer

PHASES = {
    "observe": ["esper.training.ppo.agent:write_observation"],
    "masks": ["esper.training.ppo.agent:write_masks"],
    "decide": ["esper.training.ppo.agent:PPOAgent.act", "esper.training.ppo.agent:PPOAgent.begin_round"],
    "apply ops": ["esper.training.envs.env:Env.apply_action"],
    "lane": ["esper.training.lanes.pool:EnvPool.start_step", "esper.training.lanes.runner:EnvRunner.run"],
    "unpack results": ["esper.training.envs.env:Env.unpack_results"],
    "reward": ["esper.training.engine.episode:Episode.record_step", "esper.training.ppo.agent:PPOAgent.record_rewards"],
    "last good state": ["esper.training.envs.governor:LastGoodState.save"],
    "gates and timers": [
        "esper.training.engine.episode:Episode.changed_gates",
        "esper.training.engine.trainer:tick_slots",
    ],
    "build events": [
        f"esper.training.engine.reporter:{name}"
        for name in ("env_stepped", "seed_moved", "gate_changed", "episode_ended")
    ],
    "find anomalies": ["esper.recordings.health.detector:AnomalyDetector.check"],
    "emit": ["esper.recordings.state.hub:EventHub.emit", "esper.recordings.state.hub:EventHub.flush"],
    "sample devices": [
        "esper.training.engine.memory_accountant:MemoryAccountant.bytes_by_lane",
        "esper.training.engine.reporter:device_sampled",
        "esper.training.engine.trainer:read_device_stats",
    ],
    "update": ["esper.training.ppo.agent:PPOAgent.learn"],
    "round start": ["esper.training.engine.run_control:RunController.stash_round_start"],
}
"""Functions of each phase. The rest of the loop is "rest"."""
UNCOUNTED = [
    "esper.training.lanes.pool:EnvPool.reset",
    "esper.training.envs.env:Env.reset",
    "esper.training.lanes.pool:_validate_seeded",
    "esper.training.engine.run_control:RunController.checkpoint_if_due",
]
"""Functions that belong to another part of a run."""
REST, RECORDER, WALL = "rest", "recorder", "wall"
COMPARED = (ev.EnvStepped, ev.SeedMoved, ev.GateRefused, ev.GateOpened, ev.EpisodeEnded, ev.PolicyUpdated)
"""Events that contain only results, in the digest."""


class PhaseClock:
    """CPU time per phase, exclusive of the phases that it contains, each in the thread that runs it."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str | None, float] = defaultdict(float)
        """CPU time by phase; that under None is not counted, with everything inside."""
        self.uncounted_wall = 0.0
        """Wall time of the uncounted parts."""
        self._thread = threading.local()
        self._cost_inside = self._cost_outside = 0.0
        """Seconds that measuring a call adds to its phase, and to the phase around it."""
        self._calibrate()

    def _calibrate(self, calls: int = 20_000) -> None:
        """Measure what measuring costs. It is subtracted from then on."""
        empty = self._measured("inside", lambda: None)
        with self.measure("outside"):
            for _ in range(calls):
                empty()
        self._cost_inside, self._cost_outside = (self.seconds[phase] / calls for phase in ("inside", "outside"))

    @contextmanager
    def measure(self, phase: str | None) -> Iterator[None]:
        """Add the block to a phase; None: count neither the block nor the blocks inside it."""
        self._enter(phase)
        try:
            yield
        finally:
            self._leave()

    def _enter(self, phase: str | None) -> None:
        """Add the time since the last change of this thread to the phase in progress, and start another phase."""
        thread = self._thread
        stack: list[str | None] = thread.__dict__.setdefault("stack", [])
        if stack:
            outer = stack[-1]
            phase = phase if outer is not None else None
            self.seconds[outer] += time.thread_time() - thread.since - self._cost_outside
        if phase is None:
            thread.__dict__.setdefault("walls", []).append(time.perf_counter())
        stack.append(phase)
        thread.since = time.thread_time()

    def _leave(self) -> None:
        """End the phase in progress, and continue the one around it."""
        thread = self._thread
        now = time.thread_time()
        phase = thread.stack.pop()
        self.seconds[phase] += now - thread.since - self._cost_inside
        if phase is None:
            start = thread.walls.pop()
            if not thread.walls:
                self.uncounted_wall += time.perf_counter() - start
        thread.since = time.thread_time()

    def wrap(self, phase: str | None, place: str) -> None:
        """Replace a function, given as `module:name` or `module:Class.name`, by one that is measured."""
        module, _, path = place.partition(":")
        *owners, name = path.split(".")
        owner: Any = functools.reduce(getattr, owners, import_module(module))
        if not hasattr(owner, name):
            raise SystemExit(f"{place} does not exist any more; name its successor in PHASES of {__file__}")
        setattr(owner, name, self._measured(phase, getattr(owner, name)))

    def _measured(self, phase: str | None, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def measured(*args: Any, **options: Any) -> Any:
            self._enter(phase)
            try:
                return function(*args, **options)
            finally:
                self._leave()

        return measured


class RecordedEpochs:
    """Results of real epochs, for replaying them.

    Args:
        clock: Clock that must count neither the real epochs nor the replayed ones.
    """

    def __init__(self, clock: PhaseClock) -> None:
        self._clock = clock
        self._train = Env.run_epoch
        self._first: dict[Env, tuple[Tensor, Tensor]] = {}
        """Results of the first epoch of each env."""
        self._by_slots: dict[object, tuple[Tensor, Tensor]] = {}
        """Results of one epoch for each combination of population, structure, trained slots and measured slots."""
        self.population = 0
        """Number of envs of the population that plays. Results of one do not depend on the others."""

    def run_epoch(self, env: Env, step: int, timer: PhaseTimer, *, last: bool) -> list[Tensor]:
        """Return the recorded results for an env, in the form of `Env.run_epoch`; record them first if necessary."""
        with self._clock.measure(None):
            slots = self.population, env.context.structure, tuple(env.owners()), tuple(env.measured_slots()), last
            if env not in self._first or slots not in self._by_slots:
                trained, validated = self._train(env, step, timer, last=last)
                self._first.setdefault(env, (trained, validated))
                self._by_slots.setdefault(slots, (trained, validated))
            (own_trained, own_validated), (trained, validated) = self._first[env], self._by_slots[slots]
            trained, validated = trained.clone(), validated.clone()
            trained[:3], validated[:2] = own_trained[:3], own_validated[:2]
            if "host" in env.owners():  # the first owner, unless it is frozen
                trained[6] = own_trained[6]
            return [trained, validated]


class Population:
    """A run of one number of envs, trained one round at a time.

    Args:
        envs: Number of envs.
        directory: Directory for its recording.
    """

    def __init__(self, envs: int, options: argparse.Namespace, clock: PhaseClock, directory: Path) -> None:
        self.envs, self._clock = envs, clock
        self._records: SimpleQueue[Record] = SimpleQueue()
        self._hash = hashlib.sha256()
        threads = set(threading.enumerate())
        settings = {
            "envs": envs,
            "steps": options.steps,
            "task": options.task,
            "rounds": options.turns + 1,
            "devices": ("cpu:0",),
            "amp": "off",
            "checkpoint_every": 0,
            "keep": 1,
            "seed": options.seed,
            "telemetry_dir": str(directory / str(envs)),
        }
        config: Config = resolve_config(None, settings)
        self._run = set_up_run(StartPoint(config), RequestQueue(), self._records, RunOptions(), RunKind())
        (self._recorder,) = {t for t in threading.enumerate() if isinstance(t, NamedThread)} - threads

    def play_round(self) -> dict[str, float]:
        """Train a round, and return ms per env-step by phase, with those of the recorder and of the wall."""
        state, clock = self._run.trainer.state, self._clock
        state.config = msgspec.structs.replace(state.config, rounds=state.round + 1)
        clock.seconds.clear()
        clock.uncounted_wall = 0.0
        recorder, wall = self._recorder_seconds(), time.perf_counter()
        with clock.measure(REST):
            self._run.trainer.run()
            self._run.hub.flush()
        wall = time.perf_counter() - wall - clock.uncounted_wall
        seconds = {phase: clock.seconds[phase] for phase in (*PHASES, REST)}
        seconds |= {RECORDER: self._recorder_seconds() - recorder, WALL: wall}
        self._add_to_digest()
        env_steps = self.envs * state.config.steps
        return {phase: 1000 * value / env_steps for phase, value in seconds.items()}

    def _recorder_seconds(self) -> float:
        assert self._recorder.ident is not None
        return time.clock_gettime(time.pthread_getcpuclockid(self._recorder.ident))

    def _add_to_digest(self) -> None:
        """Add the results of the round to the digest, in an order that does not depend on that of the events."""
        lines: list[bytes] = []
        while not self._records.empty():
            record = self._records.get()
            if isinstance(record, COMPARED):
                lines.append(msgspec.json.encode(msgspec.to_builtins(record) | {"seq": 0, "time": 0}))
        self._hash.update(b"\n".join(sorted(lines)))

    def close(self) -> None:
        """End the run, which closes everything."""
        self._run.train()

    @property
    def digest(self) -> str:
        """First digits of the digest of all results so far."""
        return self._hash.hexdigest()[:10]


def print_table(populations: list[Population], turns: dict[int, list[dict[str, float]]]) -> None:
    """Print the medians over the turns, in ms per env-step, and the sum without recorder and wall."""
    print(f"{'ms per env-step':<18}" + "".join(f"{f'{each.envs} envs':>14}" for each in populations))

    def print_row(name: str, of_turn: Callable[[dict[str, float]], float], digits: int = 3) -> None:
        medians = [statistics.median(map(of_turn, turns[each.envs])) for each in populations]
        print(f"{name:<18}" + "".join(f"{value:14.{digits}f}" for value in medians))

    serial = (*PHASES, REST)
    for phase in serial:
        print_row(phase, lambda turn, phase=phase: turn[phase])
    print_row("sum", lambda turn: sum(turn[phase] for phase in serial))
    print_row("recorder (beside)", lambda turn: turn[RECORDER])
    print_row("wall", lambda turn: turn[WALL])
    print_row("env-steps/CPU-s", lambda turn: 1000 / sum(turn[phase] for phase in serial), digits=0)
    print(f"{'digest':<18}" + "".join(f"{each.digest:>14}" for each in populations))


def main() -> None:
    """Measure every number of envs in turns, and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--task", default="digits_impaired")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    clock = PhaseClock()
    for phase, places in PHASES.items():
        for place in places:
            clock.wrap(phase, place)
    for place in UNCOUNTED:
        clock.wrap(None, place)
    recorded = RecordedEpochs(clock)

    def run_epoch(self: Env, step: int, timer: PhaseTimer, *, last: bool) -> list[Tensor]:
        return recorded.run_epoch(self, step, timer, last=last)

    Env.run_epoch = run_epoch
    torch.set_num_threads(1)  # as `Run.train` does
    loads = [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory() as directory:
        populations = [Population(envs, options, clock, Path(directory)) for envs in options.envs]
        freeze_loaded_objects()  # as `EngineThread` does
        for population in populations:
            recorded.population = population.envs
            population.play_round()
        turns: dict[int, list[dict[str, float]]] = {envs: [] for envs in options.envs}
        for _ in range(options.turns):
            for population in populations:
                recorded.population = population.envs
                turns[population.envs].append(population.play_round())
        loads.append(os.getloadavg()[0])
        print(
            f"{options.task}, {options.steps} steps, PPO, one CPU lane, {options.turns} turns; load of the machine "
            f"{loads[0]:.1f} at the start, {loads[1]:.1f} at the end, {os.cpu_count()} cores; torch {torch.__version__}"
        )
        print_table(populations, turns)
        for population in populations:
            population.close()


if __name__ == "__main__":
    main()
