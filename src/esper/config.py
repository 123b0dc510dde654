"""The configuration of a run: one typed, frozen structure that the command line and a TOML file fill.

Command line beats file beats defaults. A field's option and its TOML key are its name with hyphens. What msgspec's
constraints cannot say is checked where the thing is resolved: devices by the engine, tasks by their registry.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta


class ConfigError(ValueError):
    """A request that cannot be carried out as it stands; its text is one sentence for the person who made it."""


def nearest(word: str, names: Iterable[str]) -> str:
    """`did you mean …` with the nearest valid name, or the list of all of them."""
    names = list(names)
    close = difflib.get_close_matches(word, names, n=1)
    return f"did you mean {close[0]}?" if close else f"valid: {', '.join(sorted(names))}"


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """A table of the TOML file."""


PositiveInt = Annotated[int, Meta(ge=1)]
Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]


class PPOConfig(_Section, frozen=True, kw_only=True):
    """`[ppo]`: recurrent PPO over whole episodes (Schulman et al., 2017; GAE: Schulman et al., 2016)."""

    learning_rate: Positive = 1e-3
    """Adam's, at the start; it falls linearly to a tenth by the last round."""
    gamma: Share = 0.99
    gae_lambda: Share = 0.95
    clip: Positive = 0.2
    epochs: PositiveInt = 4
    minibatches: PositiveInt = 4
    """Minibatches of whole env sequences in an epoch; never more than there are envs."""
    value_coef: NotNegative = 0.5
    entropy_coef: NotNegative = 0.02
    """At the start; it falls linearly to a tenth by the last round."""
    max_grad_norm: Positive = 0.5
    target_kl: Positive = 0.03
    """An epoch that ends above it is the update's last."""
    hidden: PositiveInt = 128
    """Width of the LSTM."""


class RewardConfig(_Section, frozen=True, kw_only=True):
    """`[reward-weights]`: what a step is worth, in units of validation accuracy."""

    rent: NotNegative = 0.002
    """Per step, times ln(1 + grown parameters / host parameters)."""
    rent_floor: PositiveInt = 200
    """Host parameters below which a host is charged as if it had this many."""
    contribution: NotNegative = 0.5
    """Weight of the contribution potential; it changes the learning, not the optimum."""


class TrainingConfig(_Section, frozen=True, kw_only=True):
    """`[training]`: how the hosts and seeds are trained, beyond what their task says."""

    host_clip: Positive = 1.0
    """Limit of the L2 norm of a host's gradient."""
    seed_clip: Positive = 1.0
    """The same for each seed, by itself."""


PolicyName = Literal["ppo", "heuristic", "random", "static"]
RewardName = Literal["shaped", "simplified", "sparse"]


class Config(_Section, frozen=True, kw_only=True):
    """A run. Each field is an option; each section a table of the TOML file."""

    envs: Annotated[int, Meta(ge=1, description="environments in a round")] = 16
    devices: Annotated[
        tuple[str, ...],
        Meta(
            min_length=1,
            description="lanes, e.g. cuda:0 cuda:1 or cpu:0 cpu:1; auto: every CUDA device, else one per core",
        ),
    ] = ("auto",)
    task: Annotated[str, Meta(description="what the hosts learn")] = "digits_impaired"
    policy: Annotated[PolicyName, Meta(description=f"who grows the networks: {', '.join(get_args(PolicyName))}")] = (
        "ppo"
    )
    rounds: Annotated[int, Meta(ge=1, description="rounds in the run: an episode of every env, then an update")] = 100
    steps: Annotated[int, Meta(ge=1, description="steps in an episode: a decision, then an epoch of training")] = 25
    slots: Annotated[
        tuple[str, ...], Meta(description="slots that the policy may use; default: all of the host's")
    ] = ()
    reward: Annotated[RewardName, Meta(description=f"reward of a step: {', '.join(get_args(RewardName))}")] = "shaped"
    seed: Annotated[int, Meta(ge=0, description="everything random comes from it")] = 0
    telemetry_dir: Annotated[str, Meta(description="where runs are written")] = "telemetry"
    checkpoint_every: Annotated[
        int, Meta(ge=0, description="rounds between checkpoints; 0: only when asked and at the end")
    ] = 10
    keep: Annotated[int, Meta(ge=1, description="checkpoints kept")] = 3
    data_dir: Annotated[
        str, Meta(description="where data sets are looked for; default: the user's cache directory")
    ] = ""
    training: TrainingConfig = TrainingConfig()
    ppo: PPOConfig = PPOConfig()
    reward_weights: RewardConfig = RewardConfig()


def resolve(file: Path | None, options: Mapping[str, Any], base: Mapping[str, Any] | None = None) -> Config:
    """The configuration of a run from a TOML file, where there is one, and the options given on the command line.

    Args:
        file: `--config`.
        options: value by field name; only those that were given.
        base: in place of the defaults, by key: the configuration of the checkpoint that the run goes on from.

    Raises:
        ConfigError: the file cannot be read, or a key is unknown, or a value is refused.
    """
    table = _read(file) if file else {}
    _check_keys(table, Config, f"{file}")
    given = {name.replace("_", "-"): value for name, value in options.items()}
    try:
        return msgspec.convert({**(base or {}), **table, **given}, Config, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(_explain(str(error), given, file)) from None


def check_name(what: str, name: str, names: Collection[str]) -> None:
    """Refuse a name that is not one of `names`.

    Raises:
        ConfigError: with the nearest valid name.
    """
    if name not in names:
        raise ConfigError(f"unknown {what} {name!r}: {nearest(name, names)}")


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read --config {file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {file} is not TOML: {error}") from None


def _check_keys(table: Mapping[str, Any], section: type[msgspec.Struct], where: str) -> None:
    """msgspec names an unknown key; this names the nearest valid one as well."""
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(section)}
    for key, value in table.items():
        if key not in fields:
            raise ConfigError(f"unknown key {key!r} in {where}: {nearest(key, fields)}")
        kind = fields[key]
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            if not isinstance(value, dict):
                raise ConfigError(f"{key!r} in {where} must be a table, [{key}]")
            _check_keys(value, kind, f"[{key}] of {where}")


def _explain(message: str, given: Mapping[str, Any], file: Path | None) -> str:
    """Turn msgspec's `Expected `int` >= 1 - at `$.envs`` into a sentence that names the option and its value."""
    complaint, _, path = message.partition(" - at `$.")
    key = path.rstrip("`").split("[")[0]
    source = f"--{key}" if key in given else f"{key!r} in {file}"
    value = f" {given[key]!r}" if key in given else ""
    choices = {"policy": PolicyName, "reward": RewardName}
    if key in choices and key in given:
        complaint = nearest(str(given[key]), get_args(choices[key]))
    complaint = complaint.replace("Expected ", "it must be ").replace("`", "")
    return f"{source}{value} is not valid: {complaint}"
