"""`harvest RUN --to DIR`: writes a grown network of a run as ordinary files."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

from esper.cli.options import (
    EXIT_OK,
    Parser,
    add_accept_changed_task_option,
    add_run_argument,
    open_checkpoint,
)
from esper.cli.streams import print_text
from esper.studies.harvest.structure import GrownStructure, check_target


def run(arguments: Sequence[str]) -> int:
    """Harvest a network, and print its scores and where it is."""
    options = _parser().parse_args(arguments)
    checkpoint = open_checkpoint(options.run, options.telemetry_dir, options.task)

    check_target(options.to)

    from esper.studies.harvest.checkpoint import harvest_checkpoint

    with contextlib.redirect_stdout(sys.stderr):  # which the user's code may print to
        grown = harvest_checkpoint(
            checkpoint,
            env=options.env,
            task_reference=options.task,
            accept_changed_task=options.accept_changed_task,
        )
        problem = grown.save(options.to)
    print_text(format_harvest(grown.structure, options.to, problem))
    return EXIT_OK


def _parser() -> Parser:
    parser = Parser(
        prog="esper-sanctum harvest",
        description="Write a grown network of a run as ordinary files: weights (safetensors), structure (JSON), a "
        "model card (Markdown), and a torch.export program that needs PyTorch only. The network comes from the run's "
        "newest checkpoint; a run that is still training is not touched.",
    )
    add_run_argument(parser, "RUN")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--env", type=int, metavar="ENV", help="index of the env")
    which.add_argument("--best", action="store_true", help="the env with the best validation score (default)")
    parser.add_argument("--to", type=Path, required=True, metavar="DIR", help="directory to write, new or empty")
    parser.add_argument(
        "--task", metavar="TASK", help="task of the run, needed if it is your own code (FILE.py or MODULE:NAME)"
    )
    add_accept_changed_task_option(parser)
    return parser


def format_harvest(structure: GrownStructure, directory: Path, problem: str | None) -> str:
    """Return the scores, the seeds and the directory of a harvested network, in a few lines.

    Args:
        problem: Why it could not be exported as a program; None if it was.
    """
    origin, scale = structure.provenance, structure.score_scale
    seeds = ", ".join(seed.label for seed in structure.seeds) or "none"
    lines = [
        f"env {origin.env} of {origin.run}, round {origin.round} step {origin.step}: {structure.score_name} "
        f"{scale.text(structure.test_score)} on the test split, {scale.text(structure.validation_score)} on the "
        "validation split",
        f"seeds: {seeds}; {structure.parameters:,} parameters, {structure.parameter_ratio:.2f} times those of the host",
        f"written to {directory}: see README.md there for how to load it",
    ]
    if problem:
        lines.append(f"no program without esper-sanctum: {problem}")
    return "\n".join(lines)
