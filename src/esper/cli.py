"""The command line. Training is the default command; nothing here imports torch or Textual before it must.

Exit codes: 0 done, or stopped as asked; 1 the run failed; 2 the request was wrong; 130, 143: a second INT, TERM.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import signal
import sys
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

import esper
from esper.config import Config, ConfigError, PolicyName, as_toml, resolve
from esper.control import Kind
from esper.engine.manifest import CheckpointError, check_compatible, find_checkpoint, saved_config
from esper.nearest import nearest

if TYPE_CHECKING:
    from esper.launch import EngineThread
    from esper.sanctum.source import Source

DONE, FAILED, WRONG_REQUEST, INTERRUPTED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = COMMANDS.get(arguments[0]) if arguments else None
    try:
        return command(arguments[1:]) if command else train(arguments)
    except (ConfigError, CheckpointError) as error:
        return _refuse(str(error))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Who reads our output has seen enough. Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE


# Training


def train(arguments: Sequence[str]) -> int:
    """`esper-sanctum [options]`: train, with the dashboard or without."""
    chosen = vars(_train_parser().parse_args(arguments))
    file, resume, theme, headless = (chosen.pop(name) for name in ("config", "resume", "theme", "no_tui"))
    options = {name: value for name, value in chosen.items() if value is not None}
    config, checkpoint = _resolve_run(file, resume, options)

    from esper.launch import EngineThread

    engine = EngineThread(config, checkpoint)
    state = _run_headless(engine) if headless else _run_dashboard(engine, theme)
    if engine.failure:
        return _refuse(engine.failure)
    if engine.crash:
        print(engine.crash, file=sys.stderr)
        return FAILED
    from esper.telemetry.console import summary

    print(summary(state))
    return DONE


def _resolve_run(file: Path | None, resume: Path | None, options: Mapping[str, Any]) -> tuple[Config, Path | None]:
    if resume is None:
        return resolve(file, options), None
    checkpoint = find_checkpoint(resume)
    saved = saved_config(checkpoint)
    config = resolve(file, options, base=msgspec.to_builtins(saved))
    check_compatible(saved, config, checkpoint)
    return config, checkpoint


def _run_headless(engine: EngineThread):
    from esper.telemetry.console import Console

    with _Signals(lambda: engine.control.ask(Kind.STOP, "signal")):
        engine.start()
        try:
            state = Console(sys.stdout).run(engine.records, lambda: engine.alive)
        except BrokenPipeError:  # nobody listens any more: the engine saves what it has
            engine.control.ask(Kind.STOP, "signal")
            engine.join()
            raise
        engine.join()
    return state


def _run_dashboard(engine: EngineThread, theme: str):
    from esper.sanctum.source import LiveSource

    source = LiveSource(engine)
    with _Signals(lambda: source.requests.ask(Kind.STOP, origin="signal")):
        code = _show(source, theme)
        if code == FAILED:  # the dashboard broke down: the engine saves what it has
            source.requests.ask(Kind.STOP, origin="dashboard")
            engine.join()
        if code:
            raise SystemExit(code)
        engine.join()
    source.tick(0.0)
    return source.state


def _show(source: Source, theme: str) -> int:
    """The dashboard, until the user leaves it; its exit code."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigError("the dashboard needs a terminal, and there is none here: add --no-tui")
    from esper.sanctum.app import run_dashboard
    from esper.sanctum.theme import ThemeError

    try:
        return run_dashboard(source, theme=theme)
    except ThemeError as error:
        raise ConfigError(str(error)) from None


class _Signals:
    """While it lasts, the first INT or TERM asks for a checkpoint and an end; the second ends the process at once.

    At once, but not before the terminal is as it was: the second raises SystemExit, and that ends the process here,
    without waiting for the engine's threads.
    """

    def __init__(self, ask_to_stop: Callable[[], None]) -> None:
        self._ask_to_stop = ask_to_stop
        self._asked = False

    def __enter__(self) -> None:
        self._before = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, SystemExit) and isinstance(error.code, int):
            os._exit(error.code)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self._asked:
            raise SystemExit(128 + number)
        self._asked = True
        self._ask_to_stop()


# Recordings


def replay(arguments: Sequence[str]) -> int:
    """`esper-sanctum replay FILE_OR_RUN`: the dashboard over a recording; with `--no-tui`, the summary of its end."""
    from esper.telemetry.console import summary
    from esper.telemetry.playback import Playback
    from esper.telemetry.reader import ReadError, open_history
    from esper.telemetry.runs import resolve_run

    parser = _Parser(prog="esper-sanctum replay", description="Show a recorded run.")
    parser.add_argument("run", metavar="FILE_OR_RUN", help="a path, a run below the telemetry directory, or last")
    parser.add_argument(
        "--telemetry-dir", default=Config().telemetry_dir, metavar="DIR", help="where runs are looked for"
    )
    parser.add_argument("--speed", type=float, default=1.0, metavar="X", help="how fast time passes (default: 1)")
    _add_screen_options(parser)
    chosen = parser.parse_args(arguments)
    if not 0 < chosen.speed < math.inf:
        raise ConfigError(f"--speed {chosen.speed} is not valid: it must be a number above 0")
    try:
        history = open_history(resolve_run(chosen.run, Path(chosen.telemetry_dir)))
    except ReadError as error:
        return _refuse(str(error))
    playback = Playback(history)
    if chosen.no_tui:
        playback.to_end()
        print(summary(playback.state))
        return DONE
    playback.speed = chosen.speed
    from esper.sanctum.source import ReplaySource

    return _show(ReplaySource(playback), chosen.theme)


# Policies


