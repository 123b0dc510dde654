"""Is a guided search better than TPE, random search, a policy, and constant plans, for the same number of trials?

    python -m research.growth_search --seeds 200 201 202 203 204      # start it once per core
    python -m research.growth_search --tables                         # print the tables

Each method proposes trials on one host, as `grow` does. The best few and the bare host are trained on five fresh
hosts, and `candidates.choose` takes the answer. Answers and baselines then play evaluation hosts, which choose nothing.
A method with 8 trials is the beginning of the same method with 64. All tasks are in `growth_tasks.py`.

Every episode is stored, and played in full; the decisions of the pruner are made afterwards, from the returns after
each step. This changes no answer, and tells what pruning costs. An interrupted command continues. Episodes stay valid
if only the search changes; after a change of the engine, give another `--directory`.

Takes about a minute of one core for a cell whose episodes take 0.2 seconds.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import msgspec
from research.alternatives import FIRST, LARGE, LAST, MIDDLE, SECOND, SMALL, sized_plan
from research.claims import claimed
from research.growth_statistics import (
    BEST_CONSTANT,
    COUNTS,
    EVALUATION_HOSTS,
    FRESH_HOSTS,
    POLICY,
    SEARCH_HOST,
    Cell,
    SearchResult,
    answer_key,
    print_tables,
)
from research.growth_tasks import TASKS
from research.policies import TELEMETRY_DIR

from esper.common.configuration.config import Config
from esper.common.intervals import joint_level, t_interval
from esper.common.seeding import EpisodeKey, episode_uniforms
from esper.common.system.disk import make_directory, write_replaced
from esper.common.system.process import cpu_seconds
from esper.networks.tasks.prepare import PreparedTask, prepare_task
from esper.recordings.candidates.candidates import BARE_HOST, Candidate, choose
from esper.recordings.checkpoints.manifest import digest
from esper.recordings.events.codec import encode_json
from esper.studies.evaluation.held_out import evaluation_key
from esper.studies.evaluation.journal import open_search_journal
from esper.studies.growth.candidate_agent import build_candidates, proposing_policies
from esper.studies.growth.fresh_scores import GAIN_LEVEL
from esper.studies.growth.growth import num_finalists
from esper.studies.growth.plan_variations import plan_of
from esper.studies.growth.search import PlanSearch, Proposal, SearchKind
from esper.studies.growth.space import PlanSpace
from esper.training.engine.episode import Episode, begin_episodes
from esper.training.engine.step import StepResult, play_steps, tick_slots
from esper.training.lanes.pool import EnvPool

STEPS = 20
WAVE = 8
"""Number of trials that are proposed, and play, at the same time."""
LANE = "cpu:0"
KINDS: tuple[SearchKind, ...] = ("guided", "tpe", "random")
DIRECTORY = TELEMETRY_DIR / "evaluations" / "growth"


class Played(msgspec.Struct, frozen=True):
    """One episode of one candidate on one host."""

    returns: list[float]
    """Net return so far, after each step. There are fewer than `STEPS` if the env broke down."""
    plan: str
    """Plan of the episode, of a policy."""
    seconds: float
    """CPU time."""

    @property
    def net_return(self) -> float:
        """Return of the whole episode."""
        return self.returns[-1]

    @property
    def broke_down(self) -> bool:
        """True if the governor ended the episode early."""
        return len(self.returns) < STEPS


Job = tuple[str, int]
"""A candidate, and the index of its host."""
Play = Callable[[Sequence[Job]], list[Played]]


class Player:
    """Plays candidates on the hosts of a random seed, and stores the episodes.

    Host k is that of env k in round 0, with its own order of the data.
    """

    def __init__(self, prepared: PreparedTask, seed: int, directory: Path) -> None:
        self._config = msgspec.structs.replace(prepared.config, seed=seed)
        self._prepared = prepared
        self._pool: EnvPool | None = None
        tasks = Path(__file__).with_name("growth_tasks.py")
        code = {tasks.name: digest(tasks.read_bytes())}
        key = msgspec.structs.replace(evaluation_key(prepared, [LANE], 1), code=code, package="")
        self._journal = open_search_journal(directory, f"{prepared.task.name}-{seed}", key)

    def play(self, jobs: Sequence[Job]) -> list[Played]:
        """Play episodes, or read them from the journal."""
        missing = [job for job in dict.fromkeys(jobs) if not self._journal.has(_part(job))]
        for first in range(0, len(missing), WAVE):
            batch = missing[first : first + WAVE]
            for job, played in zip(batch, self._play(batch), strict=True):
                self._journal.recall(_part(job), Played, lambda played=played: played)
        return [self._journal.recall(_part(job), Played, _unreachable) for job in jobs]

    def close(self) -> None:
        """Stop the lanes."""
        if self._pool:
            self._pool.close()

    def _play(self, jobs: Sequence[Job]) -> list[Played]:
        start = cpu_seconds()
        config, profile = self._config, self._prepared.profile
        if self._pool is None:
            self._pool = EnvPool(self._prepared.task, profile, self._prepared.data, [LANE], config)
        pool = self._pool
        agent = build_candidates(config, profile)
        agent.assign({env: name for env, (name, _) in enumerate(jobs)})
        episodes = [Episode(env, config) for env in pool.envs]
        keys = [EpisodeKey(config.seed, host, 0) for _, host in jobs]
        begin_episodes(pool, episodes, dict(zip(pool.envs, keys, strict=False)))
        agent.begin_round(episode_uniforms(keys, STEPS, len(episodes)))
        returns: list[list[float]] = [[] for _ in episodes]

        def end(result: StepResult) -> None:
            for episode, epoch in zip(result.episodes, result.epochs, strict=True):
                if epoch:
                    returns[episode.env.index].append(episode.episode_return)
            tick_slots(result.episodes)

        play_steps(pool, episodes, agent, range(STEPS), end)
        seconds = (cpu_seconds() - start) / len(jobs)
        slots = [site.name for site in profile.sites]
        return [
            Played(of_env, plan_of(agent.actions[env][: len(of_env)], slots, profile.blueprints), seconds)
            for env, of_env in enumerate(returns[: len(jobs)])
        ]


def _part(job: Job) -> str:
    return f"host {job[1]}: {job[0]}"


def _unreachable() -> Played:
    raise AssertionError("the episode was played before")


def search(kind: SearchKind, space: PlanSpace, policies: Sequence[str], seed: int, play: Play) -> list[SearchResult]:
    """Return the result of a search after each number of trials in `COUNTS`.

    Args:
        play: Plays candidates, on hosts that are given by their index.
    """
    plan_search = PlanSearch(space, kind=kind, policies=policies, seed=seed)
    returns: dict[str, float] = {}
    origins: dict[str, str] = {}
    pruned: set[str] = set()
    steps = 0
    found: list[SearchResult] = []
    while len(found) < len(COUNTS):
        proposals = plan_search.next_candidates(WAVE)
        played = play([(proposal.name, SEARCH_HOST) for proposal in proposals])
        for proposal, episode in zip(proposals, played, strict=True):
            returns[proposal.name], origins[proposal.name] = episode.net_return, proposal.origin
        ended = replay(plan_search, proposals, played)
        steps += sum(ended.values())
        lengths = {proposal.name: len(episode.returns) for proposal, episode in zip(proposals, played, strict=True)}
        pruned |= {name for name, length in ended.items() if length < lengths[name]}
        if len(returns) >= COUNTS[len(found)] or not proposals:  # few plans are left: the space is exhausted
            names = plan_search.finalists(num_finalists(COUNTS[len(found)]))
            answer, fresh = choose_answer(names, play)
            found.append(
                SearchResult(
                    kind=kind,
                    trials=COUNTS[len(found)],
                    answer=answer,
                    origin=origins[answer],
                    episodes=steps / STEPS + len(names) * len(FRESH_HOSTS),
                    best_is_pruned=max(returns, key=lambda name: returns[name]) in pruned,
                    pruned=len(pruned),
                    fresh_return=fresh,
                )
            )
    return found


def replay(plan_search: PlanSearch, proposals: Sequence[Proposal], played: Sequence[Played]) -> dict[str, int]:
    """Report the episodes of a wave to the search, as if they ran side by side. Return the steps of each."""
    active = {proposal.name: episode for proposal, episode in zip(proposals, played, strict=True)}
    ended: dict[str, int] = {}
    for step in range(1, STEPS):
        for name, episode in list(active.items()):
            outcome = None
            if episode.broke_down and step == len(episode.returns):
                outcome = "broke down"
            elif plan_search.report(name, step, episode.returns[step - 1]):
                outcome = "pruned"
            if outcome:
                plan_search.tell(name, outcome, None)
                ended[name] = step
                del active[name]
    for name, episode in active.items():
        plan_search.tell(name, "done", episode.net_return, plan=episode.plan)
        ended[name] = STEPS
    return ended


def choose_answer(names: Sequence[str], play: Play) -> tuple[str, float]:
    """Train finalists on the fresh hosts. Return the answer as `grow` chooses it, and its mean return on them.

    Here, only the hosts are a source of chance, and not the samples.
    """
    played = iter(play([(name, host) for name in names for host in FRESH_HOSTS]))
    candidates: list[Candidate] = []
    for name in names:
        returns = {host: next(played).net_return for host in FRESH_HOSTS}
        values = list(returns.values())  # the scores only count the trainings here
        one = Candidate(name=name, origin="drawn", fresh_scores=values, fresh_returns=values, fresh_hosts=list(returns))
        if candidates:  # the first one is the bare host
            gains = [value - own for value, own in zip(values, candidates[0].fresh_returns, strict=True)]
            one.gain = one.score_gain = t_interval(gains, joint_level(len(names) - 1, GAIN_LEVEL))
        candidates.append(one)
    chosen = choose(candidates, "return")
    assert chosen is not None
    return chosen.name, math.fsum(chosen.fresh_returns) / len(FRESH_HOSTS)


def constant_plans(space: PlanSpace) -> list[str]:
    """Return up to nine plans: three sizes of seeds in the first two slots, the first, or the last one.

    They are not those of `known_plans`: a baseline must stay as it is when the search changes.
    """
    plans = [
        sized_plan(dict.fromkeys(slots, size), space)
        for slots in ((FIRST, SECOND), (FIRST,), (LAST,))
        for size in (SMALL, MIDDLE, LARGE)
    ]
    return list(dict.fromkeys(plans))


def measure(prepared: PreparedTask, seed: int, play: Play) -> Cell:
    """Run all searches and baselines of a task with a random seed."""
    profile = prepared.profile
    space = PlanSpace(profile.sites, STEPS, profile.host_parameters)
    policies = proposing_policies(prepared.config)
    searches = [result for kind in KINDS for result in search(kind, space, policies, seed, play)]
    constants = [BARE_HOST, *constant_plans(space)]
    trials = play([(plan, SEARCH_HOST) for plan in constants])
    fresh = play([(plan, host) for plan in constants for host in FRESH_HOSTS])
    fresh_by_plan = {
        plan: [episode.net_return for episode in fresh[index * len(FRESH_HOSTS) :][: len(FRESH_HOSTS)]]
        for index, plan in enumerate(constants)
    }
    best = max(constants[1:], key=lambda plan: math.fsum(fresh_by_plan[plan]))
    answers = {answer_key(result.kind, result.trials): result.answer for result in searches}
    answers |= {BARE_HOST: BARE_HOST, POLICY: policies[0], BEST_CONSTANT: best}
    names = list(dict.fromkeys(answers.values()))
    evaluated = play([(name, host) for name in names for host in EVALUATION_HOSTS])
    by_name: dict[str, list[float]] = {name: [] for name in names}
    for episode, name in zip(evaluated, (name for name in names for _ in EVALUATION_HOSTS), strict=True):
        by_name[name].append(episode.net_return)
    return Cell(
        task=prepared.task.name,
        seed=seed,
        searches=searches,
        answers=answers,
        returns={method: by_name[name] for method, name in answers.items()},
        constant_trials=[episode.net_return for episode in trials],
        constant_fresh=list(fresh_by_plan.values()),
        seconds=math.fsum(episode.seconds for episode in evaluated) / len(evaluated),
    )


@cache
def prepare(name: str) -> PreparedTask:
    """Return a task of `TASKS`, ready to train."""
    config = Config(task=name, steps=STEPS, envs=WAVE, policy="pretrained", reward="simplified")
    return prepare_task(config, TASKS[name]())


def run(task: str, seed: int, directory: Path) -> None:
    """Measure a task with a random seed, unless it is measured, or another process does it."""
    result = directory / f"{task}-{seed}.json"
    make_directory(directory)
    with ExitStack() as stack:
        if result.exists() or not stack.enter_context(claimed(directory / f"{task}-{seed}.lock")):
            return
        player = Player(prepare(task), seed, directory)
        stack.callback(player.close)
        write_replaced(result, encode_json(measure(prepare(task), seed, player.play)) + b"\n")
        print(f"{task}, random seed {seed}: done", flush=True)


def main() -> None:
    """Measure the cells that are not finished, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS), metavar="TASK")
    parser.add_argument("--seeds", type=int, nargs="+", default=[200, 201, 202, 203, 204])
    parser.add_argument("--directory", type=Path, default=DIRECTORY)
    parser.add_argument("--tables", action="store_true", help="print the tables of the finished cells")
    options = parser.parse_args()
    if options.tables:
        print_tables(options.directory, options.tasks, options.seeds)
        return
    for seed in options.seeds:
        for task in options.tasks:
            run(task, seed, options.directory)


if __name__ == "__main__":
    main()
