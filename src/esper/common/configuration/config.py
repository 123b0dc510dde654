"""The configuration of a run: one typed, frozen structure, filled from the command line and TOML.

The command line beats the file, and the file beats the defaults. The TOML key of a field is its name with hyphens; its
option is the key, after the name of its table and a dot. The docstring of a field is its help text, word for word;
limits, units and choices are annotations. `fields` reads both. Devices are checked by the engine and task names
by the task registry.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta


class ConfigError(ValueError):
    """A setting, an argument or a file of settings is not valid, or this machine cannot satisfy it.

    The message is one sentence: which value, why, and which values are valid.
    """


class TaskError(ValueError):
    """A task is unknown or cannot be grown, its code fails, or its data are missing or damaged.

    The message is one sentence, with file and line if the user's code is at fault. `error.__context__` is then the
    exception of this code.
    """


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """A table of the TOML file."""


MAX_COUNT = 1_000_000_000
"""Default upper bound of counts."""
MAX_LEARNING_RATE = 100
"""Upper bound of the learning rates of hosts and seeds."""
RandomSeed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
PositiveInt = Annotated[int, Meta(ge=1, le=MAX_COUNT)]
Positive = Annotated[float, Meta(gt=0)]
NonNegativeWeight = Annotated[float, Meta(ge=0, le=1_000_000)]
"""Finite, because an infinite weight would make the weighted sum NaN. Clipping limits may be infinite."""
UnitFraction = Annotated[float, Meta(ge=0, le=1)]
SgdLearningRate = Annotated[float, Meta(gt=0, le=MAX_LEARNING_RATE)]
Momentum = Annotated[float, Meta(ge=0, lt=1)]


def unit(name: str) -> Meta:
    """Return the annotation of a number with a unit.

    Args:
        name: Plural, e.g. `steps`.
    """
    return Meta(extra={"unit": name})


StepCount = Annotated[int, Meta(ge=1, le=50), unit("steps")]
"""Number of steps over which a rule looks back; `MAX_STEPS` of `recordings/state/health_stats.py` are kept."""


def choices(**meanings: str) -> Meta:
    """Return the annotation of a text with one explanation for each of its words."""
    return Meta(extra={"choices": meanings})


PolicyName = Literal["ppo", "pretrained", "heuristic", "periodic", "random", "static", "full", "plan"]
"""Names of the built-in policies."""
RewardName = Literal["shaped", "simplified", "sparse"]
AmpName = Literal["auto", "off", "tf32", "bf16", "fp16"]
ScalerName = Literal["env", "device"]
CounterfactualName = Literal["ablation", "shapley", "off"]
HorizonName = Literal["episode", "continuing"]


class PPOConfig(Section, frozen=True, kw_only=True):
    """Recurrent PPO over whole episodes (Schulman et al., 2017; GAE: Schulman et al., 2016)."""

    learning_rate: Annotated[float, Meta(gt=0, le=1)] = 1e-3
    """learning rate of Adam; it falls linearly to a tenth by the last round"""
    gamma: UnitFraction = 1.0
    """discount factor per step; 1 optimises the return reported by evaluate"""
    horizon: Annotated[
        HorizonName,
        choices(
            episode="the end, and the policy sees it coming",
            continuing="an interruption; the critic estimates the rest; needs a gamma below 1",
        ),
    ] = "episode"
    """meaning of the end of an episode"""
    gae_lambda: UnitFraction = 0.95
    """decay of the generalised advantage estimate"""
    clip: Positive = 0.2
    """clipping range of the probability ratio around 1"""
    epochs: Annotated[PositiveInt, unit("passes")] = 4
    """maximum number of passes over the data of a round"""
    minibatches: Annotated[PositiveInt, unit("minibatches")] = 4
    """minibatches of whole env sequences per pass; never more than there are envs"""
    envs_per_host: Annotated[PositiveInt, unit("envs")] = 4
    """envs per round that share host initialisation and data order, so that they differ only in their decisions; 1
    disables sharing"""
    value_coef: NonNegativeWeight = 0.5
    """weight of the value loss"""
    entropy_coef: NonNegativeWeight = 0.08
    """weight of the bonus for exploration: the entropy of the choices, and the closeness of the op to a prior that
    mostly waits; it falls linearly to 0 by the last round"""
    max_grad_norm: Positive = 0.5
    """limit of the L2 norm of the whole gradient"""
    target_kl: Annotated[Positive, unit("nats")] = 0.03
    """KL divergence above which the update stops after the current pass"""
    hidden: Annotated[int, Meta(ge=1, le=16_384), unit("units")] = 128
    """width of the LSTM"""


class RewardConfig(Section, frozen=True, kw_only=True):
    """Weights of the reward components. The unit of the reward is the validation score, a fraction."""

    rent: Annotated[NonNegativeWeight, unit("score")] = 0.002
    """rent per step, times ln(1 + grown / host parameters)"""
    rent_floor: Annotated[PositiveInt, unit("parameters")] = 200
    """minimum of the host parameters in the rent; smaller hosts pay as if they had this many"""
    op: Annotated[NonNegativeWeight, unit("score")] = 0.001
    """cost of every op except WAIT"""
    dependence: NonNegativeWeight = 0.1
    """weight of the dependence potential; it changes the learning, not the optimum"""
    penalty: Annotated[NonNegativeWeight, unit("score")] = 1.0
    """penalty of a step in which an env breaks down and is rolled back"""


class TrainingConfig(Section, frozen=True, kw_only=True):
    """Training of hosts and seeds by the task's optimizer. Keys not given have the task's own value."""

    host_clip: Positive | None = None
    """limit of the L2 norm of the host's gradient"""
    seed_clip: Positive | None = None
    """limit of the L2 norm of the gradient of each seed"""
    host_learning_rate: SgdLearningRate | None = None
    """learning rate of the host, before the schedule of the task"""
    seed_learning_rate: SgdLearningRate | None = None
    """learning rate of each seed, before the schedule of the task"""
    batch_size: Annotated[PositiveInt | None, unit("samples")] = None
    """samples per optimizer step"""
    samples_per_epoch: Annotated[PositiveInt | None, unit("samples")] = None
    """samples of the training split that every env sees per step; at most the whole split"""
    momentum: Momentum | None = None
    """Nesterov momentum of host and seeds; only of tasks with SGD"""
    weight_decay: UnitFraction | None = None
    """weight decay of host and seeds, as the task's optimizer defines it"""