def evaluate(arguments: Sequence[str]) -> int:
    """`esper-sanctum evaluate --checkpoint PATH`: policies compared on held-out episodes."""
    chosen = _evaluate_parser().parse_args(arguments)
    names = typing.get_args(PolicyName)
    for policy in chosen.policies:
        if policy not in names:
            raise ConfigError(f"--policies {policy!r} is not a policy: {nearest(policy, names)}")
    for option, value, least in (("episodes", chosen.episodes, 2), ("seed", chosen.seed, 0)):
        if value < least:
            raise ConfigError(f"--{option} {value} is not valid: it must be {least} or more")
    checkpoint = find_checkpoint(chosen.checkpoint)

    from esper.evaluation import report
    from esper.evaluation.episodes import HeldOut
    from esper.tasks import TaskError

    options = {name: getattr(chosen, name) for name in ("policies", "episodes", "seed", "devices")}
    try:
        held_out = HeldOut(checkpoint, **options)
    except TaskError as error:
        raise ConfigError(str(error)) from None
    with contextlib.closing(held_out), _progress(len(set(chosen.policies)) * held_out.config.steps) as advance:
        results = held_out.play(advance)
    task, steps = held_out.config.task, held_out.config.steps
    found = report.compare(results, checkpoint=str(checkpoint), task=task, steps=steps, seed=chosen.seed)
    if chosen.json:
        print(report.as_json(found))
    elif sys.stdout.isatty():
        report.print_table(found)
    else:
        print(report.as_text(found))
    return DONE


def _evaluate_parser() -> _Parser:
    names = typing.get_args(PolicyName)
    parser = _Parser(
        prog="esper-sanctum evaluate",
        description="Compare policies on held-out episodes: hosts and data orders that no run has trained on, the same "
        "for every policy. A PPO policy acts from the checkpoint without learning, and draws its actions from its "
        "probabilities as in training. This is the only command that touches the test split.",
    )
    parser.add_argument(
        "--checkpoint", type=Path, required=True, metavar="PATH", help="a checkpoint, or a run: its newest"
    )
    parser.add_argument(
        "--policies",
        nargs="+",
        default=names,
        metavar="NAME",
        help=f"who plays (default: all: {' '.join(names)})",
    )
    parser.add_argument("--episodes", type=int, default=64, metavar="N", help="episodes of each (default: 64)")
    parser.add_argument("--seed", type=int, default=0, metavar="SEED", help="of the episodes (default: 0)")
    parser.add_argument("--devices", nargs="+", default=["auto"], metavar="DEVICES", help="lanes (default: auto)")
    parser.add_argument("--json", action="store_true", help="print JSON, with the results of each episode")
    return parser


@contextlib.contextmanager
def _progress(steps: int) -> Iterator[Callable[[str], None]]:
    """A bar on the terminal of stderr, and nothing where that is none. Yields what is to be called at each step."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("loading", total=steps)
        yield lambda policy: progress.update(task, advance=1, description=policy)


def show_config(arguments: Sequence[str]) -> int:
    """`esper-sanctum config [options]`: the resolved configuration as TOML."""
    parser = _Parser(
        prog="esper-sanctum config",
        description="Print the configuration of a run as TOML: what these options, the file and the defaults come to. "
        "Keep it in a file, and give that with --config.",
    )
    _add_run_options(parser)
    chosen = vars(parser.parse_args(arguments))
    file = chosen.pop("config")
    print(as_toml(resolve(file, {name: value for name, value in chosen.items() if value is not None})), end="")
    return DONE


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {"replay": replay, "evaluate": evaluate, "config": show_config}


# Options


class _Parser(argparse.ArgumentParser):
    """Refuses what it does not know with the nearest option that it does."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """One sentence, exit code 2."""
        words = message.removeprefix("unrecognized arguments: ").split()
        if message.startswith("unrecognized arguments") and words[0].startswith("--"):
            known = [option for action in self._actions for option in action.option_strings]
            message = f"unknown option {words[0]}: {nearest(words[0], known)}"
        elif message.startswith("unrecognized arguments"):
            message = f"unknown command or argument {words[0]!r}: {nearest(words[0], COMMANDS)}"
        raise SystemExit(_refuse(message))


def _train_parser() -> _Parser:
    """The options of a run, and those of the program itself."""
    parser = _Parser(
        prog="esper-sanctum",
        description="Train a population of growing networks, and watch it. It needs no options.",
        epilog="Other commands: "
        + ", ".join(f"esper-sanctum {name}" for name in COMMANDS)
        + " (each with its --help).",
    )
    parser.add_argument("--version", action="version", version=f"esper-sanctum {esper.__version__}")
    _add_run_options(parser)
    parser.add_argument(
        "--resume", type=Path, metavar="PATH", help="go on from a checkpoint, or from the newest of a run"
    )
    _add_screen_options(parser)
    return parser


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    """`--config`, and a flag for each field of `Config` that is not a table of it."""
    hints = typing.get_type_hints(Config, include_extras=True)
    for field in msgspec.structs.fields(Config):
        notes = getattr(hints[field.name], "__metadata__", ())
        if not notes:
            continue  # a table of the TOML file
        several = isinstance(field.default, tuple)
        default = " ".join(field.default) if several else field.default
        parser.add_argument(
            f"--{field.encode_name}",
            dest=field.name,
            nargs="+" if several else None,
            metavar=field.name.rpartition("_")[2].upper(),
            help=notes[0].description + (f" (default: {default})" if default != "" else ""),
        )
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file with any of these, and tables")


def _add_screen_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--theme", default="sanctum-dark", metavar="NAME", help="colours (default: sanctum-dark)")
    parser.add_argument("--no-tui", action="store_true", help="no dashboard: lines fit for a log file")


def _refuse(sentence: str) -> int:
    print(f"esper-sanctum: {sentence}", file=sys.stderr)
    return WRONG_REQUEST
