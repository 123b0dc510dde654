"""Draws a small run and a sequence of faults from a random seed, and checks after each that no promise is broken.

    python -m tests.faults.random_faults --minutes 60 --seed 0

A sequence starts a run in a separate process and disturbs it. If a fault ends the run, the sequence resumes it. At the
end, the results must equal those of an undisturbed run. A failure names the random seed of its sequence.

Moments are sizes of the recording, so a random seed gives the same faults at nearly the same moments again.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from esper.common.control import RequestKind
from esper.common.system.stop_signals import STOP_SIGNALS
from esper.recordings import events as ev
from esper.recordings.attach.protocol import Acknowledged, Refused
from esper.recordings.checkpoints.catalog import list_checkpoints
from esper.recordings.checkpoints.manifest import CheckpointError
from esper.recordings.events import AnyEvent
from esper.recordings.history.history import open_history
from esper.training.checkpoint.files import read_checkpoint
from tests.faults.programs import Ended, ProgramServer, RankLauncher
from tests.faults.surroundings import VARIABLE, disturb
from tests.recordings.attach.viewers import HELLO, Viewer, exchange, make_ask
from tests.runs import computed, only, recorded

TIMEOUT_S = 60.0
"""Seconds without progress after which a sequence fails."""
RANKS_FRACTION = 0.15
"""Fraction of the sequences whose run has two ranks at times."""
MAX_FAULTS = 6
MOMENTS_BYTES = (0, 100, 1_000, 10_000, 30_000, 100_000)
"""Sizes from which the number of bytes is drawn that a run records before a fault."""
ENDED_BY_SIGNAL = {code for number in STOP_SIGNALS for code in (128 + number, -number)}
"""Exit codes of a run that was ended at once: by a second signal, or by the first one before it handled signals."""
DECIDED = ("continues ", "starts again", "a new run starts")
"""Words that `--resume auto` prints once it has found its run."""
FAILED = {1, 2}
"""Exit codes of a run that failed in its surroundings, with a checkpoint or before its first step."""
Fault = Callable[["Sequence"], None]


class PromiseError(AssertionError):
    """A promise of the program is broken."""


def draw_options(generator: random.Random, *, for_ranks: bool) -> list[str]:
    """Return the options of a small run, without its lanes and its directory.

    Ranks sum the gradients of PPO in another order than a single process, so with ranks the policy does not learn.
    """
    draw = generator.choice
    options = {
        "policy": draw(("heuristic", "periodic") if for_ranks else ("ppo", "ppo", "heuristic", "periodic")),
        "envs": draw((2, 3, 4) if for_ranks else (1, 2, 3, 4)),
        "steps": draw((3, 5, 8)),
        "rounds": draw((3, 4, 6)),
        "checkpoint-every": draw((1, 1, 2)),
        "keep": draw((1, 3)),
        "amp": draw(("off", "bf16", "fp16")),
        "scaler": draw(("env", "device")),
        "counterfactual": draw(("ablation", "off")),
        "sync-seconds": draw((0, 5)),
        "seed": generator.randrange(100),
        "training.samples-per-epoch": draw((64, 256)),
        "ppo.hidden": 16,
        "ppo.epochs": 2,
        "ppo.minibatches": 2,
    }
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]


class Sequence:
    """A run and the faults that disturb it.

    Args:
        seed: Random seed of the run and of the faults.
        directory: Empty directory for all files of the sequence.
        server: Runs the program.
        surroundings: File with the disturbances of the program's clock and file operations.
        planned: Faults before those that are drawn.
    """

    def __init__(
        self, seed: int, directory: Path, server: ProgramServer, surroundings: Path, planned: Collection[Fault] = ()
    ) -> None:
        self.generator = random.Random(seed)
        self._may_have_ranks = self.generator.random() < RANKS_FRACTION
        self.options = draw_options(self.generator, for_ranks=self._may_have_ranks)
        self._shares_a_scale = {"fp16", "device"} <= set(self.options)  # then the number of lanes changes the results
        self.story: list[str] = []
        """Everything that was done, one line each."""
        self.faults: Counter[str] = Counter()
        """Number of faults, keyed by name."""
        self.surroundings, self.clock_s = surroundings, 0.0
        self.may_tear_a_line = False
        """True after a full disk: a kill may leave the part of a line that had room."""
        self.codes = {0}
        """Possible exit codes of the program, after the faults since its start."""
        self.main = psutil.Process()
        """Main process of the run."""
        self._server, self._directory, self._planned = server, directory, planned
        self._launcher: ProgramServer | RankLauncher = server
        self.telemetry = directory / "telemetry"
        self._ended: Ended | None = None
        self._searches = False
        """True if the program itself looks for the run to continue."""
        self._earlier: ev.RunStarted | None = None
        """The newest start of the run before that of the program."""

    # The sequence

    def play(self) -> None:
        """Start a run, disturb it until it has ended, and compare its results. Raises PromiseError."""
        disturb(self.surroundings, clock_s=0.0)
        expected = self._undisturbed()
        try:
            self._disturb_until_done()
        except BaseException:
            self._end()
            raise
        found = [repr(event) for event in computed(recorded(self.run))]
        self.require(found == expected, f"the results differ first at {_first_difference(found, expected)}")

    def _disturb_until_done(self) -> None:
        self.start()
        drawn = self.generator.choices(FAULTS, k=self.generator.randint(1, MAX_FAULTS))
        for fault in (*self._planned, *drawn[len(self._planned) :]):
            if not self._await_moment():
                break
            self.tell(fault.__name__)
            self.faults[fault.__name__] += 1
            fault(self)
            if self._ended and not self.go_on():
                break
        while True:
            self.await_end()
            if not self.go_on():
                break

    def _end(self) -> None:
        """Kill the program, if it has not ended, after a failure of the sequence."""
        if self._ended is None:
            for process in (*self.children(), self.main):
                self.send(signal.SIGKILL, process)
            self._launcher.wait(self._directory)

    def _undisturbed(self) -> list[str]:
        directory = self._directory / "undisturbed"
        with tempfile.TemporaryDirectory() as output:
            self._server.start(Path(output), *self._command("cpu:0"), "--telemetry-dir", directory)
            ended = self._server.wait(Path(output))
        self.require(ended.code == 0, f"the undisturbed run ended with exit code {ended.code}: {ended.output}")
        return [repr(event) for event in computed(recorded(only(directory)))]

    def _command(self, *lanes: str) -> list[str]:
        return ["--no-tui", *self.options, "--devices", *lanes]

    def start(self) -> None:
        """Start the run, or resume it, on one or two lanes or two ranks."""
        has_ranks = self._may_have_ranks and not self._shares_a_scale and self.generator.random() < 0.5
        count = 2 if has_ranks else 1 if self._shares_a_scale else self.generator.choice((1, 1, 2))
        lanes = [f"cpu:{index}" for index in range(count)]
        self._launcher = RankLauncher() if has_ranks else self._server
        if self.generator.random() < 0.5:
            how, resume = "resume auto", ["--resume", "auto"]
        elif self.checkpoints():
            how, resume = "resume", ["--resume", str(self.run)]
        else:  # killed before the first checkpoint: the user starts again
            shutil.rmtree(self.telemetry, ignore_errors=True)
            how, resume = "start", []
        self.tell(f"{how} on {count} {'ranks' if has_ranks else 'lanes'}")
        self._searches = how == "resume auto"
        self._earlier = self._newest_start()
        (self._directory / "output").unlink(missing_ok=True)
        self._ended, self.codes = None, {0}
        disturb(self.surroundings, clock_s=self.clock_s)  # a failure that has not happened yet is for the ended process
        arguments = [*self._command(*lanes), "--telemetry-dir", self.telemetry, *resume]
        self.main = psutil.Process(self._launcher.start(self._directory, *arguments))

    def go_on(self) -> bool:
        """Check what an ended program left, and start it again; return False if the run is done."""
        assert self._ended
        self.tell(f"ended with exit code {self._ended.code}")
        if not self.has_ranks:  # torchrun has exit codes of its own, and prints the traceback of its own error
            self.require("Traceback" not in self._ended.output, f"a traceback is printed: {self._ended.output}")
            self.require(self._ended.code in self.codes, f"exit code {self._ended.code}: {self._ended.output}")
        if self.status() == "done":
            return False
        self.start()
        return True

    # Used by faults

    def tell(self, sentence: str) -> None:
        """Add a sentence to the story."""
        self.story.append(sentence)

    @property
    def has_ranks(self) -> bool:
        """True if torchrun has started the run as two ranks."""
        return isinstance(self._launcher, RankLauncher)

    @property
    def run(self) -> Path:
        """Directory of the run. A run that is killed before it has described itself leaves another one behind.

        Raises:
            ValueError: The run has not created it.
        """
        return max(self.telemetry.iterdir())

    def status(self) -> str:
        """Return the recorded status of the run, after a check of its files."""
        if not (events := self.events()):
            return "not started"
        sequence = [event.seq for event in events]
        self.require(sequence == list(range(1, len(events) + 1)), "the numbers of the events have gaps")
        for path in list_checkpoints(self.run):
            try:
                read_checkpoint(path)
            except CheckpointError as error:
                self.require(False, str(error))
        history = open_history(self.run)
        notices = [text for text in history.notices if not (self.may_tear_a_line and "middle of a line" in text)]
        self.require(not notices, f"damage is reported: {notices}")
        return history.state_at(history.length).status

    @property
    def is_set_up(self) -> bool:
        """True once the program trains the run."""
        return self._newest_start() != self._earlier

    def _newest_start(self) -> ev.RunStarted | None:
        return next((event for event in reversed(self.events()) if isinstance(event, ev.RunStarted)), None)

    def await_decision(self) -> None:
        """Wait until the program has found its run. If it were moved before, another one would begin."""
        output = self._directory / "output"
        while self._searches and not self._has_ended(0.01):
            text = output.read_text(errors="replace") if output.exists() else ""
            if any(words in text for words in DECIDED):
                return

    def events(self) -> list[AnyEvent]:
        """Return the events that are recorded now; none before the run has recorded any."""
        if not self.telemetry.exists() or not any(self.telemetry.glob("*/events-*")):
            return []
        return recorded(self.run)

    def checkpoints(self) -> list[Path]:
        """Return the checkpoints that exist now."""
        return list_checkpoints(self.run) if self.events() else []

    def children(self) -> list[psutil.Process]:
        """Return the processes of the run beside its main process."""
        try:
            return self.main.children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def recorder(self) -> psutil.Process:
        """Return the process that records the run."""
        ranks = [child for child in self.children() if _rank_of(child) == "0"]
        return ranks[0] if ranks else self.main

    def send(self, number: signal.Signals, process: psutil.Process | None = None) -> None:
        """Send a signal to a process of the run, if it still exists."""
        with contextlib.suppress(psutil.NoSuchProcess):
            (process or self.main).send_signal(number)

    def sleep(self, longest_s: float) -> None:
        """Wait for a random time."""
        time.sleep(self.generator.uniform(0, longest_s))

    @contextmanager
    def losing_nothing(self) -> Iterator[None]:
        """Require that the program, which ends in this context, leaves no process, and everything that was recorded."""
        children = self.children()
        events, checkpoints = self.events(), self.checkpoints()
        yield
        self.await_end()
        _, alive = psutil.wait_procs(children, timeout=5)
        self.require(not alive, f"processes are left: {alive}")
        now = self.events()
        if _last_rewind(now) == _last_rewind(events):  # a resumed or restored run discards the later ones
            kept = [repr(event) for event in now[: len(events)]] == [repr(event) for event in events]
            self.require(kept, f"of {len(events)} events, {len(now)} or others are left")
            newest = self.checkpoints()[-1:]
            self.require(newest >= checkpoints[-1:], "the newest checkpoint is lost")

    def ask(self, kind: RequestKind, path: str | None = None, env: int | None = None) -> bool:
        """Send a request over the socket; return False if the run does not accept it any more."""
        try:
            reply = exchange(self.run, make_ask(kind, path, env))
        except (OSError, AssertionError):  # the run has ended
            return False
        self.require(isinstance(reply, Acknowledged | Refused), f"unexpected reply {reply}")
        return isinstance(reply, Acknowledged)

    def await_end(self) -> None:
        """Wait until the program has ended."""
        deadline, seen = time.monotonic() + TIMEOUT_S, ("", 0)
        while not self._has_ended(0.1):
            if (now := self._recorded_size()) != seen:
                deadline, seen = time.monotonic() + TIMEOUT_S, now
            self.require(time.monotonic() < deadline, "the run makes no progress")

    def require(self, holds: bool, problem: str) -> None:
        """Raise PromiseError with a problem unless a promise holds."""
        if not holds:
            raise PromiseError(problem)

    # Waiting

    def _await_moment(self) -> bool:
        """Wait until the run has recorded some more bytes of events; return False if it is done before."""
        segment, size = self._recorded_size()
        more = self.generator.choice(MOMENTS_BYTES)
        deadline = time.monotonic() + TIMEOUT_S
        while not self._has_ended(0.01):
            now = self._recorded_size()
            if now >= (segment, size + more):
                self.sleep(0.05)
                return True
            self.require(time.monotonic() < deadline, "the run makes no progress")
        return self.go_on() and self._await_moment()

    def _recorded_size(self) -> tuple[str, int]:
        """Return the name of the newest segment and its size in bytes."""
        files: list[tuple[str, int]] = []
        for path in self.telemetry.glob("*/events-*"):
            with contextlib.suppress(FileNotFoundError):  # it was packed, or its directory moved
                files.append((path.name.removesuffix(".zst"), path.stat().st_size))
        return max(files, default=("", 0))

    def _has_ended(self, timeout: float) -> bool:
        if self._ended is None and self._launcher.has_ended(timeout):
            self._ended = self._launcher.wait(self._directory)
        return self._ended is not None


def _last_rewind(events: list[AnyEvent]) -> AnyEvent | None:
    """Return the newest event that follows a resume or a restore."""
    return next((event for event in reversed(events) if isinstance(event, ev.RunStarted | ev.Resumed)), None)


def _rank_of(process: psutil.Process) -> str | None:
    try:
        return process.environ().get("RANK")
    except psutil.Error:  # it has ended
        return None


def _first_difference(found: list[str], expected: list[str]) -> str:
    for number, (one, other) in enumerate(zip(found, expected, strict=False)):
        if one != other:
            return f"event {number}: {one} instead of {other}"
    return f"the end: {len(found)} events instead of {len(expected)}"


# Faults. Each disturbs a run that is alive or has just ended.


def kill(sequence: Sequence) -> None:
    """Kill the main process, or one of the ranks."""
    ranks = sequence.children() if sequence.has_ranks else []
    sequence.codes |= {-signal.SIGKILL}
    with sequence.losing_nothing():
        sequence.send(signal.SIGKILL, sequence.generator.choice(ranks or [sequence.main]))


def kill_a_worker(sequence: Sequence) -> None:
    if children := sequence.children():
        sequence.codes |= FAILED
        sequence.send(signal.SIGKILL, sequence.generator.choice(children))


def stop_and_continue(sequence: Sequence) -> None:
    process = sequence.generator.choice([sequence.main, *sequence.children()])
    sequence.send(signal.SIGSTOP, process)
    sequence.sleep(2)
    sequence.send(signal.SIGCONT, process)


def send_stop_signal(sequence: Sequence) -> None:
    sequence.codes |= ENDED_BY_SIGNAL
    with sequence.losing_nothing():
        sequence.send(sequence.generator.choice(STOP_SIGNALS))


def storm_of_signals(sequence: Sequence) -> None:
    sequence.codes |= ENDED_BY_SIGNAL
    numbers = (*STOP_SIGNALS, signal.SIGWINCH, signal.SIGCONT, signal.SIGPIPE)
    with sequence.losing_nothing():
        for _ in range(sequence.generator.randint(5, 40)):
            sequence.send(sequence.generator.choice(numbers))
            sequence.sleep(0.05)
        sequence.send(signal.SIGTERM)


def fill_the_disk(sequence: Sequence) -> None:
    """Limit the size of files, which is an error like that of a full disk, and remove the limit."""
    sizes = [path.stat().st_size for path in sequence.run.glob("events-*.jsonl")] if sequence.events() else []
    limit = max(sizes, default=0) + sequence.generator.randrange(5_000)
    sequence.codes |= FAILED  # the limit also applies to the messages to workers
    sequence.may_tear_a_line = True
    with contextlib.suppress(ProcessLookupError):
        pid = sequence.recorder().pid
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        sequence.sleep(2)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def move_the_directory(sequence: Sequence) -> None:
    """Move the directory of the run away and back, and at times put another directory in its place meanwhile."""
    sequence.await_decision()
    if not sequence.events():
        return
    if not sequence.is_set_up:  # a run that starts ends
        sequence.codes |= FAILED
    run = sequence.run
    run.rename(run.parent.parent / "elsewhere")
    is_replaced = sequence.generator.random() < 0.5
    if is_replaced:
        run.mkdir()
        (run / "foreign").touch()
    sequence.sleep(2)
    if is_replaced:
        sequence.require(
            [path.name for path in run.iterdir()] == ["foreign"], "the run has written to another directory"
        )
        shutil.rmtree(run)
    (run.parent.parent / "elsewhere").rename(run)


def delete_the_directory(sequence: Sequence) -> None:
    sequence.await_decision()
    if not sequence.events():
        return
    sequence.codes |= {1} if sequence.is_set_up else FAILED
    directory = sequence.run
    while directory.exists():  # the run may write a file meanwhile
        shutil.rmtree(directory, ignore_errors=True)
    sequence.await_end()
    sequence.require(not any(sequence.telemetry.iterdir()), "the run has made its deleted directory again")


def set_the_clock(sequence: Sequence) -> None:
    sequence.clock_s += sequence.generator.choice((-86_400, -7_200, -30, 30, 3_600, 86_400))
    disturb(sequence.surroundings, clock_s=sequence.clock_s)


def fail_a_file_operation(sequence: Sequence) -> None:
    sequence.codes |= FAILED
    disturb(sequence.surroundings, clock_s=sequence.clock_s, fails_after=sequence.generator.randint(1, 60))


def flood_with_viewers(sequence: Sequence) -> None:
    viewers: list[Viewer] = []
    for _ in range(sequence.generator.randint(10, 100)):
        with contextlib.suppress(OSError, ValueError):
            viewer = Viewer(sequence.run)
            viewers.append(viewer)
            viewer.send(
                sequence.generator.choice((b"\xff" * 64, b"", b"GET / HTTP/1.1\r\n\r\n", b"{}\n", b'{"version":'))
            )
    for viewer in viewers:
        viewer.connection.close()
    with contextlib.suppress(OSError, ValueError, AssertionError):
        exchange(sequence.run, HELLO)


def send_requests(sequence: Sequence) -> None:
    kinds = [kind for kind in RequestKind if kind not in {RequestKind.STOP, RequestKind.ABANDON, RequestKind.RESTORE}]
    for _ in range(sequence.generator.randint(1, 10)):
        sequence.ask(sequence.generator.choice(kinds), env=0)
        sequence.sleep(0.1)
    sequence.ask(RequestKind.RESUME)


def restore_a_checkpoint(sequence: Sequence) -> None:
    if checkpoints := sequence.checkpoints():
        sequence.ask(RequestKind.RESTORE, str(sequence.generator.choice(checkpoints)))
        sequence.ask(RequestKind.RESUME)


def read_the_recording(sequence: Sequence) -> None:
    for _ in range(5):
        sequence.events()
        sequence.sleep(0.1)


FAULTS: tuple[Fault, ...] = (
    kill,
    kill_a_worker,
    stop_and_continue,
    send_stop_signal,
    storm_of_signals,
    fill_the_disk,
    move_the_directory,
    delete_the_directory,
    set_the_clock,
    fail_a_file_operation,
    flood_with_viewers,
    send_requests,
    restore_a_checkpoint,
    read_the_recording,
)


@contextmanager
def program_server(surroundings: Path) -> Iterator[ProgramServer]:
    """Yield a server for sequences, whose programs are disturbed by the file."""
    disturb(surroundings, clock_s=0.0)
    os.environ[VARIABLE] = str(surroundings)
    server = ProgramServer(
        "tests.faults.surroundings", "torch._dynamo", "esper.training.engine.setup", "esper.cli.commands.train"
    )
    try:
        yield server
    finally:
        del os.environ[VARIABLE]
        server.close()


def main() -> int:
    """Play sequences for some minutes, print the failed ones, and return the exit code."""
    parser = argparse.ArgumentParser(description="Play random sequences of faults")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0, help="random seed of the first sequence; the next have the next")
    parser.add_argument("--keep", type=Path, help="directory that receives the files of failed sequences")
    arguments = parser.parse_args()
    deadline = time.monotonic() + 60 * arguments.minutes
    seed, faults, failures = arguments.seed, Counter[str](), 0
    with tempfile.TemporaryDirectory() as directory, program_server(Path(directory) / "surroundings") as server:
        while time.monotonic() < deadline:
            folder = Path(directory) / str(seed)
            folder.mkdir()
            sequence = Sequence(seed, folder, server, Path(directory) / "surroundings")
            try:
                sequence.play()
            except Exception as error:  # noqa: BLE001 (every error is reported with its random seed)
                failures += 1
                is_promise = isinstance(error, PromiseError)
                print(f"seed {seed} failed: {error if is_promise else traceback.format_exc()}")
                print(f"  options: {' '.join(sequence.options)}")
                print(f"  story: {'; '.join(sequence.story)}", flush=True)
                if arguments.keep:
                    shutil.copytree(folder, arguments.keep / str(seed), ignore=shutil.ignore_patterns("*.sock"))
            faults += sequence.faults
            shutil.rmtree(folder, ignore_errors=True)
            seed += 1
    print(f"{seed - arguments.seed} sequences, {faults.total()} faults, {failures} failures")
    print(", ".join(f"{name} {count}" for name, count in sorted(faults.items())))
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