class AnomalyConfig(Section, frozen=True, kw_only=True):
    """Thresholds of the anomalies. They apply from recording on: an old recording keeps the anomalies that it has."""

    recovery: Annotated[float, Meta(gt=0, lt=1)] = 0.8
    """fraction of its threshold below which a value must fall before an anomaly ends; a minimum is divided by it"""
    explosion_factor: Annotated[float, Meta(gt=1)] = 10.0
    """multiple of its median in the episode above which a gradient norm explodes"""
    explosion_steps: StepCount = 3
    """consecutive steps with such a norm, above the clipping norm, of a host or a seed that affects the output"""
    chance_factor: Annotated[float, Meta(ge=1)] = 1.02
    """multiple of the chance loss above which a training loss is too high"""
    chance_steps: Annotated[int, Meta(ge=2, le=50), unit("steps")] = 5
    """consecutive steps in which the training loss of an env is too high, and does not fall"""
    skipped_steps: StepCount = 3
    """consecutive steps of an env with skipped batches"""
    dead_gradient: NonNegativeWeight = 1e-8
    """gradient norm below which a policy head or a seed is dead"""
    dead_seed_steps: StepCount = 3
    """consecutive steps in which a seed is dead"""
    stalled_steps: StepCount = 10
    """steps without a better score, at the end of an episode, from which on an env is stalled"""
    stalled_gap: Annotated[UnitFraction, unit("score")] = 0.1
    """distance of a stalled env's final score to the median of all envs; in a family, to that of its structure"""
    stalled_envs: UnitFraction = 0.25
    """fraction of the envs that stall, two envs or more"""
    stalled_rounds: Annotated[int, Meta(ge=1, le=10), unit("rounds")] = 3
    """consecutive rounds in which so many envs stall"""
    kl: Annotated[Positive, unit("nats")] = 0.1
    """KL divergence of a policy update that is a spike"""
    entropy: UnitFraction = 0.05
    """normalised entropy below which a policy head has stopped exploring"""
    memory: UnitFraction = 0.9
    """fraction of a device's memory in use above which it is nearly full"""
    memory_growth: Annotated[float, Meta(gt=0, le=1_000)] = 0.03
    """growth of the run's memory over five rounds, as a fraction; an anomaly if the memory grew in each of the five and
    may be full before the last round"""
    straggler_ratio: Annotated[float, Meta(gt=1)] = 1.5
    """multiple of the other lanes' time per env, over ten steps, above which a lane straggles"""
    stale_steps: Annotated[float, Meta(ge=1), unit("steps")] = 10.0
    """duration without an event, in usual steps, above which the dashboard calls the engine silent; at least five
    seconds"""


