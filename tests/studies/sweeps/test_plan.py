"""The file of a sweep: its settings, and the sentences that refuse a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest

from esper.common.configuration.config import ConfigError
from esper.studies.sweeps.jobs import make_jobs
from esper.studies.sweeps.plan import ValueRange
from tests.studies.sweeps.fakes import GRID, make_plan

WRONG = {
    'sampler = "gird"\n': "sampler = 'gird' in {file} is not valid; did you mean grid?",
    'objective = "scores"\n': "objective = 'scores' in {file} is not valid; did you mean score?",
    "sample = 1\n": "unknown key 'sample' in {file}; did you mean sampler?",
    "rounds = 3\n": "'rounds' in {file} is an option of the runs; move it to [run] or [vary]",
    "[ppo]\ngamma = 0.5\n": "'ppo' in {file} is an option of the runs; move it to [run] or [vary]",
    'objectives = "score"\n': "objectives = 'score' in {file} is not valid: it must be a list, not a text",
    'objectives = ["scores"]\n': "objectives = ['scores'] in {file} is not valid; did you mean score?",
    "seeds = []\n": "seeds = [] in {file} is not valid: it must be a list of length >= 1",
    "seeds = [1, 1]\n": "seeds in {file} has a random seed twice; remove one",
    'name = "../x"\n': "name '../x' in {file} is not valid; use letters, digits, -, _ and ., and no",
    'name = "-x"\n': "name '-x' in {file} is not valid; use letters",
    f'name = "{"x" * 101}"\n': "name in {file} has 101 characters; the limit is 100",
    "settings = 3\n": "settings in {file} is for sampler = random or tpe; a grid has all combinations",
    'sampler = "tpe"\n': "{file} needs settings = N, the number of settings to draw with sampler = 'tpe'",
    'objective = "score"\nobjectives = ["score"]\n': "{file} has both objective and objectives; remove one",
    'objectives = ["score", "score"]\n': "objectives in {file} has score twice; remove one",
    'prune = true\nobjectives = ["score", "return"]\n': "prune in {file} needs one objective; Optuna does not",
    "[runs]\n": "unknown key 'runs' in {file}; did you mean run?",
    "[run]\nseed = 3\n": "'seed' cannot be in [run] of {file}; list the random seeds in seeds = [1, 2, 3], outside",
    '[vary]\ntelemetry-dir = ["a"]\n': "'telemetry-dir' cannot be in [vary] of {file}; give it to the command: ",
    "[run]\nppo.hiden = 3\n": "unknown option 'ppo.hiden' in [run] of {file}; did you mean ppo.hidden?",
    "[vary]\nround = [3]\n": "unknown option 'round' in [vary] of {file}; did you mean rounds?",
    "[vary]\nenvs = 3\n": "envs in [vary] of {file} must be a list of values, such as [0.1, 0.2], or a range: ",
    "[vary]\nenvs = []\n": "envs in [vary] of {file} must be a list of values",
    "[vary]\nenvs = [3, 3]\n": "envs in [vary] of {file} has a value twice; remove one",
    '[vary]\nslots = [["early"]]\n': "slots in [vary] of {file} has the value ['early']; only numbers and",
    '[vary]\ndevices = ["cpu:0"]\n': "devices in [vary] of {file} cannot vary, because it does not change what is",
    "[vary]\nppo = 3\n": "'ppo' in [vary] of {file} is a table of options; give one of them, such as ppo.",
    "[vary]\nenvs = [0, 3]\n": "envs = 0 in {file} is not valid: it must be a whole number >= 1",
    "[vary]\nenvs = { low = 1, high = 3 }\n": "envs in [vary] of {file} is a range, which a grid cannot have; ",
    f"seeds = {[*range(5001)]}\n": "the grid of {file} has 10,002 trials (settings × random seeds), and",
    "[run]\nenvs = 3\n[vary]\nenvs = [3]\n": "envs is in [run] and in [vary] of {file}; remove one",
    "[run]\nenvs = 3\n": "{file} varies nothing; list options in [vary], such as ",
    '[vary]\nppo.horizon = ["continuing"]\n': "--ppo.horizon continuing needs a --ppo.gamma below 1",
}
WRONG_RANGES = {
    "{ low = 1, hgh = 2 }": "unknown key 'hgh' of envs in [vary] of {file}; did you mean high?",
    "{ low = 1 }": "envs in [vary] of {file} has no high; a range is",
    "{ low = 1.5, high = 3 }": "envs in [vary] of {file} is a whole number; low = 1.5 is not",
    "{ low = 3, high = 3 }": "envs in [vary] of {file} needs a low below high, not 3 and 3",
    "{ low = -3, high = 3, log = true }": "envs in [vary] of {file} needs a low above 0 for log = true, not -3",
    "{ low = 1, high = 3, log = true, step = 1 }": "envs in [vary] of {file} cannot have both log and step; remove one",
    "{ low = 1, high = 3, step = 5 }": "envs in [vary] of {file} needs a step above 0 and up to 2, not 5",
    "{ low = 1, high = 8, step = 3 }": "envs in [vary] of {file} does not reach high = 8 in steps of 3; the last",
    "{ low = 0, high = 3 }": "envs = 0 in {file} is not valid: it must be a whole number >= 1",
}


@pytest.mark.parametrize("text", WRONG)
def test_wrong_file_is_refused_with_one_sentence(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        make_plan(tmp_path, text if "[vary]" in text or "varies" in WRONG[text] else f"{text}[vary]\nenvs = [2, 3]\n")
    assert str(refused.value).startswith(WRONG[text].format(file=tmp_path / "s.toml"))


@pytest.mark.parametrize("text", WRONG_RANGES)
def test_wrong_range_is_refused_with_one_sentence(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        make_plan(tmp_path, f'sampler = "tpe"\nsettings = 3\n[vary]\nenvs = {text}\n')
    assert str(refused.value) == WRONG_RANGES[text].format(file=tmp_path / "s.toml") or str(refused.value).startswith(
        WRONG_RANGES[text].format(file=tmp_path / "s.toml")
    )


def test_options_can_be_tables_or_dotted_keys(tmp_path: Path) -> None:
    plan = make_plan(
        tmp_path,
        'sampler = "random"\nsettings = 3\n[run]\n"ppo.hidden" = 16\n[run.ppo]\nepochs = 2\n'
        "[vary]\nppo.clip = [0.1]\ntraining.momentum = { low = 0, high = 0.5 }\n[vary.ppo.minibatches]\n"
        "low = 1\nhigh = 4\n",
    )
    assert plan.run == {"ppo.hidden": 16, "ppo.epochs": 2}
    assert plan.vary["ppo.clip"] == (0.1,)
    ranges = [plan.vary["training.momentum"], plan.vary["ppo.minibatches"]]
    assert [isinstance(values, ValueRange) and values.is_integer for values in ranges] == [False, True]


def test_measures_are_averaged_over_rounds_that_exist(tmp_path: Path) -> None:
    assert make_plan(tmp_path, GRID.replace("over = 2", "over = 5")).over == 3


def test_value_may_need_a_value_of_another_option(tmp_path: Path) -> None:
    text = 'sampler = "random"\nsettings = 3\n[run]\nppo.horizon = "continuing"\n[vary]\nppo.gamma = '
    assert make_plan(tmp_path, text + "{ low = 0.8, high = 0.9 }\nppo.clip = [0.1]\n").base.ppo.gamma == 0.8
    with pytest.raises(ConfigError, match=r"needs a --ppo.gamma below 1"):
        make_plan(tmp_path, text + "[0.9, 1.0]\n")


def test_grid_changes_the_last_option_first(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, f'{GRID}task = ["digits", "recall"]\n')
    assert [str(setting) for setting in plan.grid()] == [
        "ppo.entropy-coef 0, task digits",
        "ppo.entropy-coef 0, task recall",
        "ppo.entropy-coef 0.08, task digits",
        "ppo.entropy-coef 0.08, task recall",
    ]
    assert (plan.name, plan.num_trials, plan.config(next(plan.grid()), 2).seed) == ("s", 8, 2)


@pytest.mark.parametrize(
    ("devices", "jobs", "gpus", "expected"),
    [
        (["auto"], None, 0, [["cpu:0"]] * 4),
        (["auto"], 1, 0, [["cpu:0", "cpu:1", "cpu:2", "cpu:3"]]),
        (["auto"], 3, 0, [["cpu:0"]] * 3),
        (["cpu:0", "cpu:1"], None, 2, [["cpu:0", "cpu:1"]] * 2),
        (["auto"], None, 2, [["cuda:0"], ["cuda:1"]]),
        (["auto"], 1, 2, [["cuda:0", "cuda:1"]]),
        (["auto"], 4, 2, [["cuda:0"], ["cuda:1"], ["cuda:0"], ["cuda:1"]]),
        (["cuda:1", "cuda:3"], 2, 4, [["cuda:1"], ["cuda:3"]]),
        (["auto"], None, None, [["auto"]]),
    ],
)
def test_devices_are_dealt_to_slots(
    devices: list[str], jobs: int | None, gpus: int | None, expected: list[list[str]]
) -> None:
    assert [list(job) for job in make_jobs(devices, jobs, {"cuda": gpus, "cpu": 4})] == expected


def test_unequal_slots_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^--jobs 2 cannot share cuda:0, cuda:1, cuda:2 equally; give a divisor or"):
        make_jobs(["auto"], 2, {"cuda": 3, "cpu": 4})
