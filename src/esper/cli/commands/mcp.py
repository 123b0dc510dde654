"""`mcp`: serves the tools of `esper.cli.assistant` to an assistant, over standard input and output."""

from __future__ import annotations

from collections.abc import Sequence

from esper.cli.options import EXIT_OK, Parser, add_telemetry_dir_option, check_extra
from esper.common.configuration.config import ConfigError
from esper.networks.tasks import check_task_reference


def run(arguments: Sequence[str]) -> int:
    """Serve until the client closes standard input."""
    parser = Parser(
        prog="esper-sanctum mcp",
        description="Let an assistant ask about the runs of a directory, by the Model Context Protocol over standard "
        "input and output. It reads recordings, writes to none, controls no run, and opens no network connection. "
        "See docs/assistants.md.",
    )
    add_telemetry_dir_option(parser)
    parser.add_argument(
        "--task", metavar="TASK", help="your own task (FILE.py or MODULE:NAME), whose code what_if may then import"
    )
    options = parser.parse_args(arguments)
    check_extra("mcp", "mcp", "mcp")
    if not options.telemetry_dir.is_dir():
        raise ConfigError(f"directory {options.telemetry_dir} not found; give another --telemetry-dir")
    if options.task is not None:
        check_task_reference(options.task)
    from esper.cli.assistant import make_server  # the extra `mcp`

    make_server(options.telemetry_dir, options.task).run("stdio")
    return EXIT_OK
