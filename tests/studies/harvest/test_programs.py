"""Harvested programs of real models, run in a process that cannot import esper."""

from __future__ import annotations

import importlib.util
import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save

from esper.networks.seeds.network import call_model, count_samples
from esper.networks.tasks import load_task
from esper.networks.tasks.data_loading import load_data
from esper.networks.tasks.splits import take
from esper.networks.tasks.task import Task
from esper.studies.harvest.program import seeded_output, significant_difference
from esper.studies.harvest.structure import PROGRAM_FILE
from tests.networks.tasks.models import text_task, transformer_task
from tests.networks.tasks.test_padding import lengthened
from tests.networks.tasks.test_real_models import GPT, MODULE, NEEDS
from tests.studies.harvest.networks import Branching, Jittery, grow_everywhere, vae_task

pytestmark = pytest.mark.slow

EXPORTED = ("mobilenet", "vit", "transformer", "lstm", "timm_resnet", "gpt2")
"""Models of different kinds; an export takes a quarter of a minute."""
RUN_WITHOUT_ESPER = """
import sys
from collections.abc import Callable
from pathlib import Path

sys.modules["esper"] = None  # importing it now raises ModuleNotFoundError
import torch
from safetensors.torch import load_file, save_file

program, inputs, outputs = map(Path, sys.argv[1:])
model = torch.export.load(program).module()
save_file({name: model(x) for name, x in load_file(inputs).items()}, outputs)
"""


@pytest.mark.parametrize("reference", [*(f"{MODULE}:{name}" for name in EXPORTED), GPT, "digits_impaired"])
def test_program_gives_the_logits_of_the_network_at_any_batch_size(reference: str, tmp_path: Path) -> None:
    if (package := NEEDS.get(reference.rpartition(":")[2])) and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed (group `models`)")
    task = load_task(reference)
    grown, _ = grow_everywhere(task)
    assert grown.structure.seeds
    assert grown.save(tmp_path / "grown") is None
    inputs = load_data(task, None)[0].validation[0]
    batches = {str(size): take(inputs, torch.arange(size) % count_samples(inputs)) for size in (1, 7, 128)}
    (tmp_path / "inputs").write_bytes(save({name: x.contiguous() for name, x in batches.items()}))
    script = [sys.executable, "-c", RUN_WITHOUT_ESPER, str(tmp_path / "grown" / PROGRAM_FILE)]
    subprocess.run([*script, str(tmp_path / "inputs"), str(tmp_path / "outputs")], check=True, cwd=tmp_path)
    found = load_file(tmp_path / "outputs")
    model = grown.model.eval()
    with torch.no_grad():
        for size, x in batches.items():
            torch.testing.assert_close(found[size], call_model(model, x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("make", [text_task, transformer_task])
def test_program_of_a_masked_network_takes_any_length_and_leaves_padding_out(
    make: Callable[[], Task], tmp_path: Path
) -> None:
    """The module is called with its inputs by name, by position, and without padding."""
    task = make()
    grown, network = grow_everywhere(task)
    assert grown.save(tmp_path / "grown") is None
    program = torch.export.load(tmp_path / "grown" / PROGRAM_FILE).module()
    x, _ = task.data(None).validation
    with torch.no_grad():
        expected = network(x, network.alphas())
        for by in (0, 3, 40):
            inputs = lengthened(x, by)
            called = (program(**inputs), grown.model(**inputs), grown.model(*inputs.values()))
            for output in called:
                torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-5)
        row = [tensor[:1, :3] for tensor in x.values()]
        torch.testing.assert_close(program(**dict(zip(x, row, strict=True))), grown.model(*row), rtol=1e-4, atol=1e-5)


def test_program_of_a_vae_draws_the_same_numbers(tmp_path: Path) -> None:
    grown, _ = grow_everywhere(vae_task())
    assert grown.save(tmp_path / "vae") is None
    program = torch.export.load(tmp_path / "vae" / PROGRAM_FILE).module()
    found, expected = (seeded_output(model, grown.sample, 5) for model in (program, grown.model.eval()))
    assert significant_difference(found, expected) is None
    assert significant_difference(found, seeded_output(program, grown.sample, 6)) is not None


def test_program_with_a_constant_for_a_random_number_is_refused(tmp_path: Path) -> None:
    problem = grow_everywhere(vae_task(Jittery))[0].save(tmp_path / "jittery")
    assert problem is not None
    assert problem.startswith("the outputs of the program differ from those of the model by")
    assert not (tmp_path / "jittery" / PROGRAM_FILE).exists()


def test_model_without_a_program_is_told_reason_line_and_advice(tmp_path: Path) -> None:
    problem = grow_everywhere(vae_task(Branching))[0].save(tmp_path / "branching")
    line = Branching.forward.__code__.co_firstlineno + 1
    assert problem is not None
    assert problem.startswith("GuardOnDataDependentSymNode: Could not guard on data-dependent expression ")
    assert f" ({inspect.getfile(Branching)}, line {line}); consider using " in problem
    assert "\n" not in problem
    assert "TORCH" not in problem
