"""Text about a harvested network: its scores, its files, and its comparison with other networks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from esper.engine.growth import Variant
from esper.formatting import align_columns
from esper.harvest.structure import GrownStructure


def format_harvest(structure: GrownStructure, directory: Path, problem: str | None) -> str:
    """Return the scores, the seeds and the directory of a harvested network, in a few lines.

    Args:
        structure: Structure of the network.
        directory: Directory of its files.
        problem: Why it could not be exported as a program; None if it was.
    """
    origin = structure.provenance
    seeds = ", ".join(f"{seed.blueprint} in {seed.slot}" for seed in structure.seeds) or "none"
    lines = [
        f"env {origin.env} of {origin.run}, round {origin.round}, step {origin.step}: {structure.score_name} "
        f"{structure.test_score:.1%} on the test split, {structure.validation_score:.1%} on the validation split",
        f"seeds: {seeds}; {structure.parameters:,} parameters, {structure.parameter_ratio:.2f} times those of the host",
        f"written to {directory}: see README.md there for how to load it",
    ]
    if problem:
        lines.append(f"no program without esper-sanctum: {problem}")
    return "\n".join(lines)


def format_comparison(variants: Sequence[Variant], score_name: str) -> str:
    """Return a table of a grown network and of the networks it is compared with.

    Args:
        variants: Rows of the table.
        score_name: Name of the task's score.
    """
    rows = [("", f"test {score_name}", "parameters", "seconds")]
    rows += [
        (variant.name, f"{variant.test_score:.1%}", f"{variant.parameters:,}", f"{variant.seconds:.1f}")
        for variant in variants
    ]
    return "\n".join(align_columns(rows, right=(1, 2, 3)))
