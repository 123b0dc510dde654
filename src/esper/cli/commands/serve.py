"""`serve [RUN]`: the dashboard in a browser, read-only."""

from __future__ import annotations

import errno
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from esper.cli.commands import attach, replay
from esper.cli.dashboard import DEFAULT_THEME, check_theme
from esper.cli.options import EXIT_OK, Parser, add_telemetry_dir_option, print_usage_error
from esper.config import ConfigError
from esper.recording.segments import ReadError

DEFAULT_PORT = 8000


def run(arguments: Sequence[str]) -> int:
    """Serve it, until Ctrl-C."""
    from esper.history.history import open_history
    from esper.recording.runs import LAST_ALIAS, resolve_run, shortest_name

    parser = Parser(
        prog="esper-sanctum serve",
        description="Show a run in a browser: live, or replayed if it is over. Whoever opens the page looks on, and "
        "can ask nothing of the run. Needs an extra: uv sync --extra serve.",
    )
    parser.add_argument(
        "run",
        nargs="?",
        default=LAST_ALIAS,
        metavar="RUN",
        help="a path, or a run's name (default: the newest at each visit)",
    )
    add_telemetry_dir_option(parser)
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on; any but the default lets others in, unasked (default: 127.0.0.1)",
    )
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help=f"port to listen on (default: {DEFAULT_PORT})")
    parser.add_argument("--theme", default=DEFAULT_THEME, metavar="NAME", help=f"colours (default: {DEFAULT_THEME})")
    chosen = parser.parse_args(arguments)
    if importlib.util.find_spec("textual_serve") is None:
        raise ConfigError("serve needs an extra that is not installed: uv sync --extra serve")
    if not 0 < chosen.port < 2**16:
        raise ConfigError(f"--port {chosen.port} is not valid: it must be a number from 1 to 65535")
    check_theme(chosen.theme)
    path = resolve_run(chosen.run, chosen.telemetry_dir)
    open_history(path, replay.FIRST_FRAME_READ_S)  # what cannot be shown is refused here
    from esper.sanctum.web import DashboardServer

    wanted = chosen.run if chosen.run == LAST_ALIAS else str(path.resolve())
    script = "import sys; from esper.cli.commands.serve import run_visitor; sys.exit(run_visitor(*sys.argv[1:]))"
    # -P: what lies in the working directory is not taken for a module.
    command = [sys.executable, "-P", "-c", script, wanted, str(chosen.telemetry_dir.resolve()), chosen.theme]
    title = "the newest run" if chosen.run == LAST_ALIAS else shortest_name(path, chosen.telemetry_dir)
    try:
        DashboardServer(command, title=title, host=chosen.host, port=chosen.port).serve()
    except OSError as error:
        other = "--port" if error.errno in {errno.EADDRINUSE, errno.EACCES} else "--host"
        raise ConfigError(
            f"cannot listen on {chosen.host}:{chosen.port}: {error.strerror}; try another {other}"
        ) from None
    return EXIT_OK


def run_visitor(run: str, telemetry_dir: str, theme: str) -> int:
    """What the process of a visitor does: watch a live run, replay one that is over; the exit code."""
    from esper.recording.run_lock import is_live
    from esper.recording.runs import resolve_run

    try:
        path = resolve_run(run, Path(telemetry_dir))
        options = (str(path), "--theme", theme, "--symbols", "braille")
        live = path.is_dir() and is_live(path)
        return attach.run((*options, "--read-only")) if live else replay.run(options)
    except (ConfigError, ReadError) as error:
        return print_usage_error(str(error))
