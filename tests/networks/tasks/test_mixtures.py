"""Mixtures of tasks: a family whose structures differ in data, loss, score and layout."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from esper.networks.tasks import TaskError, is_built_in, load_task
from esper.networks.tasks.contexts import draw_context
from esper.networks.tasks.data_loading import load_data
from esper.networks.tasks.family import TaskFamily
from esper.networks.tasks.loading import load_source
from esper.networks.tasks.probe import probe_task
from esper.networks.tasks.splits import read_data, write_data

OWN_TASK = """
from dataclasses import replace
from esper.networks.tasks import load_task
task = replace(load_task("digits"), name="mine")
"""


def mixture(reference: str) -> TaskFamily:
    task = load_task(reference)
    assert isinstance(task, TaskFamily)
    return task


def test_mixture_has_the_structures_and_data_of_its_tasks() -> None:
    task = mixture("digits_impaired+recall+digits")
    assert task.name == "digits_impaired+recall+digits"
    assert [structure.name for structure in task.structures] == ["digits_impaired", "recall", "digits"]
    data = load_data(task, None)
    assert data[0] is data[2]
    assert data[0] is not data[1]
    assert data[1].train[0].dtype is torch.int64
    profile = probe_task(task, data)
    assert {len(structure.sites) for structure in profile.structures} >= {3}
    assert profile.structures[0].chance != profile.structures[1].chance
    assert set(profile.structures[1].sites[0].blueprints) < set(profile.blueprints)
    names = [site.name for site in profile.sites]
    assert all([site.name for site in found.sites] == names[: len(found.sites)] for found in profile.structures)


def test_family_of_the_shipped_policy_has_four_layouts_and_a_rent_everywhere() -> None:
    task = mixture(str(Path(__file__).parents[3] / "research" / "generalist.py"))
    profile = probe_task(task, load_data(task, None))
    layouts = {site.layout for found in profile.structures for site in found.sites}
    assert layouts == {"BCHW", "BCL", "BTC", "BC"}
    for host in range(20):
        context = draw_context(task, 1, host, 0)
        assert "rent" in context.settings
        assert ("source" in context.settings) == (profile.structures[context.structure].sites[0].layout == "BCHW")


def test_settings_apply_to_the_structures_of_their_own_task() -> None:
    task = mixture("digits_family+recall")
    seen: dict[str, set[str]] = {}
    for round_index in range(40):
        context = draw_context(task, 0, 0, round_index)
        seen.setdefault(task.structures[context.structure].name, set()).update(context.settings)
    assert seen.pop("recall") == set()
    assert len(seen) == 4
    assert all(names == {"source", "shift", "samples", "noise", "learning_rate"} for names in seen.values())


def test_score_of_different_tasks_is_called_score() -> None:
    names = {structure.score_name for structure in mixture("digits+recall").structures}
    assert mixture("digits+recall").score_name == (names.pop() if len(names) == 1 else "score")


@pytest.mark.parametrize(
    ("reference", "problem"),
    [
        ("digits+digits", "two structures are named 'digits'"),
        ("digits_family+digits_family", "two of the tasks have a setting 'source'"),
        ("digits+digitz", "unknown task 'digitz'; did you mean digits?"),
    ],
)
def test_wrong_mixtures_are_refused(reference: str, problem: str) -> None:
    with pytest.raises(TaskError) as error:
        load_task(reference)
    assert problem in str(error.value)
    assert "\n" not in str(error.value)


def test_own_tasks_can_be_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_mixed.py").write_text(OWN_TASK)
    monkeypatch.chdir(tmp_path)
    task = load_task("own_mixed.py+recall")
    assert not is_built_in("own_mixed.py+recall")
    assert (task.name, task.source and task.source.reference) == ("mine+recall", "own_mixed.py+recall")
    assert task.source
    assert set(task.source.digests) == {"own_mixed.py"}
    monkeypatch.chdir("/")
    assert load_source(task.source).source == task.source


def test_plus_in_a_path_is_not_a_mixture(tmp_path: Path) -> None:
    directory = tmp_path / "c++"
    directory.mkdir()
    (directory / "own_plus.py").write_text(OWN_TASK)
    assert load_task(f"{directory}/own_plus.py").name == "mine"
    assert load_task(f"{directory}/own_plus.py:task").name == "mine"


def test_written_data_stay_shared(tmp_path: Path) -> None:
    data = load_data(load_task("digits_impaired+recall+digits"), None)
    with (tmp_path / "data").open("wb") as file:
        write_data(data, file)
    alone = sum(tensor.nbytes for splits in data[:2] for pair in vars(splits).values() for tensor in pair)
    assert (tmp_path / "data").stat().st_size < 1.1 * alone
    found = read_data(tmp_path / "data")
    assert len(found) == 3
    assert found[0] is found[2]
    assert torch.equal(found[2].train[0], data[0].train[0])
