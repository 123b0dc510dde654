"""Changes of an episode: as users write them, and in words."""

from __future__ import annotations

import msgspec
import pytest

from esper.common.configuration.config import ConfigError
from esper.common.decisions import Decision
from esper.recordings.effects.change import (
    NOTHING,
    Change,
    describe_change,
    parse_do,
    parse_without,
    without_decision,
    without_steps,
)
from esper.recordings.state.series import decision_of
from tests.recordings.effects.episodes import GROWN


def test_parse_without_planting_leaves_out_all_decisions_about_its_seed() -> None:
    assert parse_without("step:2", GROWN) == parse_without(" seed:early:2 ", GROWN) == without_steps([2, 5])
    assert parse_without("seed:early:7", GROWN) == without_steps([7, 8])
    assert parse_without("step:5", GROWN) == without_decision(GROWN, 5) == without_steps([5])
    assert parse_without("step:2", GROWN, then="pretrained") == without_steps([2], "pretrained")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("17", "'17' is not a decision; expected step:17 or seed:early:17"),
        ("step:9", "'step:9': the episode has steps 1 to 8"),
        ("step:0", "'step:0': steps count from 1"),
        ("seed:early:0", "'seed:early:0': steps count from 1"),
        ("step:4", "'step:4': the env waited in step 4, so there is nothing to leave out"),
        (
            "seed:late:2",
            "'seed:late:2' is not a seed of this episode; its seeds: seed:early:2, seed:mid:3, seed:early:7",
        ),
    ],
)
def test_parse_without_unknown_decision_names_the_known_ones(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_without(text, GROWN)
    assert str(caught.value) == message


def test_parse_do_takes_options_from_the_recorded_decision_of_the_same_op() -> None:
    found = parse_do(["2:depthwise@mid,tempo=8 4:norm@late,alpha=0.5"], GROWN).decisions
    recorded = decision_of(GROWN.steps[1])
    assert found[2] == msgspec.structs.replace(recorded, blueprint="depthwise", slot="mid", tempo="8")
    assert found[4] == Decision("germinate", "late", "norm", style="linear_add", tempo="3", alpha_target="0.5")
    assert parse_do(["6:wait"], GROWN) == without_steps([6])


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (
            ["norm@early:3"],
            "'norm@early:3' is not a decision; expected STEP:BLUEPRINT@SLOT, such as",
        ),
        ([" "], "' ' is not a decision"),
        (["9:wait"], "'9:wait': the episode has steps 1 to 8"),
        (["0:wait"], "'0:wait': steps count from 1"),
        (["1:germinate@early"], "'1:germinate@early': name the blueprint in place of germinate"),
        (["3: germinate depthwise mid"], "'3:': no space may follow the colon; expected STEP:BLUEPRINT@SLOT"),
        (["1:norm@early,tempo=3,tempo=5"], "'1:norm@early,tempo=3,tempo=5': 'tempo' is given twice"),
        (["1:advance"], "'1:advance': expected STEP:BLUEPRINT@SLOT"),
        (["1:wait@early"], "'1:wait@early': wait has no slot"),
        (["1:cull@early,tempo=3"], "'1:cull@early,tempo=3': 'tempo' is not an option of cull; valid: speed, curve"),
        (["1:advance@early,speed=3"], "'1:advance@early,speed=3': 'speed' is not an option of advance; it has none"),
        (["1:set_alpha@early"], "'1:set_alpha@early': set_alpha needs alpha="),
        (["1:wait", "1:advance@mid"], "'1:advance@mid': step 1 has another decision already"),
    ],
)
def test_parse_do_invalid_decision_is_refused(texts: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_do(texts, GROWN)
    assert str(caught.value).startswith(message)


def test_describe_change_names_the_decision() -> None:
    assert describe_change(without_decision(GROWN, 2), GROWN) == "without germinate norm in early, step 2"
    change = Change(decisions=parse_do(["8:set_alpha@early,alpha=1.0"], GROWN).decisions, then=NOTHING)
    assert describe_change(change, GROWN) == "step 8: set alpha in early to 1.0 (speed=5), then wait"
    planting = Change(decisions=parse_do(["3:norm@mid,tempo=8"], GROWN).decisions)
    assert describe_change(planting, GROWN) == "step 3: germinate norm in mid (tempo=8)"
    assert describe_change(Change(decisions={4: Decision("wait")}), GROWN) == "step 4: wait"  # the env waited there
    assert describe_change(Change(), GROWN) == "as recorded"


def test_key_of_equal_changes_is_equal() -> None:
    change = Change(decisions={2: Decision("cull", "mid"), 1: Decision("wait")})
    assert change.key == Change(decisions={1: Decision("wait"), 2: Decision(slot="mid", op="cull")}).key
    assert change.key != Change(decisions=change.decisions, then=NOTHING).key
