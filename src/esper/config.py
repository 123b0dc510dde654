"""The configuration of a run: one typed, frozen structure, filled from the command line and TOML.

The command line beats the file, and the file beats the defaults. The TOML key of a field is its name with hyphens; its
option is the key, after the name of its table and a dot. Descriptions, units and limits are annotations of the fields,
and `config_fields` reads them. Devices are checked by the engine and task names by the task registry.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from esper.config_anomalies import AnomalyConfig
from esper.config_base import (
    MAX_COUNT,
    Momentum,
    NonNegativeWeight,
    Positive,
    PositiveInt,
    RandomSeed,
    Section,
    SgdLearningRate,
    UnitFraction,
)


class ConfigError(ValueError):
    """A configuration that is not valid. The message is one sentence for the user."""


class TaskError(ValueError):
    """An unknown task name, or a missing or damaged data set. The message is one sentence for the user."""


PolicyName = Literal["ppo", "pretrained", "heuristic", "periodic", "random", "static", "full", "plan"]
"""Names of the built-in policies."""
RewardName = Literal["shaped", "simplified", "sparse"]
AmpName = Literal["auto", "off", "tf32", "bf16", "fp16"]
ScalerName = Literal["env", "device"]
CounterfactualName = Literal["ablation", "shapley", "off"]
HorizonName = Literal["episode", "continuing"]


class PPOConfig(Section, frozen=True, kw_only=True):
    """Recurrent PPO over whole episodes (Schulman et al., 2017; GAE: Schulman et al., 2016)."""

    learning_rate: Annotated[
        float,
        Meta(gt=0, le=1, description="learning rate of Adam; it falls linearly to a tenth by the last round"),
    ] = 1e-3
    gamma: Annotated[
        UnitFraction, Meta(description="discount factor per step; 1 optimises the return reported by evaluate")
    ] = 1.0
    horizon: Annotated[
        HorizonName,
        Meta(
            description="meaning of the end of an episode",
            extra={
                "choices": {
                    "episode": "the end, and the policy sees it coming",
                    "continuing": "an interruption; the critic estimates the rest; needs a gamma below 1",
                }
            },
        ),
    ] = "episode"
    gae_lambda: Annotated[UnitFraction, Meta(description="decay of the generalised advantage estimate")] = 0.95
    clip: Annotated[Positive, Meta(description="clipping range of the probability ratio around 1")] = 0.2
    epochs: Annotated[
        PositiveInt, Meta(description="maximum number of passes over the data of a round", extra={"unit": "passes"})
    ] = 4
    minibatches: Annotated[
        PositiveInt,
        Meta(
            description="minibatches of whole env sequences per pass; never more than there are envs",
            extra={"unit": "minibatches"},
        ),
    ] = 4
    envs_per_host: Annotated[
        PositiveInt,
        Meta(
            description="envs per round that share host initialisation and data order, so that they differ only in "
            "their decisions; 1 disables sharing",
            extra={"unit": "envs"},
        ),
    ] = 4
    value_coef: Annotated[NonNegativeWeight, Meta(description="weight of the value loss")] = 0.5
    entropy_coef: Annotated[
        NonNegativeWeight,
        Meta(
            description="weight of the bonus for exploration: the entropy of the choices, and the closeness of the op "
            "to a prior that mostly waits; it falls linearly to 0 by the last round"
        ),
    ] = 0.08
    max_grad_norm: Annotated[Positive, Meta(description="limit of the L2 norm of the whole gradient")] = 0.5
    target_kl: Annotated[
        Positive,
        Meta(description="KL divergence above which the update stops after the current pass", extra={"unit": "nats"}),
    ] = 0.03
    hidden: Annotated[int, Meta(ge=1, le=16_384, description="width of the LSTM", extra={"unit": "units"})] = 128


class RewardConfig(Section, frozen=True, kw_only=True):
    """Weights of the reward components. The unit of the reward is validation accuracy, a fraction."""

    rent: Annotated[
        NonNegativeWeight,
        Meta(description="rent per step, times ln(1 + grown / host parameters)", extra={"unit": "accuracy"}),
    ] = 0.002
    rent_floor: Annotated[
        PositiveInt,
        Meta(
            description="minimum of the host parameters in the rent; smaller hosts pay as if they had this many",
            extra={"unit": "parameters"},
        ),
    ] = 200
    op: Annotated[NonNegativeWeight, Meta(description="cost of every op except WAIT", extra={"unit": "accuracy"})] = (
        0.001
    )
    contribution: Annotated[
        NonNegativeWeight,
        Meta(description="weight of the contribution potential; it changes the learning, not the optimum"),
    ] = 0.1
    penalty: Annotated[
        NonNegativeWeight,
        Meta(
            description="penalty of a step in which an env breaks down and is rolled back", extra={"unit": "accuracy"}
        ),
    ] = 1.0


class TrainingConfig(Section, frozen=True, kw_only=True):
    """Training of hosts and seeds by the task's optimizer, SGD or AdamW. Keys not given have the task's own value."""

    host_clip: Annotated[Positive, Meta(description="limit of the L2 norm of the host's gradient")] = 1.0
    seed_clip: Annotated[Positive, Meta(description="limit of the L2 norm of the gradient of each seed")] = 1.0
    host_learning_rate: Annotated[
        SgdLearningRate | None,
        Meta(description="learning rate of the host; it falls in the last quarter of an episode"),
    ] = None
    seed_learning_rate: Annotated[
        SgdLearningRate | None,
        Meta(description="learning rate of each seed; it falls in the last quarter of an episode"),
    ] = None
    batch_size: Annotated[
        PositiveInt | None, Meta(description="samples per optimizer step", extra={"unit": "samples"})
    ] = None
    samples_per_epoch: Annotated[
        PositiveInt | None,
        Meta(
            description="samples of the training split that every env sees per step; at most the whole split",
            extra={"unit": "samples"},
        ),
    ] = None
    momentum: Annotated[
        Momentum | None, Meta(description="Nesterov momentum of host and seeds; only of tasks with SGD")
    ] = None
    weight_decay: Annotated[
        UnitFraction | None,
        Meta(description="weight decay of host and seeds, as the task's optimizer defines it"),
    ] = None


class Config(Section, frozen=True, kw_only=True):
    """A run. Each field is a key of the TOML file and an option; each section is a table of the file."""

    envs: Annotated[int, Meta(ge=1, le=65_536, description="environments in a round", extra={"unit": "envs"})] = 16
    devices: Annotated[
        tuple[str, ...],
        Meta(
            min_length=1,
            description="lanes, e.g. cuda:0 cuda:1 or cpu:0 cpu:1; auto: every CUDA device, else one lane per core",
        ),
    ] = ("auto",)
    policy_device: Annotated[
        str,
        Meta(
            description="device of the policy network, e.g. cuda:0; for the default network size a CPU is usually "
            "faster"
        ),
    ] = "cpu"
    task: Annotated[str, Meta(description="task to train on")] = "digits_impaired"
    policy: Annotated[
        str,
        Meta(
            min_length=1,
            description="policy that decides what to grow; a run or a checkpoint for its trained policy; FILE.py or "
            "MODULE:NAME for one of your own",
            extra={
                "choices": {
                    "ppo": "learns by reinforcement learning",
                    "pretrained": "was trained on many hosts; ships in the package and does not learn",
                    "heuristic": "follows hand-written rules",
                    "periodic": "grows on a fixed schedule",
                    "random": "takes random legal actions",
                    "static": "never grows anything",
                    "full": "plants a seed at every step",
                    "plan": "does the same in every episode: --plan",
                }
            },
        ),
    ] = "ppo"
    plan: Annotated[
        str,
        Meta(
            description="plan of --policy plan: BLUEPRINT@SLOT:STEP or cull@SLOT:STEP, with steps from 0 and spaces "
            "between, e.g. 'conv_light@early:0 depthwise@mid:1,tempo=5,alpha=0.7,style=linear_gate'"
        ),
    ] = ""
    init_policy: Annotated[
        str,
        Meta(
            description="trained policy that --policy ppo begins with: pretrained, a run or a checkpoint; none: random "
            "weights"
        ),
    ] = ""
    rounds: Annotated[
        int,
        Meta(
            ge=1,
            le=MAX_COUNT,
            description="rounds in the run; a round is one episode of every env and one policy update",
            extra={"unit": "rounds"},
        ),
    ] = 70
    steps: Annotated[
        int,
        Meta(
            ge=1,
            le=100_000,
            description="steps in an episode; a step is one decision and one epoch of training",
            extra={"unit": "steps"},
        ),
    ] = 40
    slots: Annotated[tuple[str, ...], Meta(description="slots that the policy may use; none: all of the host's")] = ()
    reward: Annotated[
        RewardName,
        Meta(
            description="reward of a step",
            extra={
                "choices": {
                    "shaped": "accuracy gain and contribution potential, minus costs",
                    "simplified": "accuracy gain minus rent and op costs",
                    "sparse": "simplified, all at the last step",
                }
            },
        ),
    ] = "shaped"
    counterfactual: Annotated[
        CounterfactualName,
        Meta(
            description="how to measure contributions",
            extra={
                "choices": {
                    "ablation": "switch one seed off",
                    "shapley": "ablation, plus Shapley values at episode end",
                    "off": "seeds can be fossilized unmeasured, no contribution reward",
                }
            },
        ),
    ] = "ablation"
    amp: Annotated[
        AmpName,
        Meta(
            description="mixed precision of host training",
            extra={
                "choices": {
                    "auto": "bf16 on GPUs that are fast at it, else off; off for tasks tuned in float32",
                    "off": "float32",
                    "tf32": "float32 with TF32 products on GPUs",
                    "bf16": "bfloat16 autocast",
                    "fp16": "float16 autocast with loss scaling",
                }
            },
        ),
    ] = "auto"
    scaler: Annotated[
        ScalerName,
        Meta(
            description="scope of the fp16 loss scale",
            extra={
                "choices": {
                    "env": "overflows affect one env",
                    "device": "shared by all envs of a lane",
                }
            },
        ),
    ] = "env"
    seed: Annotated[RandomSeed, Meta(description="random seed")] = 0
    context_seed: Annotated[
        RandomSeed, Meta(description="random seed of the contexts of a task family; 0: that of the run")
    ] = 0
    telemetry_dir: Annotated[str, Meta(min_length=1, description="directory to write runs to")] = "telemetry"
    checkpoint_every: Annotated[
        int,
        Meta(
            ge=0,
            le=MAX_COUNT,
            description="rounds between checkpoints; 0: only on request and at the end",
            extra={"unit": "rounds"},
        ),
    ] = 10
    keep: Annotated[
        int, Meta(ge=1, le=MAX_COUNT, description="number of checkpoints to keep", extra={"unit": "checkpoints"})
    ] = 3
    sync_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=3600,
            description="seconds of events that a loss of power may cost; 0: sync every write",
            extra={"unit": "seconds"},
        ),
    ] = 5.0
    patience_minutes: Annotated[
        float,
        Meta(
            ge=0,
            le=MAX_COUNT,
            description="minutes for which a run without dashboard waits while it cannot be recorded",
            extra={"unit": "minutes"},
        ),
    ] = 30.0
    data_dir: Annotated[str, Meta(description="directory of the data sets; none: the user's cache directory")] = ""
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
