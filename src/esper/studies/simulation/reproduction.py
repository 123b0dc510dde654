"""Comparison of a simulated episode with its recording, and the reasons for a difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from esper.common.configuration.config import Config
from esper.networks.tasks.loading import describe_changes
from esper.recordings.effects.episode import RecordedEpisode
from esper.recordings.effects.results import Reproduction
from esper.recordings.events import EnvStepped
from esper.training.engine.reporter import versions
from esper.training.lanes.device_names import is_cpu_lane

_OF_THE_POLICY = ("value", "op_probability", "op_probabilities", "decision")
"""Fields of a step that a simulation does not compute: they describe how the policy came to its decision."""
_REWARD = ("reward", "reward_parts")
_IGNORED = ("seq", "time", "env", "round", *_OF_THE_POLICY, *_REWARD)


def first_difference(recorded: EnvStepped, simulated: EnvStepped, *, is_sparse: bool) -> str | None:
    """Return the name of the first quantity of a step that differs from the recording; None if all are equal.

    Args:
        is_sparse: The recorded rewards are those of a whole episode, paid at its end, and are not compared.
    """
    for name in recorded.__struct_fields__:
        if name not in _IGNORED and repr(getattr(recorded, name)) != repr(getattr(simulated, name)):
            return name.replace("_", " ")
    if is_sparse or _net_parts(recorded) == _net_parts(simulated):
        return None
    return "reward"


def _net_parts(step: EnvStepped) -> dict[str, str]:
    return {name: repr(value) for name, value in step.reward_parts.items() if name != "dependence"}


def compare(
    episode: RecordedEpisode,
    simulated: Sequence[EnvStepped],
    final_score: float,
    code: Mapping[str, str],
    lanes: Sequence[str],
) -> Reproduction:
    """Compare a simulation without a change with the recording.

    Args:
        simulated: Events of the simulated steps.
        final_score: Simulated score at the end of the episode, rounded as in events.
        code: Digests of the task's files now, keyed by relative path.
        lanes: Names of the lanes of the simulation.
    """
    config = episode.config
    found = Reproduction(steps=len(episode.steps))
    for recorded, step in zip(episode.steps, simulated, strict=False):
        quantity = first_difference(recorded, step, is_sparse=config.reward == "sparse")
        if quantity:
            found = msgspec.structs.replace(found, differs_from=recorded.step, quantity=quantity)
            break
    else:
        if len(simulated) != len(episode.steps):
            steps = min(len(simulated), len(episode.steps)) + 1
            found = msgspec.structs.replace(found, differs_from=steps, quantity="number of steps")
        elif episode.ended and repr(episode.ended.score) != repr(final_score):
            found = msgspec.structs.replace(found, differs_from=len(simulated), quantity="final score")
    return found if found.is_exact else msgspec.structs.replace(found, cause=find_cause(episode, config, code, lanes))


def find_cause(episode: RecordedEpisode, config: Config, code: Mapping[str, str], lanes: Sequence[str]) -> str | None:
    """Return the known reasons for which a simulation can differ from the recording; None without any."""
    causes: list[str] = []
    recorded_lane = episode.started.lanes[episode.env]
    for lane in dict.fromkeys((recorded_lane, *lanes)):
        if not is_cpu_lane(lane):
            causes.append(
                f"{'recorded' if lane == recorded_lane else 'simulated'} on {lane}, and a GPU rounds otherwise"
            )
            break
    if config.shares_loss_scale:
        causes.append("the envs of a lane shared a loss scale")
    changed = describe_changes(episode.started.task_code, code)
    if changed:
        causes.append(f"the code of the task has changed: {changed}")
    now = versions()
    for name in ("esper-sanctum", "torch", "cpu"):
        before = episode.started.versions.get(name)
        if before is not None and before != now[name]:
            causes.append(f"recorded with {name} {before}, simulated with {now[name]}")
    return "; ".join(causes) or None
