"""The model card of a harvest: a page of Markdown about the network, its scores, and how to load it."""

from __future__ import annotations

import json

from esper.common.formatting import pluralise
from esper.studies.harvest.structure import PROGRAM_FILE, STRUCTURE_FILE, WEIGHTS_FILE, GrownStructure


def format_card(structure: GrownStructure, absolute_reference: str | None, problem: str | None) -> str:
    """Return the model card.

    Args:
        absolute_reference: Reference that names the task from every directory; None for a task of a Python session.
        problem: Why the network could not be exported as a program; None if it was.
    """
    parts = [f"# {structure.task}, grown", describe_structure(structure)]
    parts += [_format_program(problem), _format_loading(structure.task, absolute_reference)]
    return "\n\n".join(parts) + "\n"


def describe_structure(structure: GrownStructure) -> str:
    """Return the origin of a network, its scores and its seeds, as Markdown."""
    origin = structure.provenance
    task = structure.reference or structure.task
    seeds = pluralise(len(structure.seeds), "seed") if structure.seeds else "no seeds"
    parts = [
        f"A network of the task `{task}` with {seeds}, grown by esper-sanctum {origin.version}: "
        f"run `{origin.run}`, env {origin.env}, round {origin.round}, after step {origin.step}, policy "
        f"`{origin.policy}`, random seed {origin.seed}.",
        _format_scores(structure),
    ]
    if origin.answer:
        parts.insert(1, f"It was chosen by fresh trainings, on the validation split: {origin.answer}.")
    if structure.is_random:
        parts.append(
            "The network draws random numbers: two calls with the same inputs differ. `torch.manual_seed` makes them "
            "equal. The scores were measured with one random seed."
        )
    if structure.seeds:
        parts.append(_format_seeds(structure))
    return "\n\n".join(parts)


def _format(structure: GrownStructure, score: float) -> str:
    """Return a score with two decimals in percent, or as it is."""
    return f"{score:.2%}" if structure.score_scale.is_percent else structure.score_scale.text(score)


def _format_scores(structure: GrownStructure) -> str:
    return "\n".join(
        (
            "| | |",
            "|---|---|",
            f"| {structure.score_name}, test split | {_format(structure, structure.test_score)} |",
            f"| {structure.score_name}, validation split (used to select the network) | "
            f"{_format(structure, structure.validation_score)} |",
            f"| parameters of the host | {structure.host_parameters:,} |",
            f"| parameters with seeds | {structure.parameters:,} (×{structure.parameter_ratio:.2f}) |",
            *(f"| {name.replace('_', ' ')} of the training | `{words}` |" for name, words in structure.recipe.items()),
        )
    )


def _format_seeds(structure: GrownStructure) -> str:
    rows = [
        f"| {seed.slot} | `{seed.module}` | {seed.blueprint} | {seed.blend}, alpha {seed.alpha:.3g} | "
        f"{seed.parameters:,} |"
        for seed in structure.seeds
    ]
    return "\n".join(("| slot | after module | blueprint | blend | parameters |", "|---|---|---|---|---|", *rows))


def _format_program(problem: str | None) -> str:
    if problem:
        return f"## Without esper-sanctum\n\nThe network could not be exported as a `torch.export` program: {problem}."
    return f"""## Without esper-sanctum

`{PROGRAM_FILE}` is a `torch.export` program. It needs PyTorch only, and takes batches of any size, and
sequences of other lengths if the model does (not with recurrent layers, which `torch.export` unrolls).

```python
import torch

model = torch.export.load("{PROGRAM_FILE}").module()
output = model(inputs)
```

Load only programs that you made or whose source you trust: `torch.export.load` is not safe to use on files from
strangers."""


def _format_loading(task: str, reference: str | None) -> str:
    argument = json.dumps(reference, ensure_ascii=False) if reference else "task"
    given = "" if reference else f", where `task` is the task {task} of your Python session"
    return f"""## To train it further

`{WEIGHTS_FILE}` and `{STRUCTURE_FILE}` contain no code. With the task, they give an ordinary `nn.Module`. Run
this in the directory of this file{given}:

```python
import esper

model = esper.load_grown(".", {argument})
```"""
