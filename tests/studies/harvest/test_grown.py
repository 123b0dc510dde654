"""Files of a harvest: written, read again, and refused if damaged."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest
import torch
from torch import nn

import esper
from esper.common.domain import Stage
from esper.networks.seeds.cpu_convolution import Convolution
from esper.networks.seeds.layers import FastBatchNorm2d, Float32GroupNorm, PointwiseConv
from esper.networks.seeds.network import GrowingNetwork, call_model
from esper.networks.tasks import load_task
from esper.studies.harvest import grown as grown_module
from esper.studies.harvest.grown import Grown
from esper.studies.harvest.model import grown_seeds, load_grown
from esper.studies.harvest.program import describe_export_error, use_plain_layers
from esper.studies.harvest.structure import CARD_FILE, STRUCTURE_FILE, WEIGHTS_FILE, HarvestError, read_structure
from tests.networks.tasks.models import CLASSES, FEATURES, task
from tests.studies.harvest.networks import grow_everywhere, vae_task

CONSTANT = """Constraints violated (batch)! For more information, run with TORCH_LOGS="+dynamic".
  - You marked batch as dynamic but your code specialized it to be a constant (3). If you're using mark_dynamic, stop.

User stack:
  File "/home/ann/net.py", line 7, in forward
    return self.mix(x).reshape(3, -1)
  File "{torch}/functional.py", line 9, in reshape
Suggested fixes:
  batch = 3

The error above occurred when calling torch.export.export. If you would like to view some more information, read."""
CHECKS = """Could not guard on data-dependent expression u0 > 2 (unhinted: u0 > 2).  (Size-like symbols: none)

For C++ stack trace, run with TORCHDYNAMO_EXTENDED_DEBUG_CPP=1

The following call raised this error:
  File "/home/ann/net.py", line 8, in forward
    if count > 2:

To fix the error, insert one of the following checks before this call:
  1. torch._check(count > 2)
  2. torch._check(count <= 2)
"""
EXPORT_ERRORS = {
    CONSTANT: "RuntimeError: Constraints violated (batch) (/home/ann/net.py, line 7); You marked batch as dynamic but "
    "your code specialized it to be a constant (3)",
    CHECKS: "RuntimeError: Could not guard on data-dependent expression u0 > 2 (/home/ann/net.py, line 8); To fix the "
    "error, insert one of the following checks before this call: torch._check(count > 2), torch._check(count <= 2)",
    "no\nmore": "RuntimeError: no",
    "": "RuntimeError: no message",
}


@pytest.mark.parametrize(("message", "sentence"), EXPORT_ERRORS.items(), ids=["constant", "checks", "plain", "empty"])
def test_error_of_the_exporter_is_one_sentence_with_line_and_advice(message: str, sentence: str) -> None:
    error = RuntimeError(message.replace("{torch}", str(Path(torch.__file__).parent)))
    assert describe_export_error(error) == sentence


@pytest.fixture
def no_export(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the program out: exporting takes ten seconds."""
    monkeypatch.setattr(grown_module, "export_program", lambda *_: "not tried")


@pytest.fixture(scope="module")
def digits() -> tuple[Grown, GrowingNetwork]:
    """A network grown on digits, and the live one it comes from."""
    return grow_everywhere(load_task("digits_impaired"))


@pytest.fixture(scope="module")
def grown(digits: tuple[Grown, GrowingNetwork]) -> Grown:
    return digits[0]


