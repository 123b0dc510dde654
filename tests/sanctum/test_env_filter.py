"""Filters and sort orders, without a screen."""

import contextlib
import math
import string
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.common.filters import FilterError, IncompleteFilterError
from esper.common.score_scale import PERCENT
from esper.recordings import events as ev
from esper.recordings.state.state import EnvState, RunState
from esper.sanctum.env_filter import NUMERIC_FIELDS, parse_filter, sort_envs, worst_env
from tests.factory import env_stepped, run_started, stamp

LANES = ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]
SEVERITIES = {1: "warning", 2: "error"}


def state_of(score: str = "accuracy", structures: Sequence[str] = ()) -> RunState:
    """State of four envs: the second has a NaN, the third no scaler, the fourth has not stepped."""
    dormant = [ev.SlotReading(stage="dormant")] * 3
    named = [ev.StructureInfo(name=name, slots=3, host_parameters=1, chance_loss=2.3) for name in structures]
    run = [
        msgspec.structs.replace(run_started(4), lanes=LANES, score_name=score, structures=named),
        ev.RoundStarted(round=1),
        env_stepped(
            0,
            score=0.4,
            op="germinate",
            loss_scale=32768.0,
            skipped_batches=3,
            overflows_by_owner={"host": 1, "mid": 2},
        ),
        env_stepped(1, score=0.6, grad_norm=math.nan, loss_scale=512.0, slots=dormant),
        env_stepped(2, score=0.5, reward=-0.2),
    ]
    state = RunState()
    for event in stamp(run):
        state.apply(event)
    return state


def envs() -> list[EnvState]:
    return state_of().envs


def passing(text: str, state: RunState | None = None) -> list[int]:
    state = state or state_of()
    term = parse_filter(text, state)
    return [env.env for env in state.envs if term.passes(env, SEVERITIES.get(env.env))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", [0, 1, 2, 3]),
        ("acc<0.5", [0]),
        ("acc<=50%", [0, 2]),
        ("score<=50%", [0, 2]),
        ("score<50", [0]),
        ("ACC>=0.5", [1, 2]),
        ("acc=0.6", [1]),
        ("accuracy<50", [0]),
        ("accuracy<0.5", [0]),
        ("Accuracy>=50%", [1, 2]),
        ("acc!=0.6", [0, 2]),
        ("reward<0", [2]),
        ("grad=nan", [1]),
        ("grad!=nan", [0, 2]),
        ("grad>0", [0, 2]),
        ("scale<2^12", [1]),
        ("scale>0", [0, 1]),
        ("skipped>2", [0]),
        ("env>=2", [2, 3]),
        ("best>0.55", [1]),
        ("stage:blending", [0, 2]),
        ("stage:fossilized", []),
        ("stage:b", [0, 2]),
        ("stage:F", []),
        ("stage:·", [0, 1, 2]),
        ("device:cuda:1", [1, 3]),
        ("device:cuda", [0, 1, 2, 3]),
        ("blueprint:conv", [0, 2]),
        ("op:germinate", [0]),
        ("anomaly", [1, 2]),
        ("anomaly acc<0.55", [2]),
        ("stage:blending device:cuda:0 acc>0.45", [2]),
        ("2", [2]),
        ("02", [2]),
        ("conv_small", [0, 2]),
        ("cuda:1", [1, 3]),
        ("germ", [0]),
        ("nothing", []),
    ],
)
def test_filter_selects_matching_envs(text: str, expected: list[int]) -> None:
    assert passing(text) == expected


@pytest.mark.parametrize(
    ("score", "text", "expected"),
    [
        ("f1", "f1<50", [0]),
        ("top-5 accuracy", "top-5<50", [0]),
        ("top-5 accuracy", "top-5-accuracy<50", [0]),
        ("mean recall", "mean-r<50%", [0]),
        ("loss", "score<50", [0]),
        ("loss", "loss<50", [0, 1, 2]),  # the loss itself, not the score of this name
    ],
)
def test_score_is_named_as_in_its_column(score: str, text: str, expected: list[int]) -> None:
    assert passing(text, state_of(score)) == expected


def test_word_of_another_score_is_unknown() -> None:
    with pytest.raises(FilterError, match="unknown key 'acc'"):
        parse_filter("acc<50", state_of("f1"))
    with pytest.raises(IncompleteFilterError, match="f1<…"):
        parse_filter("f", state_of("f1"))


