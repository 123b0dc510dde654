"""The dialog with the configuration of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from esper.common.configuration.config import GROWTH_CONFIG, Config, PPOConfig
from esper.recordings import events as ev
from esper.recordings.history.summary import flat_config
from esper.sanctum.settings import CHANGED, DEFAULTS, OF_TASK, list_settings
from tests.factory import run_started, stamp
from tests.sanctum.driving import opened, press, replay, screen_text

CONFIG = Config(envs=8, slots=("early", "mid"), ppo=PPOConfig(gamma=0.97))
STARTED = msgspec.structs.replace(run_started(2), config=msgspec.json.decode(msgspec.json.encode(CONFIG)))


@pytest.mark.parametrize("config", [STARTED.config, msgspec.to_builtins(CONFIG)], ids=["recording", "live run"])
def test_settings_that_differ_from_the_defaults_come_first(config: dict[str, Any]) -> None:
    settings = list_settings(flat_config(config), {}, is_growth=False)
    changed = {setting.key: (setting.value, setting.default) for setting in settings if setting.group == CHANGED}
    assert changed == {"envs": ("8", "16"), "ppo.gamma": ("0.97", "1.0")}
    assert [setting.group for setting in settings[:3]] == [CHANGED, CHANGED, OF_TASK]
    assert settings[-1].group == DEFAULTS
    assert all(setting.description for setting in settings)


def test_settings_of_a_growth_are_compared_with_the_defaults_of_grow() -> None:
    config = msgspec.to_builtins(msgspec.convert({**GROWTH_CONFIG, "keep": 5, "rounds": 7}, Config))
    settings = list_settings(flat_config(config), {}, is_growth=True)
    changed = {setting.key: (setting.value, setting.default) for setting in settings if setting.group == CHANGED}
    assert changed == {"keep": ("5", "3")}


async def test_configuration_of_a_recording_can_be_searched(tmp_path: Path) -> None:
    app, _ = replay(stamp([STARTED, ev.RoundStarted(round=1)]), tmp_path, at_end=True)
    async with opened(app, "C", size=(60, 15)) as pilot:
        assert "Configuration: 2 of" in screen_text(app)
        assert "default 16" in screen_text(app)
        await press(pilot, *"entrop")
        text = screen_text(app)
        assert "ppo.entropy-coef" in text
        assert "default 16" not in text
        await press(pilot, *"zzz")
        assert "no setting contains this text" in screen_text(app)
        await press(pilot, "escape")
        assert "Configuration:" not in screen_text(app)
