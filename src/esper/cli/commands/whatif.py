"""`whatif RUN`: what decisions of a recording were worth, by simulation of its episodes with other decisions."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Sequence

from esper.cli.options import EXIT_FAILED, EXIT_OK, Parser, add_run_argument, print_warnings
from esper.cli.progress import progress_bar
from esper.cli.streams import print_json, print_text
from esper.common.configuration.config import ConfigError
from esper.recordings.events.codec import encode_json


def run(arguments: Sequence[str]) -> int:
    """Simulate what a question needs, and print the answer."""
    options = _parser().parse_args(arguments)
    rounds = _parse_rounds(options.rounds)

    from esper.studies.simulation.question import Inquiry, Question
    from esper.training.lanes.errors import FaultError

    names = ("run", "round", "env", "sample", "growth", "without", "do", "plan", "then", "repeats", "task", "devices")
    question = Question(rounds=rounds, **{name: getattr(options, name) for name in names})
    interrupted: KeyboardInterrupt | None = None
    try:
        with contextlib.redirect_stdout(sys.stderr):  # which the user's code may print to
            inquiry = Inquiry(question, options.telemetry_dir)
            with contextlib.closing(inquiry), progress_bar(inquiry.num_env_steps) as advance:
                try:
                    for line in inquiry.simulate(lambda count: advance("simulating", count)):
                        if sys.stderr.isatty():
                            print_text(line, sys.stderr)  # above the progress bar
                except KeyboardInterrupt as error:
                    interrupted = error
    except FaultError as fault:
        print_warnings([f"{fault.traceback_text or ''}{fault}"])
        return EXIT_FAILED
    if inquiry.storage_problem:
        print_warnings([inquiry.storage_problem])
    report = inquiry.report()
    if report is not None:
        if options.json:
            print_json(encode_json(report))
        else:
            print_text(str(report))
    if interrupted:
        print_warnings(["interrupted; the same command continues"])
        raise interrupted
    return EXIT_OK


def _parse_rounds(text: str | None) -> tuple[int, int] | None:
    """Return the first and the last round of `60-70`, or of `60`. Raises ConfigError."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", text)
    if found is None:
        raise ConfigError(f"--rounds {text!r} is not valid; expected for example 60-70")
    return int(found[1]), int(found[2] or found[1])


def _parser() -> Parser:
    parser = Parser(
        prog="esper-sanctum whatif",
        description="Compute what decisions of a recorded episode were worth, by simulating it without them",
        epilog="An episode of an env follows from its recorded decisions, so the effect of each is exact on the CPU "
        "with the same version of torch; the answer says so, or names the first step that differs. Without --without, "
        "--do or --plan, all decisions are left out in turn. Results are stored beside the run. "
        "See docs/what-if.md.",
    )
    add_run_argument(parser, "RUN")
    parser.add_argument("--round", type=int, metavar="N", help="round, from 1 (default: the last one that has ended)")
    parser.add_argument(
        "--env", type=int, metavar="N", help="env, from 0 (default: the one with the best final score of the round)"
    )
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="DECISION",
        help="decision to leave out: step:17, or seed:early:17 for all that concern a seed (may be repeated)",
    )
    parser.add_argument(
        "--do",
        action="append",
        default=[],
        metavar="DECISION",
        help="decision to take instead, as in a plan: 12:depthwise@early, 20:cull@mid, 20:wait (may be repeated)",
    )
    parser.add_argument("--plan", metavar="PLAN", help="plan that replaces all decisions, as in training")
    parser.add_argument(
        "--then",
        default="recorded",
        metavar="WHAT",
        help="what follows a change: recorded, where a decision that has become illegal waits; wait; policy, that of "
        "the run; or pretrained, a run, a checkpoint, FILE.py (default: recorded)",
    )
    parser.add_argument(
        "--repeats", type=int, default=0, metavar="N", help="simulate it on N other hosts and data orders too"
    )
    parser.add_argument("--rounds", metavar="A-B", help="effects over the episodes of these rounds, in groups")
    parser.add_argument("--sample", type=int, metavar="N", help="episodes of --rounds, drawn at random (default: all)")
    parser.add_argument(
        "--growth",
        action="store_true",
        help="whether growth helped: the episodes without growth of every host of --rounds (default: all), and the "
        "effects of the seeds of the last round",
    )
    parser.add_argument(
        "--task", metavar="TASK", help="task of the run, needed if it is your own code (FILE.py or MODULE:NAME)"
    )
    parser.add_argument(
        "--devices",
        nargs="+",
        default=["auto"],
        metavar="DEVICES",
        help="devices of the lanes (default: the CPU if the episode was recorded on one, else auto)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON that includes the course of each episode")
    return parser
