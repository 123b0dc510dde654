"""The configuration of a run: one typed, frozen structure, filled from the command line and TOML.

The command line beats the file, and the file beats the defaults. The TOML key of a field is its name with hyphens; its
option is the key, after the name of its table and a dot. Descriptions, units and limits are annotations of the fields,
and `config_fields` reads them. Devices are checked by the engine and task names by the task registry.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from esper.config_fields import list_fields
from esper.formatting import suggest


class ConfigError(ValueError):
    """A request that cannot be carried out as it stands; its text is one sentence for the person who made it."""


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """A table of the TOML file."""


MAX_COUNT = 1_000_000_000
"""Default upper bound of counts."""
PositiveInt = Annotated[int, Meta(ge=1, le=MAX_COUNT)]
Positive = Annotated[float, Meta(gt=0)]
NonNegativeWeight = Annotated[float, Meta(ge=0, le=1_000_000)]
"""Finite, because an infinite weight would make the weighted sum NaN. Clipping limits may be infinite."""
UnitFraction = Annotated[float, Meta(ge=0, le=1)]
SgdLearningRate = Annotated[float, Meta(gt=0, le=100)]
Momentum = Annotated[float, Meta(ge=0, lt=1)]

PolicyName = Literal["ppo", "heuristic", "periodic", "random", "static", "full"]
RewardName = Literal["shaped", "simplified", "sparse"]
AmpName = Literal["auto", "off", "bf16", "fp16"]
ScalerName = Literal["env", "device"]
CounterfactualName = Literal["ablation", "shapley", "off"]
HorizonName = Literal["episode", "continuing"]


class PPOConfig(_Section, frozen=True, kw_only=True):
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
        NonNegativeWeight, Meta(description="weight of the entropy bonus; it falls linearly to 0 by the last round")
    ] = 0.08
    max_grad_norm: Annotated[Positive, Meta(description="limit of the L2 norm of the whole gradient")] = 0.5
    target_kl: Annotated[
        Positive,
        Meta(description="KL divergence above which the update stops after the current pass", extra={"unit": "nats"}),
    ] = 0.03
    hidden: Annotated[int, Meta(ge=1, le=16_384, description="width of the LSTM", extra={"unit": "units"})] = 128


class RewardConfig(_Section, frozen=True, kw_only=True):
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


class TrainingConfig(_Section, frozen=True, kw_only=True):
    """Training of hosts and seeds by SGD with Nesterov momentum. Keys that are not given have the task's own value."""

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
    momentum: Annotated[Momentum | None, Meta(description="Nesterov momentum of host and seeds")] = None
    weight_decay: Annotated[
        UnitFraction | None,
        Meta(description="weight decay of host and seeds, added to the gradient times the parameter"),
    ] = None


class Config(_Section, frozen=True, kw_only=True):
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
        PolicyName,
        Meta(
            description="policy that decides what to grow",
            extra={
                "choices": {
                    "ppo": "learns by reinforcement learning",
                    "heuristic": "follows hand-written rules",
                    "periodic": "grows on a fixed schedule",
                    "random": "takes random legal actions",
                    "static": "never grows anything",
                    "full": "plants a seed at every step",
                }
            },
        ),
    ] = "ppo"
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
                    "auto": "bf16 on GPUs that are fast at it, else off",
                    "off": "float32",
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
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1, description="random seed")] = 0
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
    data_dir: Annotated[str, Meta(description="directory of the data sets; none: the user's cache directory")] = ""
    training: TrainingConfig = TrainingConfig()
    ppo: PPOConfig = PPOConfig()
    reward_weights: RewardConfig = RewardConfig()

    @property
    def envs_per_host(self) -> int:
        """How many envs train the same host in a round: one, unless somebody learns from their differences."""
        return self.ppo.envs_per_host if self.policy == "ppo" else 1


def read_config_file(file: Path | None) -> dict[str, Any]:
    """What a TOML file says, where there is one; its keys are known. Raises ConfigError."""
    table = _read(file) if file else {}
    _check_keys(table, Config, f"{file}")
    return table


def resolve_config(
    file: Path | None,
    options: Mapping[str, Any],
    base: Mapping[str, Any] | None = None,
    table: Mapping[str, Any] | None = None,
) -> Config:
    """The configuration of a run from a TOML file, where there is one, and the options given on the command line.

    Args:
        file: `--config`.
        options: given options by field name, e.g. `envs`, or `ppo.learning_rate` for a key of a table.
        base: in place of the defaults, by key: the configuration of the checkpoint that the run goes on from.
        table: what the file says, where that was read before: a pipe says it once.

    Raises:
        ConfigError: the file cannot be read, or a key is unknown, or a value is refused.
    """
    table = read_config_file(file) if table is None else table
    given = {name.replace("_", "-"): value for name, value in options.items()}
    values = _merged(base or {}, table)
    for key, value in given.items():
        table_name, _, name = key.rpartition(".")
        if table_name:
            values[table_name] = {**values.get(table_name, {}), name: value}
        else:
            values[key] = value
    try:
        return msgspec.convert(values, Config, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(_format_validation_error(str(error), values, given, file)) from None


def _merged(base: Mapping[str, Any], table: Mapping[str, Any]) -> dict[str, Any]:
    """The base with what the file says in its place; a table of it replaces only the keys that it has."""
    merged = {**base, **table}
    for key, value in table.items():
        before = base.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            merged[key] = {**before, **value}
    return merged


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"cannot read --config {file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {file} is not TOML: {error}") from None


def _check_keys(table: Mapping[str, Any], section: type[msgspec.Struct], where: str) -> None:
    """msgspec names an unknown key; this names the nearest valid one as well."""
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(section)}
    for key, value in table.items():
        if key not in fields:
            raise ConfigError(f"unknown key {key!r} in {where}: {suggest(key, fields)}")
        kind = fields[key]
        is_table = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
        if isinstance(value, dict) and not is_table:
            tables = [name for name, kind in fields.items() if isinstance(kind, type)]
            raise ConfigError(f"unknown table {key!r} in {where}: {suggest(key, tables)}")
        if is_table:
            if not isinstance(value, dict):
                raise ConfigError(f"{key!r} in {where} must be a table, [{key}]")
            _check_keys(value, kind, f"[{key}] of {where}")


_TYPE_NAMES = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "array": "a list",
    "object": "a table",
    "bool": "true or false",
}
"""Of msgspec's terms, for people."""


def _format_validation_error(
    message: str, values: Mapping[str, Any], given: Mapping[str, Any], file: Path | None
) -> str:
    """Turn msgspec's `Expected `int` >= 1 - at `$.envs`` into a sentence that names the option and its value."""
    complaint, _, path = message.replace(" | null`", "`").partition(" - at `$.")
    key = path.rstrip("`").split("[")[0]
    value: Any = values
    for part in key.split("."):
        value = value[part]
    source = f"{key} = {value!r} in {file}"
    if key in given:
        source = f"--{key} {value!r}"
        complaint = complaint.removesuffix(", got `str`")  # whatever stands on a command line is one
    choices = next((field.choices for field in list_fields(Config) if field.key == key), None)
    if choices:
        complaint = suggest(str(value), choices)
    for term, words in _TYPE_NAMES.items():
        complaint = complaint.replace(f"`{term}`", words)
    complaint = complaint.replace("Expected ", "it must be ").replace("got ", "not ").replace("`", "")
    return f"{source} is not valid: {complaint}"


class TaskError(ValueError):
    """An unknown task name, or a missing or damaged data set. The message is one sentence for the user."""
