"""Runs of a sweep without training: recordings written at once by fake processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from esper.common.configuration.files import resolve_config
from esper.recordings import events as ev
from esper.recordings.checkpoints.manifest import MANIFEST_FILE
from esper.recordings.files.notes import RunNotes, write_notes
from esper.recordings.history.run_info import flat_config
from esper.studies.sweeps.paths import StudyPaths
from esper.studies.sweeps.plan import SweepPlan, nest, read_plan
from esper.studies.sweeps.storage import open_storage
from esper.studies.sweeps.study import SweepStudy
from tests.factory import run_started, stamp
from tests.recordings.files.recordings import recording, write_segment

GRID = """
seeds = [1, 2]
over = 2
[run]
rounds = 3
envs = 2
[vary]
"ppo.entropy-coef" = [0.0, 0.08]
"""


def make_plan(folder: Path, text: str = GRID, name: str = "s") -> SweepPlan:
    file = folder / f"{name}.toml"
    file.write_text(text)
    return read_plan(file)


def open_study(plan: SweepPlan, telemetry_dir: Path, storage: Any = None) -> SweepStudy:
    """Open a study as a process does: with its own connection to the journal file, unless a storage is given."""
    paths = StudyPaths(telemetry_dir, plan.name)
    paths.create()
    return SweepStudy(plan, paths, storage or open_storage("", paths, create=True), create=True)


def write_run(
    run: Path, options: dict[str, Any], notes: RunNotes, values: Sequence[float], outcome: str | None = "done"
) -> Path:
    """Write the recording of a run whose rounds had these mean returns. Its score is half of it."""
    config = resolve_config(None, {}, table=nest(options))
    events: list[ev.AnyEvent] = [
        msgspec.structs.replace(
            run_started(config.envs, config.rounds, 1), config=msgspec.to_builtins(config), seed=config.seed
        )
    ]
    for number, value in enumerate(values, start=1):
        events.append(ev.RoundStarted(round=number))
        events += [
            ev.EpisodeEnded(
                round=number,
                env=env,
                score=value / 2,
                best_score=value / 2,
                episode_return=value + (-1) ** env,
                parameter_ratio=1 + value,
                fossilized=0,
                culled=0,
            )
            for env in range(config.envs)
        ]
        events.append(ev.PhaseTimed(round=number, step=1, wall=0.1, phases={}))
    if outcome:
        events.append(ev.RunEnded(outcome=outcome, reason="no disk" if outcome == "failed" else None))
    assert flat_config(events[0].config)  # pyright: ignore[reportAttributeAccessIssue]
    write_segment(run, 1, recording(stamp(events)))
    (run / "run.lock").touch()
    write_notes(run, notes)
    return run


def write_checkpoint(run: Path, round_number: int) -> Path:
    """Write something that counts as a checkpoint as long as nothing reads it."""
    checkpoint = run / "checkpoints" / f"round-{round_number:05d}-step-0001"
    checkpoint.mkdir(parents=True)
    (checkpoint / MANIFEST_FILE).touch()
    return checkpoint


class EndedProcess:
    """A process that has ended."""

    pid = 2**30

    def __init__(self, code: int | None) -> None:
        self.code = code

    def poll(self) -> int | None:
        return self.code

    def terminate(self) -> None:
        return None


class FakeRuns:
    """Starts processes that do what a script says, and ends them at once.

    Args:
        script: Function of trial and attempt, from 1: done, killed (with a checkpoint), lost (before the first
            checkpoint), unborn (before the directory), stopped, failed, refused.
        value: Function of the options of a run: its mean return in every round.
    """

    def __init__(
        self,
        script: Callable[[int, int], str] = lambda trial, attempt: "done",
        value: Callable[[dict[str, Any]], float] = lambda options: 10 * float(options["ppo.entropy-coef"]),
    ) -> None:
        self.script = script
        self.value = value
        self.started: list[tuple[int, str | None]] = []
        """Trial, and name of the run that was resumed, of each process."""

    def __call__(self, arguments: Sequence[str], output: Path, inherited: int) -> EndedProcess:
        words = dict(pairwise(arguments))
        trial, telemetry_dir = int(words["--trial"]), Path(words["--telemetry-dir"])
        resumed = Path(words["--resume"]) if "--resume" in words else None
        self.started.append((trial, resumed.name if resumed else None))
        attempt = sum(started == trial for started, _ in self.started)
        action = self.script(trial, attempt)
        output.write_text("esper-sanctum: no such device\n")
        if action in {"refused", "unborn"}:
            return EndedProcess(2 if action == "refused" else -9)
        run = resumed or telemetry_dir / f"run-{trial}-{attempt}"
        file = telemetry_dir / f"options-{run.name}.json"
        if resumed is None:
            options = dict(word[2:].split("=", 1) for word in arguments if word.startswith("--") and "=" in word)
            telemetry_dir.mkdir(exist_ok=True)
            file.write_bytes(msgspec.json.encode(options))
        options = msgspec.json.decode(file.read_bytes())
        outcome = action if action in {"done", "stopped", "failed"} else None
        values = [self.value(options)] * (int(options["rounds"]) if outcome == "done" else 1)
        write_run(run, options, RunNotes(study=words["--study"], trial=trial), values, outcome)
        if action in {"killed", "stopped"} and not resumed:
            write_checkpoint(run, 1)
        return EndedProcess({"done": 0, "stopped": 0, "failed": 1}.get(action, -9))