@pytest.fixture(scope="module")
def saved(grown: Grown, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of a harvest without a program, not to be changed."""
    directory = tmp_path_factory.mktemp("saved") / "grown"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(grown_module, "export_program", lambda *_: "not tried")
        assert grown.save(directory) == "not tried"
    return directory


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Path:
    """A copy of the saved files, which a test may damage."""
    return shutil.copytree(saved, tmp_path / "grown")


def test_grown_model_equals_the_live_network_bit_for_bit(digits: tuple[Grown, GrowingNetwork]) -> None:
    grown, live = digits
    with torch.no_grad():
        expected = live(grown.sample, live.alphas())
        assert torch.equal(call_model(grown.model.eval(), grown.sample), expected)
    assert [seed.blend for seed in grown.structure.seeds] == ["add", "multiply", "gate"][: len(live.slots)]


def test_rebuilt_model_has_the_same_bits_and_trains(grown: Grown, saved: Path) -> None:
    model = esper.load_grown(saved, "digits_impaired")
    with torch.no_grad():
        assert torch.equal(model.eval()(grown.sample), grown.model.eval()(grown.sample))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = [parameter.clone() for parameter in model.parameters()]
    model.train()(grown.sample).sum().backward()
    optimizer.step()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.usefixtures("no_export")
def test_model_with_weights_tied_by_data_is_saved_and_rebuilt(tmp_path: Path) -> None:
    def tied() -> nn.Module:
        first, second = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)
        second.weight.data = first.weight.data
        return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Linear(FEATURES, CLASSES))

    own = task(tied, {"first": "1", "second": "3"})
    grown, _ = grow_everywhere(own)

    grown.save(tmp_path / "grown")

    model = load_grown(tmp_path / "grown", own)
    with torch.no_grad():
        assert torch.equal(model.eval()(grown.sample), grown.model.eval()(grown.sample))


def test_random_constant_in_a_buffer_is_harvested() -> None:
    class Scaled(nn.Linear):
        scale: torch.Tensor

        def __init__(self) -> None:
            super().__init__(FEATURES, CLASSES)
            self.register_buffer("scale", torch.rand(CLASSES))

        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return self.scale * super().forward(input)

    own = task(lambda: nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.ReLU(), Scaled()), {"first": "1"})
    grown, live = grow_everywhere(own)
    with torch.no_grad():
        assert torch.equal(call_model(grown.model.eval(), grown.sample), live(grown.sample, live.alphas()))


@pytest.mark.usefixtures("no_export")
def test_card_of_a_network_that_draws_says_so(tmp_path: Path) -> None:
    (grown, _), (again, _) = grow_everywhere(vae_task()), grow_everywhere(vae_task())
    assert grown.structure == again.structure  # the scores do not depend on the numbers that were drawn before
    grown.save(tmp_path / "vae")
    assert "two calls with the same inputs differ" in (tmp_path / "vae" / CARD_FILE).read_text()
    assert read_structure(tmp_path / "vae").is_random
    assert "two calls" not in repr(grow_everywhere(task())[0])  # its dropout is off in evaluation mode


def test_structure_and_card_say_what_was_grown(digits: tuple[Grown, GrowingNetwork], saved: Path) -> None:
    grown, live = digits
    structure = read_structure(saved)
    assert structure == grown.structure
    assert structure.parameters == sum(parameter.numel() for parameter in live.parameters())
    card = (saved / CARD_FILE).read_text()
    assert "not tried" in card
    assert f"{structure.test_score:.2%}" in card
    assert all(seed.blueprint in card for seed in structure.seeds)
    assert repr(grown) in card
    assert unescape(grown._repr_html_()) == f"<pre>{grown!r}</pre>"


def card_snippet(directory: Path) -> str:
    """Return the code of the model card that loads the network."""
    loading = (directory / CARD_FILE).read_text().partition("## To train it further")[2]
    return loading.partition("```python\n")[2].partition("```")[0]


OWN_TASK = """
from dataclasses import replace
from esper.networks.tasks import load_task

task = replace(load_task("digits_impaired"), name="own")
"""


@pytest.mark.slow
@pytest.mark.usefixtures("no_export")
def test_code_of_the_card_loads_the_network_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_task_of_the_card.py").write_text(OWN_TASK)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    grown, _ = grow_everywhere(load_task("own_task_of_the_card.py"))
    grown.save("results/net")
    code = card_snippet(tmp_path / "results" / "net") + "print(sum(p.numel() for p in model.parameters()))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path / "results" / "net", capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, f"{grown.structure.parameters}\n"), done.stderr


@pytest.mark.usefixtures("no_export")
def test_card_of_a_session_task_asks_for_the_task(tmp_path: Path) -> None:
    own = task()
    grow_everywhere(own)[0].save(tmp_path)
    assert "`task` is the task own of your Python session" in (tmp_path / CARD_FILE).read_text()
    scope = {"task": own}
    exec(card_snippet(tmp_path).replace('"."', repr(str(tmp_path))), scope)
    assert "model" in scope


def test_seeds_without_effect_are_left_out() -> None:
    _, live = grow_everywhere(load_task("digits_impaired"))
    live.slots[0].stage = Stage.TRAINING
    assert [seed.slot for seed in grown_seeds(live.slots)] == [slot.name for slot in live.slots[1:]]


@pytest.mark.usefixtures("no_export")
def test_directory_with_files_is_refused(grown: Grown, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(HarvestError, match="is not empty"):
        grown.save(tmp_path)
    with pytest.raises(HarvestError, match="is not a directory"):
        grown.save(tmp_path / "mine.txt")
    assert (tmp_path / "mine.txt").read_text() == "mine"


@pytest.mark.usefixtures("no_export")
def test_save_leaves_a_neighbour_alone_and_has_usual_permissions(grown: Grown, tmp_path: Path) -> None:
    (tmp_path / "net.partial").mkdir()
    (tmp_path / "net.partial" / "mine.txt").write_text("mine")
    grown.save(tmp_path / "net")
    assert (tmp_path / "net.partial" / "mine.txt").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net", "net.partial"]
    assert (tmp_path / "net").stat().st_mode == (tmp_path / "net.partial").stat().st_mode


def test_interrupted_save_leaves_nothing_behind(grown: Grown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(grown_module, "export_program", interrupt)
    with pytest.raises(KeyboardInterrupt):
        grown.save(tmp_path / "net")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_export")
def test_empty_current_directory_and_link_to_one_can_be_written(
    grown: Grown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to("target")
    grown.save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target" / CARD_FILE).exists()
    (tmp_path / "net").mkdir()
    monkeypatch.chdir(tmp_path / "net")
    grown.save(".")
    assert esper.load_grown(tmp_path / "net", load_task("digits_impaired"))


def test_damaged_foreign_and_newer_files_are_refused(copy: Path, tmp_path: Path) -> None:
    directory = copy
    with pytest.raises(HarvestError, match="does not fit the network: the tensor"):
        load_grown(directory, "synthetic")
    weights = (directory / WEIGHTS_FILE).read_bytes()
    (directory / WEIGHTS_FILE).write_bytes(weights[: len(weights) // 2])
    with pytest.raises(HarvestError, match="is damaged"):
        load_grown(directory, "digits_impaired")
    (directory / WEIGHTS_FILE).unlink()
    with pytest.raises(HarvestError, match="cannot be read"):
        load_grown(directory, "digits_impaired")
    structure = json.loads((directory / STRUCTURE_FILE).read_text())
    (directory / STRUCTURE_FILE).write_text(json.dumps(structure | {"format": 99}))
    with pytest.raises(HarvestError, match="has format 99; this version reads 1"):
        read_structure(directory)
    (directory / STRUCTURE_FILE).write_text("{")
    with pytest.raises(HarvestError, match="is not the structure"):
        read_structure(directory)
    with pytest.raises(HarvestError, match="is not a harvested network"):
        read_structure(tmp_path)


def test_frozen_host_is_trainable_after_the_harvest(tmp_path: Path) -> None:
    grown, _ = grow_everywhere(load_task("tests.networks.tasks.real_models:frozen"))
    assert all(parameter.requires_grad for parameter in grown.model.parameters())


@pytest.mark.parametrize(
    ("layer", "channels", "plain"),
    [
        (Convolution(4, 6, 3), 4, nn.Conv2d),
        (Convolution(4, 4, 3, groups=4), 4, nn.Conv2d),
        (PointwiseConv(4, 6), 4, nn.Conv2d),
        (PointwiseConv(4, 6, bias=True), 4, nn.Conv2d),
        (FastBatchNorm2d(4), 4, nn.BatchNorm2d),
        (Float32GroupNorm(2, 4), 4, nn.GroupNorm),
    ],
)
def test_plain_layers_compute_the_same(layer: nn.Module, channels: int, plain: type[nn.Module]) -> None:
    x = torch.randn(5, channels, 8, 8, generator=torch.Generator().manual_seed(0))
    if isinstance(layer, nn.BatchNorm2d):
        layer(x)  # running statistics that are not the initial ones
    model = nn.Sequential(layer).eval()
    expected = model(x)
    use_plain_layers(model)
    assert type(model[0]) is plain
    torch.testing.assert_close(model(x), expected, rtol=1e-5, atol=1e-5)


HOSTILE_SEEDS = {
    "no channels": ({"channels": 0}, "is not the structure"),
    "negative channels": ({"channels": -14}, "is not the structure"),
    "more channels than a number holds": ({"channels": 2**63}, "is not the structure"),
    "more channels than the memory holds": ({"channels": 2**20}, "does not fit the network"),
    "slot with a dot": ({"slot": "ear.ly"}, "does not fit the network"),
    "module of no host": ({"module": "segments.99"}, "does not fit the network"),
    "alpha above 1": ({"alpha": 2.0}, "is not the structure"),
}


@pytest.mark.parametrize(("change", "sentence"), HOSTILE_SEEDS.values(), ids=HOSTILE_SEEDS)
def test_hostile_seed_is_refused(copy: Path, change: dict[str, object], sentence: str) -> None:
    path = copy / STRUCTURE_FILE
    structure = json.loads(path.read_text())
    structure["seeds"][0] |= change
    path.write_text(json.dumps(structure))
    with pytest.raises(HarvestError, match=sentence):
        esper.load_grown(copy, "digits_impaired")


@pytest.mark.parametrize("name", [STRUCTURE_FILE, WEIGHTS_FILE])
def test_a_pipe_in_the_place_of_a_file_is_refused(copy: Path, name: str) -> None:
    (copy / name).unlink()
    os.mkfifo(copy / name)
    with pytest.raises(HarvestError, match="cannot be read: it is not a regular file"):
        esper.load_grown(copy, "digits_impaired")