class Config(Section, frozen=True, kw_only=True):
    """A run. Each field is a key of the TOML file and an option; each section is a table of the file."""

    envs: Annotated[int, Meta(ge=1, le=65_536), unit("envs")] = 16
    """environments in a round"""
    devices: Annotated[tuple[str, ...], Meta(min_length=1)] = ("auto",)
    """lanes, e.g. cuda:0 cuda:1 or cpu:0 cpu:1; auto: every CUDA device, else one lane per core"""
    policy_device: str = "cpu"
    """device of the policy network, e.g. cuda:0; for the default network size a CPU is usually faster"""
    task: str = "digits_impaired"
    """task to train on"""
    policy: Annotated[
        str,
        Meta(min_length=1),
        choices(
            ppo="learns by reinforcement learning",
            pretrained="was trained on many hosts; ships in the package and does not learn",
            heuristic="follows hand-written rules",
            periodic="grows on a fixed schedule",
            random="takes random legal actions",
            static="never grows anything",
            full="plants a seed at every step",
            plan="does the same in every episode: --plan",
        ),
    ] = "ppo"
    """policy that decides what to grow; a run or a checkpoint for its trained policy; FILE.py or MODULE:NAME for one of
    your own"""
    plan: str = ""
    """plan of --policy plan: STEP:BLUEPRINT@SLOT or STEP:cull@SLOT, with steps from 1 and spaces between, e.g.
    '1:conv_light@early 2:depthwise@mid,tempo=5,alpha=0.7,style=linear_gate'"""
    init_policy: str = ""
    """trained policy that --policy ppo begins with: pretrained, a run or a checkpoint; none: random weights"""
    rounds: Annotated[int, Meta(ge=1, le=MAX_COUNT), unit("rounds")] = 70
    """rounds in the run; a round is one episode of every env and one policy update"""
    steps: Annotated[int, Meta(ge=1, le=100_000), unit("steps")] = 40
    """steps in an episode; a step is one decision and one epoch of training"""
    slots: tuple[str, ...] = ()
    """slots that the policy may use; none: all of the host's"""
    reward: Annotated[
        RewardName,
        choices(
            shaped="score gain and dependence potential, minus costs",
            simplified="score gain minus rent and op costs",
            sparse="simplified, all at the last step",
        ),
    ] = "shaped"
    """reward of a step"""
    counterfactual: Annotated[
        CounterfactualName,
        choices(
            ablation="switch one seed off",
            shapley="ablation, plus Shapley values at episode end",
            off="seeds can be fossilized unmeasured, no dependence reward",
        ),
    ] = "ablation"
    """how to measure dependences"""
    amp: Annotated[
        AmpName,
        choices(
            auto="bf16 on GPUs that are fast at it, else off; off for tasks tuned in float32",
            off="float32",
            tf32="float32 with TF32 products on GPUs",
            bf16="bfloat16 autocast",
            fp16="float16 autocast with loss scaling",
        ),
    ] = "auto"
    """mixed precision of host training"""
    scaler: Annotated[ScalerName, choices(env="overflows affect one env", device="shared by all envs of a lane")] = (
        "env"
    )
    """scope of the fp16 loss scale"""
    seed: RandomSeed = 0
    """random seed"""
    context_seed: RandomSeed = 0
    """random seed of the contexts of a task family; 0: that of the run"""
    telemetry_dir: Annotated[str, Meta(min_length=1)] = "telemetry"
    """directory to write runs to"""
    checkpoint_every: Annotated[int, Meta(ge=0, le=MAX_COUNT), unit("rounds")] = 10
    """rounds between checkpoints; 0: only on request and at the end"""
    keep: Annotated[int, Meta(ge=1, le=MAX_COUNT), unit("checkpoints")] = 3
    """number of checkpoints to keep"""
    sync_seconds: Annotated[float, Meta(ge=0, le=3600), unit("seconds")] = 5.0
    """seconds of events that a loss of power may cost; 0: sync every write"""
    patience_minutes: Annotated[float, Meta(ge=0, le=MAX_COUNT), unit("minutes")] = 30.0
    """minutes for which a run without dashboard waits while it cannot be recorded"""
    data_dir: str = ""
    """directory of the data sets; none: the user's cache directory"""
    training: TrainingConfig = TrainingConfig()
    ppo: PPOConfig = PPOConfig()
    reward_weights: RewardConfig = RewardConfig()
    anomalies: AnomalyConfig = AnomalyConfig()

    @property
    def shares_loss_scale(self) -> bool:
        """True if the envs of a lane share a loss scale, and so depend on each other in every batch."""
        return self.scaler == "device" and self.amp == "fp16"

    @property
    def envs_per_host(self) -> int:
        """Number of envs per round that share a host. Only PPO uses the differences between them; else 1."""
        return self.ppo.envs_per_host if self.policy == "ppo" else 1


GROWTH_CONFIG: Mapping[str, Any] = {
    "rounds": MAX_COUNT,
    "policy": "pretrained",
    "envs": 8,
    "steps": 15,
    "reward": "simplified",
    "checkpoint-every": 1,
}
"""Settings of a growth that differ from the defaults of a run. It ends with its search, not after some rounds."""


def default_config(*, is_growth: bool) -> Config:
    """Return the configuration of a run, or of a growth, without any setting of the user."""
    return msgspec.convert(GROWTH_CONFIG, Config) if is_growth else Config()
