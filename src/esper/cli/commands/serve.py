"""`serve [RUN]`: shows the dashboard in a browser, read-only."""

from __future__ import annotations

import errno
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from esper.cli.commands import attach, replay
from esper.cli.dashboard import AUTO_THEME, check_theme
from esper.cli.options import EXIT_OK, RUN_HELP, Parser, add_telemetry_dir_option, print_usage_error
from esper.common.configuration.config import ConfigError
from esper.common.formatting import install_command
from esper.recordings.files.segments import ReadError

DEFAULT_PORT = 8000


def run(arguments: Sequence[str]) -> int:
    """Serve the dashboard until Ctrl-C."""
    from esper.recordings.files.runs import LAST_ALIAS, resolve_run, shortest_name
    from esper.recordings.history.history import open_history
    from esper.sanctum.own_keys import load_keys

    parser = Parser(
        prog="esper-sanctum serve",
        description="Show a live or ended run in a browser, read-only",
        epilog=f"Needs an optional dependency: {install_command('serve')}, in the checkout.",
    )
    parser.add_argument(
        "run",
        nargs="?",
        default=LAST_ALIAS,
        metavar="RUN",
        help=f"{RUN_HELP} (default: last, resolved at each visit)",
    )
    add_telemetry_dir_option(parser)
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on; others than the default are reachable without a password (default: 127.0.0.1)",
    )
    parser.add_argument(
        "--allow-host",
        nargs="+",
        default=[],
        metavar="NAME",
        help="further host names that the server answers to, if --host is not the default",
    )
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help=f"port to listen on (default: {DEFAULT_PORT})")
    parser.add_argument(
        "--theme", default=AUTO_THEME, metavar="NAME", help="colour theme (default: auto, the dark one)"
    )
    options = parser.parse_args(arguments)
    if importlib.util.find_spec("textual_serve") is None:
        raise ConfigError(f"serve needs an optional dependency; run `{install_command('serve')}` in the checkout")
    if not 0 < options.port < 2**16:
        raise ConfigError(f"--port {options.port} is not valid: it must be a number from 1 to 65535")
    check_theme(options.theme)
    load_keys()  # raises now, not at each visit
    path = resolve_run(options.run, options.telemetry_dir)
    open_history(path, replay.FIRST_FRAME_READ_S)  # raises now, not at each visit, if the recording is unreadable
    from esper.sanctum.web import DashboardServer

    run_to_show = options.run if options.run == LAST_ALIAS else str(path.resolve())
    script = "import sys; from esper.cli.commands.serve import run_visitor; sys.exit(run_visitor(*sys.argv[1:]))"
    # -P: do not import modules from the working directory.
    command = [sys.executable, "-P", "-c", script, run_to_show, str(options.telemetry_dir.resolve()), options.theme]
    title = "the newest run" if options.run == LAST_ALIAS else shortest_name(path, options.telemetry_dir)
    try:
        DashboardServer(command, title=title, host=options.host, port=options.port, names=options.allow_host).serve()
    except OSError as error:
        other = "--port" if error.errno in {errno.EADDRINUSE, errno.EACCES} else "--host"
        raise ConfigError(
            f"cannot listen on {options.host}:{options.port}: {error.strerror}; try another {other}"
        ) from None
    return EXIT_OK


def run_visitor(run: str, telemetry_dir: str, theme: str) -> int:
    """Show a live run, or replay an ended one, in the process of one visitor; return the exit code.

    `run` starts this function in a process of its own for each visitor.
    """
    from esper.recordings.files.run_lock import is_live
    from esper.recordings.files.runs import resolve_run

    try:
        path = resolve_run(run, Path(telemetry_dir))
        arguments = (str(path), "--theme", theme, "--symbols", "braille")
        live = path.is_dir() and is_live(path)
        return attach.run((*arguments, "--read-only")) if live else replay.run(arguments)
    except (ConfigError, ReadError) as error:
        return print_usage_error(str(error))
