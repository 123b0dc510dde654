"""Tasks that the user names: files, modules and their digests. Nothing else is imported."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from esper.common.configuration.config import TaskError
from esper.networks.tasks.loading import check_task_reference, describe_changes, load_source, load_task

TASK_FILE = """
import torch
from torch import nn

import esper
from {helper} import width


def data(directory):
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    split = (x, (x[:, 0] > 0).long())
    return esper.Splits(train=split, validation=split, test=split)


def model():
    return nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 2))


task = esper.Task(
    name="signs", model=model, slots={{"hidden": "1"}}, data=data, optimizer=esper.SGD(0.05),
    seed_optimizer=esper.SGD(0.05), batch_size=20,
)
other = "not a task"
"""


@pytest.fixture(autouse=True)
def forget_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Remove the modules that a test imports."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in set(sys.modules) - before:
        if name.startswith(("own_", "shared_")):
            del sys.modules[name]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A task file with a module beside it."""
    (tmp_path / "shared_width.py").write_text("width = 8\n")
    path = tmp_path / "own_signs.py"
    path.write_text(TASK_FILE.format(helper="shared_width"))
    return path


def refusal(reference: str) -> str:
    with pytest.raises(TaskError) as error:
        load_task(reference)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_file_and_attribute_name_the_same_task(file: Path) -> None:
    task = load_task(str(file))
    assert task.name == "signs"
    assert task.source is not None
    assert task.source.absolute == f"{file}:task"
    assert set(task.source.digests) == {"own_signs.py", "shared_width.py"}
    assert load_task(f"{file}:task").source == replace(task.source, reference=f"{file}:task")


def test_module_reference_imports_the_module(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(file.parent))
    assert load_task("own_signs:task").name == "signs"
    assert "module 'own_missing' not found" in refusal("own_missing:task")


@pytest.mark.parametrize("missing", ["own_lang", "own_languages"])
def test_missing_import_of_a_file_is_not_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    """The name of the missing module is that of the file, or its beginning."""
    path = tmp_path / "own_languages.py"
    path.write_text(f"import {missing}.tokens\n")
    monkeypatch.chdir(tmp_path)
    text = refusal(path.name)
    assert f"ModuleNotFoundError: No module named '{missing}" in text
    assert f"({path}, line 1)" in text


def test_missing_import_of_a_module_is_not_the_module(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(file.parent))
    (file.parent / "own_languages.py").write_text("import own_lang\n")
    assert "ModuleNotFoundError: No module named 'own_lang' (" in refusal("own_languages:task")
    assert "module 'own_nothing.words' not found" in refusal("own_nothing.words:task")


def test_error_below_a_directory_named_esper_has_its_line(tmp_path: Path) -> None:
    (tmp_path / "esper").mkdir()
    path = tmp_path / "esper" / "own_division.py"
    path.write_text("\n1 / 0\n")
    assert f"ZeroDivisionError: division by zero ({path}, line 2)" in refusal(str(path))


