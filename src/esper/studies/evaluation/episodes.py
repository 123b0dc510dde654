"""Episodes of an evaluation: every env of a pool plays one, and no policy learns."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from esper.common.configuration.config import Config
from esper.common.seeding import decision_uniforms
from esper.studies.evaluation.plantings import StepRecorder
from esper.studies.evaluation.results import EpisodeResult
from esper.studies.harvest.model import grown_seeds, plant_grown
from esper.studies.harvest.structure import GrownSeed
from esper.training.engine.episode import Episode, begin_episodes
from esper.training.engine.step import StepResult, play_steps, tick_slots
from esper.training.lanes.pool import EnvPool
from esper.training.policy.agent import Agent


def run_episodes(
    pool: EnvPool,
    agent: Agent,
    config: Config,
    on_step: Callable[[], None],
    planted: Sequence[Sequence[GrownSeed]] = (),
    recorder: StepRecorder | None = None,
    width: float = 1.0,
) -> list[EpisodeResult]:
    """Run one episode of every env of a pool, and test it. No other code uses the test split.

    Args:
        planted: Seeds that each env has from the start, with fresh weights; empty for bare hosts.
        recorder: Records the steps; None: they are not recorded.
        width: Factor of the widths of the hosts. Further parameters of a wide host cost rent as those of seeds do.

    Returns:
        Results by env index.
    """
    episodes = start_episodes(pool, config, 0, width)
    test_before = pool.test_scores()
    for episode, seeds in zip(episodes, planted, strict=False):
        plant_grown(episode.env, seeds, config.seed)
        episode.update_parameter_ratio()
        episode.last_good.save()
    broke_down = play_episodes(pool, episodes, agent, config, 0, on_step, recorder)
    # No tick after the last step, so that the test uses the alphas of the last validation.
    results = [
        _result(episode, before, after, broken)
        for episode, before, after, broken in zip(episodes, test_before, pool.test_scores(), broke_down, strict=True)
    ]
    if recorder:
        recorder.finish(episodes)
    return results


def start_episodes(pool: EnvPool, config: Config, round_index: int, width: float = 1.0) -> list[Episode]:
    """Give every env of a pool a fresh host, and return their episodes.

    Args:
        round_index: Index of the round whose hosts are used, from 0.
        width: Factor of their widths.
    """
    pool.reset_loss_scales()  # do not inherit those that the previous policy left
    episodes = [Episode(env, config) for env in pool.envs]
    begin_episodes(pool, episodes, pool.keys_of(round_index, width))
    return episodes


def play_episodes(
    pool: EnvPool,
    episodes: Sequence[Episode],
    agent: Agent,
    config: Config,
    round_index: int,
    on_step: Callable[[], None],
    recorder: StepRecorder | None = None,
) -> list[bool]:
    """Play episodes to their end.

    Args:
        episodes: Result of `start_episodes`.
        round_index: Index of the round whose hosts are used, from 0.
        recorder: Records the steps; None: they are not recorded.

    Returns:
        True for each env that broke down, or was inactive from the start.
    """
    last = config.steps - 1

    def end(result: StepResult) -> None:
        if result.step < last:
            tick_slots(result.episodes)
        if recorder:
            recorder.add(result, is_last=result.step == last)

    def after_step(_is_ahead: bool) -> bool:
        on_step()
        return True

    agent.begin_round(decision_uniforms(config.seed, range(len(episodes)), config.steps, round_index))
    play_steps(pool, episodes, agent, range(config.steps), end, after_step=after_step)
    return [episode.inactive for episode in episodes]


def _result(episode: Episode, test_before: float, test_after: float, broke_down: bool) -> EpisodeResult:
    scores = episode.view.scores
    rewarded = episode.rewarded
    costs = rewarded(scores[-1]) - rewarded(scores[0]) - episode.episode_return
    return EpisodeResult(
        test_score=test_after,
        validation_score=scores[-1],
        parameter_ratio=episode.view.parameter_ratio,
        net_return=episode.episode_return,
        test_return=rewarded(test_after) - rewarded(test_before) - costs,
        steps=episode.view.step,
        broke_down=broke_down,
        seeds=grown_seeds(episode.env.network.slots),
    )
