"""The command line. Training is the default command; nothing here imports torch or Textual before it must.

Exit codes: 0 done, or stopped as asked; 1 the run failed; 2 the request was wrong; 130, 143: a second INT, TERM.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

import esper
from esper.config import Config, ConfigError, nearest, resolve
from esper.control import Control, Kind
from esper.engine.manifest import CheckpointError, check_compatible, find_checkpoint, read_manifest

if TYPE_CHECKING:
    from esper.launch import EngineThread

DONE, FAILED, WRONG_REQUEST = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = COMMANDS.get(arguments[0]) if arguments else None
    try:
        return command(arguments[1:]) if command else train(arguments)
    except (ConfigError, CheckpointError) as error:
        return _refuse(str(error))
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
    saved = read_manifest(checkpoint)["config"]
    config = resolve(file, options, base=saved)
    check_compatible(saved, config, checkpoint)
    return config, checkpoint


def _run_headless(engine: EngineThread):
    from esper.telemetry.console import Console

    with _Signals(engine.control):
        engine.start()
        state = Console(sys.stdout).run(engine.records, lambda: engine.alive)
        engine.join()
    return state


def _run_dashboard(engine: EngineThread, theme: str):
    from esper.sanctum.app import run_dashboard
    from esper.sanctum.source import LiveSource

    source = LiveSource(engine)
    with _Signals(engine.control):
        run_dashboard(source, theme=theme)
        engine.join()
    source.tick(0.0)
    return source.state


class _Signals:
    """While it lasts, the first INT or TERM asks for a checkpoint and an end; the second ends the process at once."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._asked = False

    def __enter__(self) -> None:
        self._before = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self._asked:
            os._exit(128 + number)
        self._asked = True
        self._control.ask(Kind.STOP, "signal")


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
    from esper.sanctum.app import run_dashboard
    from esper.sanctum.source import ReplaySource

    run_dashboard(ReplaySource(playback), theme=chosen.theme)
    return DONE


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {"replay": replay}


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
    """The options of a run: a flag for each field of `Config` that is not a table, and those of the program itself."""
    parser = _Parser(
        prog="esper-sanctum",
        description="Train a population of growing networks, and watch it. It needs no options.",
        epilog="Other commands: "
        + ", ".join(f"esper-sanctum {name}" for name in COMMANDS)
        + " (each with its --help).",
    )
    parser.add_argument("--version", action="version", version=f"esper-sanctum {esper.__version__}")
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
    parser.add_argument(
        "--resume", type=Path, metavar="PATH", help="go on from a checkpoint, or from the newest of a run"
    )
    _add_screen_options(parser)
    return parser


def _add_screen_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--theme", default="sanctum-dark", metavar="NAME", help="colours (default: sanctum-dark)")
    parser.add_argument("--no-tui", action="store_true", help="no dashboard: lines fit for a log file")


def _refuse(sentence: str) -> int:
    print(f"esper-sanctum: {sentence}", file=sys.stderr)
    return WRONG_REQUEST