@pytest.mark.parametrize(
    ("text", "expected_message"),
    [
        ("foo<1", "unknown key 'foo'; valid: accuracy, acc, env, score, best"),
        ("acx<1", "unknown key 'acx'; did you mean acc?"),
        ("acc<", "expected a number after 'acc', as in acc<50%; got ''"),
        ("grad>nan", "no number is less or greater than NaN; write 'grad=nan' or 'grad!=nan' in place of 'grad>nan'"),
        ("acc<high", "expected a number after 'acc', as in acc<50%; got 'high'"),
        ("scale>2^", "expected a number after 'scale'"),
        ("scale>0^-1", "expected a number after 'scale'"),
        ("scale>-2^0.5", "expected a number after 'scale'"),
        ("stage:blendin", "unknown stage 'blendin'; did you mean blending?"),
        ("op:jump", "unknown op 'jump'; valid: wait, germinate"),
        ("device:cuda:7", "unknown device 'cuda:7'; did you mean cuda:"),
        ("device:", "'device:' needs a value; valid: cuda:0, cuda:1"),
        ("blueprint:", "'blueprint:' needs a value"),
        ("lane:cuda", "unknown filter 'lane:'"),
        ("acc<0.5 <3", "unknown key ''"),
    ],
)
def test_invalid_filter_is_refused_in_one_sentence(text: str, expected_message: str) -> None:
    with pytest.raises(FilterError) as refused:
        parse_filter(text, state_of())
    assert expected_message in str(refused.value)


@given(st.text(string.ascii_lowercase + string.digits + "<>=!:.%^_- ", max_size=30))
def test_any_filter_text_parses_or_is_refused(text: str) -> None:
    with contextlib.suppress(FilterError):
        assert set(passing(text)) <= {0, 1, 2, 3}


@given(st.sampled_from(sorted(NUMERIC_FIELDS)), st.floats(allow_nan=False), st.sampled_from(["<", ">=", "=", "!="]))
def test_comparison_and_its_negation_split_measured_envs(name: str, bound: float, symbol: str) -> None:
    opposite = {"<": ">=", ">=": "<", "=": "!=", "!=": "="}[symbol]
    measured = {env.env for env in envs() if (value := NUMERIC_FIELDS[name](env)) is not None and not math.isnan(value)}
    one, other = set(passing(f"{name}{symbol}{bound}")), set(passing(f"{name}{opposite}{bound}"))
    assert (one | other) & measured == measured
    assert not one & other


def test_sort_puts_pinned_first_then_nan_and_missing_last() -> None:
    population = envs()
    assert sort_envs(population, NUMERIC_FIELDS["grad"], descending=False, first=frozenset()) == [1, 0, 2, 3]
    assert sort_envs(population, NUMERIC_FIELDS["score"], descending=True, first=frozenset()) == [1, 2, 0, 3]
    assert sort_envs(population, NUMERIC_FIELDS["score"], descending=True, first=frozenset({3, 0})) == [0, 3, 1, 2]


def test_worst_env_has_an_anomaly_or_lowest_accuracy() -> None:
    population = envs()
    assert worst_env(population, SEVERITIES, PERCENT) == 2
    assert worst_env(population, {1: "warning"}, PERCENT) == 1
    assert worst_env(population, {}, PERCENT) == 0
    assert worst_env([], {}, PERCENT) is None


def family() -> RunState:
    """State of a run on a family of two structures and two settings."""
    state = state_of(structures=["Narrow", "deep"])
    contexts = [("Narrow", "Level", 0.0), ("Narrow", "digits", 0.1), ("deep", "digits", 0.5)]
    for env, (structure, source, noise) in zip(state.envs, contexts, strict=False):
        settings: dict[str, float | str] = {"source": source, "noise": noise}
        env.context = ev.EpisodeStarted(round=1, env=env.env, structure=structure, settings=settings)
    return state


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("structure:narrow", [0, 1]),
        ("structure:2", [2]),
        ("noise>0", [1, 2]),
        ("noise:0.5", [2]),
        ("source:level", [0]),
        ("structure:narrow noise<=0.1", [0, 1]),
        ("source:digits acc>=0.5", [1, 2]),
        ("level", [0]),
    ],
)
def test_structures_and_settings_of_a_family_are_filtered(text: str, expected: list[int]) -> None:
    assert passing(text, family()) == expected


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("structure:deeep", "unknown structure 'deeep'; did you mean deep"), ("nois>0", "unknown key 'nois'")],
)
def test_wrong_names_of_a_family_are_refused(text: str, sentence: str) -> None:
    with pytest.raises(FilterError, match=sentence):
        parse_filter(text, family())
    with pytest.raises(FilterError, match="unknown filter 'structure:'"):
        parse_filter("structure:deep", state_of())
