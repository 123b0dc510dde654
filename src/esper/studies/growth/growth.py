"""Growth: the request for the best network within a budget, and its results. Importing this does not import torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from esper.common.configuration.config import GROWTH_CONFIG, MAX_COUNT, Config, ConfigError
from esper.common.formatting import suggest
from esper.recordings.candidates.candidates import FROM_SCRATCH, WIDE_HOST, Objective
from esper.recordings.checkpoints.catalog import list_checkpoints, size_and_time
from esper.recordings.events import SearchInfo
from esper.recordings.files.run_manifest import read_run_manifest
from esper.recordings.files.runs import list_runs
from esper.training.engine.unfinished import kept_settings
from esper.training.policy.loading import POLICY_NAMES

if TYPE_CHECKING:
    from esper.recordings.state.search_state import SearchState
    from esper.studies.harvest.grown import Grown

DEFAULT_TRIALS = 16
"""Number of trials if no budget is given."""
FRESH_HOSTS = 8
"""Number of fresh hosts on which each of the last candidates is trained."""
MIN_FINALISTS, MAX_FINALISTS = 3, 5
"""Number of candidates that are trained on fresh hosts, besides the bare host: after few trials, and after many."""
TRIALS_PER_FINALIST = 6
"""Number of trials for each of these candidates: the best of many trials owes more to chance."""


def num_finalists(trials: int) -> int:
    """Return the number of candidates that are trained on fresh hosts after some trials, besides the bare host.

    The first trial is that of the bare host.
    """
    return min(max(trials // TRIALS_PER_FINALIST, MIN_FINALISTS), MAX_FINALISTS, trials - 1)


def late_gain(scores: Sequence[float]) -> float:
    """Return the change of the score over the last quarter of a training.

    Args:
        scores: Score of the host, then after each step.
    """
    quarter = max(round((len(scores) - 1) / 4), 1)
    return scores[-1] - scores[-1 - quarter]


def num_fresh(finalists: int) -> int:
    """Return the number of trainings on fresh hosts of some candidates and the bare host."""
    return (1 + finalists) * FRESH_HOSTS


def rounds_on_fresh_hosts(finalists: int, compared: int, envs: int) -> int:
    """Return the number of rounds after the search: of some finalists, and of the networks that are only compared.

    Args:
        envs: Number of trainings of a round.
    """
    return math.ceil(num_fresh(finalists) / envs) + math.ceil(compared * FRESH_HOSTS / envs)


@dataclass(frozen=True, kw_only=True)
class GrowthRequest:
    """Request for the best network of a task.

    Attributes:
        trials: Number of trials of the search; None if the budget is a time.
        minutes: Minutes of training; None if the budget is a number of trials.
        objective: Quantity to maximise: the return, which is the score gain minus the rent, or the score.
        max_parameters: Limit of the parameters of a network: a number, or a multiple of the host's such as `1.5x`;
            empty without a limit.
        patience: Steps without a better score after which a training ends; None: a third of the steps, 5 or more.
        compares: Also train the architecture of the answer from scratch.
        until_flat: Double the steps until longer trainings do not improve the bare host.
    """

    trials: int | None = None
    minutes: float | None = None
    objective: Objective = "return"
    max_parameters: str = ""
    patience: int | None = None
    compares: bool = False
    until_flat: bool = False

    def patience_steps(self, steps: int) -> int:
        """Return the patience of trainings of some steps."""
        return self.patience or max(5, math.ceil(steps / 3))

    def compared(self, *, has_wide: bool) -> list[str]:
        """Return the names of the networks that are only compared with an answer that has seeds.

        Args:
            has_wide: The task has a `wide_model`.
        """
        return [WIDE_HOST] * has_wide + [FROM_SCRATCH] * self.compares

    def expected_rounds(self, envs: int, compared: int) -> int:
        """Return the number of rounds if no training fails; `MAX_COUNT` if the budget is a time.

        Args:
            envs: Number of trainings of a round.
            compared: Number of networks that are only compared.
        """
        if self.trials is None:
            return MAX_COUNT
        return math.ceil(self.trials / envs) + rounds_on_fresh_hosts(num_finalists(self.trials), compared, envs)

    def info(self, host_parameters: int, compared: int = 0) -> SearchInfo:
        """Return the budget and the aim for a host of some parameters.

        Args:
            compared: Number of networks that are only compared.
        """
        fresh = None if self.trials is None else num_fresh(num_finalists(self.trials)) + compared * FRESH_HOSTS
        return SearchInfo(
            trials=self.trials,
            fresh=fresh,
            minutes=self.minutes,
            objective=self.objective,
            max_parameters=parse_limit(self.max_parameters, host_parameters),
        )


@dataclass(kw_only=True)
class Growth:
    """A growth in progress, and its results.

    Attributes:
        request: Budget and aim.
        target: Function from the run directory to the directory of the network that is written; None: none is written.
        writes_all: Write every network of the front, each to its own directory in that of `target`.
        search: Candidates and answer; None before the end.
        is_complete: True at the end if all trainings have ended; False if the growth was stopped.
        networks: Networks of the front, keyed by candidate; empty before the end.
        directories: Directory of each written network, keyed by candidate.
        problems: Why networks that were written have no program, keyed by candidate.
        failure: Why a network cannot be written; None if all were.
    """

    request: GrowthRequest
    target: Callable[[Path], Path] | None = None
    writes_all: bool = False
    search: SearchState | None = None
    is_complete: bool = False
    networks: dict[str, Grown] = field(default_factory=dict[str, "Grown"])
    directories: dict[str, Path] = field(default_factory=dict[str, Path])
    problems: dict[str, str] = field(default_factory=dict[str, str])
    failure: str | None = None

    @property
    def grown(self) -> Grown | None:
        """Network of the answer; None before the end, and if no candidate could be trained."""
        chosen = self.search.chosen if self.search else None
        return None if chosen is None else self.networks.get(chosen)


def make_request(
    *,
    trials: int | None = None,
    minutes: float | None = None,
    objective: Objective = "return",
    max_parameters: str | int = "",
    patience: int | None = None,
    compares: bool = False,
    until_flat: bool = False,
) -> GrowthRequest:
    """Return a request after checking it. Without a budget, it has `DEFAULT_TRIALS`.

    Raises:
        ConfigError: A value is not valid, or there are two budgets.
    """
    if objective not in get_args(Objective):
        raise ConfigError(f"--objective {objective!r} is not valid; {suggest(objective, get_args(Objective))}")
    if trials is not None and minutes is not None:
        raise ConfigError("--trials and --minutes are both budgets; give one of them")
    if trials is not None and not 1 <= trials <= MAX_COUNT:
        raise ConfigError(f"--trials {trials} is not valid: it must be 1 or more")
    if minutes is not None and not 0 < minutes < math.inf:
        raise ConfigError(f"--minutes {minutes:g} is not valid: it must be above 0")
    if patience is not None and patience < 1:
        raise ConfigError(f"--patience {patience} is not valid: it must be 1 or more")
    limit = str(max_parameters)
    parse_limit(limit, 0)
    return GrowthRequest(
        trials=DEFAULT_TRIALS if trials is None and minutes is None else trials,
        minutes=minutes,
        objective=objective,
        max_parameters=limit,
        patience=patience,
        compares=compares,
        until_flat=until_flat,
    )


def parse_limit(text: str, host_parameters: int) -> int | None:
    """Return a limit of parameters: `1.5x` is one and a half times those of the host; None for an empty text.

    Args:
        host_parameters: Parameters of the host; 0 if they are not known yet.

    Raises:
        ConfigError: The text is neither a number nor a multiple of 1 or more, or the host is larger.
    """
    if not text:
        return None
    number = text.replace("_", "").removesuffix("x")
    is_multiple = text.endswith("x")
    try:
        value = float(number) if is_multiple else int(number)
    except ValueError:
        value = math.nan
    if not 1 <= value <= MAX_COUNT:
        raise ConfigError(f"--max-parameters {text!r} is not valid: expected a multiple such as 1.5x, or a number")
    if is_multiple:
        return round(value * host_parameters)
    if value < host_parameters:
        raise ConfigError(
            f"--max-parameters {text} is less than the {host_parameters:,} parameters of your network; a multiple ends "
            f"with an x, such as 1.5x"
        )
    return int(value)


def growth_identity(config: Config, request: GrowthRequest) -> dict[str, Any]:
    """Return the settings that a growth keeps when it is continued: all but budget, devices and directories.

    Args:
        config: Configuration as the user gave it.
    """
    aim = {"objective": request.objective, "max-parameters": request.max_parameters, "patience": request.patience}
    aim["until-flat"] = request.until_flat
    return {"config": kept_settings(config), **aim}


def find_growth(config: Config, request: GrowthRequest, since: float = 0.0) -> Path | None:
    """Return the newest checkpoint of the last growth with the same settings; None if there is none.

    Args:
        since: Time of the checkpoint, in seconds since the epoch, from which on it counts.

    Raises:
        OSError: The telemetry directory cannot be read.
    """
    identity = msgspec.json.decode(msgspec.json.encode(growth_identity(config, request)))
    for run in list_runs(Path(config.telemetry_dir)):
        if read_run_manifest(run).growth == identity and (checkpoints := list_checkpoints(run)):
            return checkpoints[-1] if size_and_time(checkpoints[-1])[1] >= since else None
    return None


def check_growth(config: Config) -> None:
    """Check that a configuration can grow a network.

    Raises:
        ConfigError: It cannot.
    """
    if config.rounds != GROWTH_CONFIG["rounds"]:
        raise ConfigError("--rounds is not an option of grow; give --trials or --minutes")
    if config.reward != GROWTH_CONFIG["reward"]:
        raise ConfigError(f"--reward {config.reward} is not an option of grow, because nothing learns")
    if config.policy == POLICY_NAMES[0]:
        raise ConfigError(
            "--policy ppo is not trained yet; give pretrained, or the run or the checkpoint of a trained policy"
        )