def test_module_with_relative_imports_is_loaded_again_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker process loads the task from its source. The stem of the file is the name of a standard module."""
    package = tmp_path / "own_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "width.py").write_text("width = 8\n")
    (package / "types.py").write_text(TASK_FILE.format(helper=".width"))
    monkeypatch.syspath_prepend(str(tmp_path))
    source = load_task("own_package.types:task").source
    assert source is not None
    for name in [name for name in sys.modules if name.startswith("own_package")]:
        del sys.modules[name]
    assert load_source(source).source == source


def test_built_in_tasks_have_no_source() -> None:
    assert load_task("digits").source is None


def test_a_changed_helper_changes_the_digest_and_is_named(file: Path) -> None:
    source = load_task(str(file)).source
    assert source is not None
    assert load_source(source).source == source
    (file.parent / "shared_width.py").write_text("width = 16\n")
    with pytest.raises(TaskError, match=r"changed while the run was starting: shared_width.py changed"):
        load_source(source)


@pytest.mark.slow
def test_script_beside_the_task_does_not_belong_to_it(file: Path) -> None:
    """`python train_signs.py`, which trains the task on two lanes: the worker does not import the script."""
    script = file.parent / "train_signs.py"
    lines = ("import sys", "sys.path.insert(0, '.')", "import shared_helper", "import esper")
    options = "policy='static', envs=2, rounds=1, steps=1, devices=('cpu:0', 'cpu:1'), telemetry_dir='runs'"
    script.write_text("\n".join((*lines, f"esper.train('own_signs.py', {options})")))
    (file.parent / "shared_helper.py").write_text("")
    done = subprocess.run([sys.executable, script.name], cwd=file.parent, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_changes_are_described_by_kind() -> None:
    before, after = {"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "9", "d": "4"}
    assert describe_changes(before, after) == "b changed; d added; c removed"
    assert describe_changes(before, before) == ""


def test_references_that_do_not_exist_are_refused_with_the_nearest_name(file: Path) -> None:
    assert "did you mean digits" in refusal("digitss")
    assert "has no attribute 'tsk'; did you mean task" in refusal(f"{file}:tsk")
    assert "other is a str, not an esper.Task" in refusal(f"{file}:other")
    assert "no such file" in refusal(str(file.with_name("missing.py")))
    with pytest.raises(TaskError, match="no such file"):
        check_task_reference("missing.py")
    check_task_reference(str(file))
    assert "own_signs" not in {name for name in sys.modules if name == "own_missing"}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("1 / 0\n", "ZeroDivisionError: division by zero ("),
        ("import own_nothing\n", "ModuleNotFoundError: No module named 'own_nothing' ("),
        ("def broken(:\n", "SyntaxError"),
        (TASK_FILE.format(helper="shared_width").replace('"signs"', '"digits"'), "that of a built-in task"),
        (TASK_FILE.format(helper="shared_width").replace('"signs"', '"a b"'), "name must consist of letters"),
    ],
)
def test_errors_in_the_users_code_are_one_sentence(file: Path, content: str, sentence: str) -> None:
    broken = file.with_name("own_broken.py")
    broken.write_text(content)
    text = refusal(str(broken))
    assert sentence in text
    assert str(broken) in text


@pytest.mark.parametrize(
    ("field", "problem"),
    [
        ('slots=["hidden"]', "slots must be a dict from names to paths of submodules, not a list"),
        ('slots={"hidden": 1}', "slots['hidden'] must be the path of a submodule or esper.Slot(path), not an int"),
        ('slots={"1st": "1"}', "'1st' is not a valid name of a slot; use letters, digits and _, and no digit at the"),
        (
            "optimizer=torch.optim.SGD",
            "esper.AdamW(learning_rate) or esper.Optimizer(class, lr=…), not the class torch.optim.sgd",
        ),
        ('train="head"', 'train must be True, False or a list of paths, as in train=["head"], not a str'),
        ('blueprints="norm"', "blueprints must be a list of names"),
        ("chance=(0.7, 0.5)", "chance must be esper.Chance(loss, score), not a tuple"),
        ("cuda_graphs=True", "cuda_graphs must be 'auto' or 'off', got True"),
        ('batch_size="20"', "batch_size must be a whole number, not a str"),
        ("metrics=[len]", "metrics must be a dict from names to functions, not a list"),
    ],
)
def test_field_of_a_wrong_type_is_refused_with_its_file(file: Path, field: str, problem: str) -> None:
    wrong = file.with_name("own_wrong.py")
    name = field.partition("=")[0]
    task = f"(lambda **fields: esper.Task(**(fields | dict({field}))))("
    wrong.write_text(file.read_text().replace("esper.Task(", task))
    text = refusal(str(wrong))
    assert f"task 'signs': {name}" in text
    assert problem in text
    assert f"({wrong}, line " in text


def test_file_named_like_another_module_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "json.py"
    path.write_text("task = 1\n")
    assert "has the name of another module, 'json'" in refusal(str(path))


def test_checking_a_reference_imports_nothing(tmp_path: Path) -> None:
    path = tmp_path / "own_poison.py"
    path.write_text("raise AssertionError\n")
    check_task_reference(str(path))
    check_task_reference(f"{path}:task")
