"""The configuration of a run: one typed, frozen structure that the command line and a TOML file fill.

Command line beats file beats defaults. A field's option and its TOML key are its name with hyphens. What msgspec's
constraints cannot say is checked where the thing is resolved: devices by the engine, tasks by their registry.
"""

from __future__ import annotations

import json
import textwrap
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from esper.nearest import nearest


class ConfigError(ValueError):
    """A request that cannot be carried out as it stands; its text is one sentence for the person who made it."""


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """A table of the TOML file."""


MOST = 1_000_000_000
"""Of what is counted and has no other limit."""
PositiveInt = Annotated[int, Meta(ge=1, le=MOST)]
Positive = Annotated[float, Meta(gt=0)]
Weight = Annotated[float, Meta(ge=0, le=1e6)]
"""Of what is added up, where infinity would leave no number: a limit may be infinite."""
Share = Annotated[float, Meta(ge=0, le=1)]


HorizonName = Literal["episode", "continuing"]


class PPOConfig(_Section, frozen=True, kw_only=True):
    """Recurrent PPO over whole episodes (Schulman et al., 2017; GAE: Schulman et al., 2016)."""

    learning_rate: Annotated[
        float, Meta(gt=0, le=1, description="Adam's, at the start; it falls linearly to a tenth by the last round")
    ] = 1e-3
    gamma: Annotated[Share, Meta(description="discount of a step; 1 is the return that evaluate sums")] = 1.0
    horizon: Annotated[
        HorizonName,
        Meta(
            description="what the end of an episode is; episode: the end, as the policy sees it coming; continuing: an "
            "interruption, after which the critic's estimate stands in for what would have come; with a gamma below 1"
        ),
    ] = "episode"
    gae_lambda: Annotated[Share, Meta(description="decay of the generalised advantage estimate")] = 0.95
    clip: Annotated[Positive, Meta(description="how far a probability ratio may leave 1")] = 0.2
    epochs: Annotated[PositiveInt, Meta(description="passes over a round's experience, at most")] = 4
    minibatches: Annotated[
        PositiveInt,
        Meta(description="minibatches of whole env sequences in an epoch; never more than there are envs"),
    ] = 4
    envs_per_host: Annotated[
        PositiveInt,
        Meta(
            description="envs that train the same host on the same data in a round, so that they differ by what was "
            "decided alone; 1: each its own"
        ),
    ] = 4
    value_coef: Annotated[Weight, Meta(description="weight of the value loss")] = 0.5
    entropy_coef: Annotated[
        Weight,
        Meta(description="entropy bonus at the start; it falls linearly to nothing in the last round"),
    ] = 0.08
    max_grad_norm: Annotated[Positive, Meta(description="limit of the L2 norm of the whole gradient")] = 0.5
    target_kl: Annotated[Positive, Meta(description="an epoch that ends above it is the update's last, nats")] = 0.03
    hidden: Annotated[int, Meta(ge=1, le=16_384, description="width of the LSTM")] = 128


class RewardConfig(_Section, frozen=True, kw_only=True):
    """What a step is worth, in units of validation accuracy."""

    rent: Annotated[Weight, Meta(description="of a step, times ln(1 + grown / host parameters)")] = 0.002
    rent_floor: Annotated[
        PositiveInt, Meta(description="a host with fewer parameters is charged as if it had this many")
    ] = 200
    op: Annotated[Weight, Meta(description="charge of every op but WAIT")] = 0.001
    contribution: Annotated[
        Weight,
        Meta(description="weight of the contribution potential; it changes the learning, not the optimum"),
    ] = 0.1
    penalty: Annotated[
        Weight, Meta(description="charge of the step in which an env breaks down and the governor takes it back")
    ] = 1.0


class TrainingConfig(_Section, frozen=True, kw_only=True):
    """How the hosts and seeds are trained, beyond what their task says."""

    host_clip: Annotated[Positive, Meta(description="limit of the L2 norm of a host's gradient")] = 1.0
    seed_clip: Annotated[Positive, Meta(description="the same for each seed, by itself")] = 1.0


PolicyName = Literal["ppo", "heuristic", "periodic", "random", "static", "full"]
RewardName = Literal["shaped", "simplified", "sparse"]
AmpName = Literal["auto", "off", "bf16", "fp16"]
ScalerName = Literal["env", "device"]
CounterfactualName = Literal["ablation", "shapley", "off"]


class Config(_Section, frozen=True, kw_only=True):
    """A run. Each field is an option; each section a table of the TOML file."""

    envs: Annotated[int, Meta(ge=1, le=65_536, description="environments in a round")] = 16
    devices: Annotated[
        tuple[str, ...],
        Meta(
            min_length=1,
            description="lanes, e.g. cuda:0 cuda:1 or cpu:0 cpu:1; auto: every CUDA device, else one per core",
        ),
    ] = ("auto",)
    policy_device: Annotated[
        str,
        Meta(
            description="where the policy decides and learns, e.g. cuda:0; a small recurrent network that acts once in "
            "a step is launched faster on a CPU than on a GPU, which then has more for the hosts"
        ),
    ] = "cpu"
    task: Annotated[str, Meta(description="what the hosts learn")] = "digits_impaired"
    policy: Annotated[PolicyName, Meta(description=f"who grows the networks: {', '.join(get_args(PolicyName))}")] = (
        "ppo"
    )
    rounds: Annotated[
        int, Meta(ge=1, le=MOST, description="rounds in the run: an episode of every env, then an update")
    ] = 70
    steps: Annotated[
        int, Meta(ge=1, le=100_000, description="steps in an episode: a decision, then an epoch of training")
    ] = 40
    slots: Annotated[
        tuple[str, ...], Meta(description="slots that the policy may use; default: all of the host's")
    ] = ()
    reward: Annotated[RewardName, Meta(description=f"reward of a step: {', '.join(get_args(RewardName))}")] = "shaped"
    counterfactual: Annotated[
        CounterfactualName,
        Meta(
            description="how contributions are measured: ablation; shapley: also Shapley values at the end of an "
            "episode; off: not at all, so that seeds become permanent untried and the shaped reward has no such part"
        ),
    ] = "ablation"
    amp: Annotated[
        AmpName, Meta(description="autocast of the hosts' training; auto: bf16 on a GPU that is fast at it, else off")
    ] = "auto"
    scaler: Annotated[
        ScalerName,
        Meta(
            description="whose loss scale under fp16; env: each env its own, so that an overflow costs nobody else "
            "(scales may drift apart, which is shown); device: one for all envs of a lane, which every overflow halves"
        ),
    ] = "env"
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1, description="everything random comes from it")] = 0
    telemetry_dir: Annotated[str, Meta(min_length=1, description="where runs are written")] = "telemetry"
    checkpoint_every: Annotated[
        int, Meta(ge=0, le=MOST, description="rounds between checkpoints; 0: only when asked and at the end")
    ] = 10
    keep: Annotated[int, Meta(ge=1, le=MOST, description="checkpoints kept")] = 3
    data_dir: Annotated[
        str, Meta(description="where data sets are looked for; default: the user's cache directory")
    ] = ""
    training: TrainingConfig = TrainingConfig()
    ppo: PPOConfig = PPOConfig()
    reward_weights: RewardConfig = RewardConfig()

    @property
    def envs_per_host(self) -> int:
        """How many envs train the same host in a round: one, unless somebody learns from their differences."""
        return self.ppo.envs_per_host if self.policy == "ppo" else 1


def read_table(file: Path | None) -> dict[str, Any]:
    """What a TOML file says, where there is one; its keys are known. Raises ConfigError."""
    table = _read(file) if file else {}
    _check_keys(table, Config, f"{file}")
    return table


def resolve(
    file: Path | None,
    options: Mapping[str, Any],
    base: Mapping[str, Any] | None = None,
    table: Mapping[str, Any] | None = None,
) -> Config:
    """The configuration of a run from a TOML file, where there is one, and the options given on the command line.

    Args:
        file: `--config`.
        options: value by field name; only those that were given.
        base: in place of the defaults, by key: the configuration of the checkpoint that the run goes on from.
        table: what the file says, where that was read before: a pipe says it once.

    Raises:
        ConfigError: the file cannot be read, or a key is unknown, or a value is refused.
    """
    table = read_table(file) if table is None else table
    given = {name.replace("_", "-"): value for name, value in options.items()}
    values = {**_merged(base or {}, table), **given}
    try:
        return msgspec.convert(values, Config, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(_explain(str(error), values, given, file)) from None


def _merged(base: Mapping[str, Any], table: Mapping[str, Any]) -> dict[str, Any]:
    """The base with what the file says in its place; a table of it replaces only the keys that it has."""
    merged = {**base, **table}
    for key, value in table.items():
        before = base.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            merged[key] = {**before, **value}
    return merged


def as_toml(config: Config) -> str:
    """TOML that `resolve` reads back as the same configuration, with what each field means as a comment."""
    return "".join(_toml_lines(config))


def _toml_lines(section: _Section) -> Iterator[str]:
    hints = get_type_hints(type(section), include_extras=True)
    for field in msgspec.structs.fields(section):
        value = getattr(section, field.name)
        if isinstance(value, _Section):
            yield f"\n# {type(value).__doc__}\n[{field.encode_name}]\n"
            yield from _toml_lines(value)
            continue
        notes = [note for note in get_args(hints[field.name]) if isinstance(note, Meta)]
        described = "; ".join(note.description for note in notes if note.description)
        yield textwrap.fill(described, 100, initial_indent="# ", subsequent_indent="# ") + "\n"
        yield f"{field.encode_name} = {_toml_value(value)}\n"


def _toml_value(value: str | float | tuple[str, ...]) -> str:
    match value:
        case str():
            # A string of JSON is one of TOML, but for DEL, which TOML wants escaped.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case tuple():
            return f"[{', '.join(map(_toml_value, value))}]"
        case _:
            return repr(value)


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
            raise ConfigError(f"unknown key {key!r} in {where}: {nearest(key, fields)}")
        kind = fields[key]
        is_table = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
        if isinstance(value, dict) and not is_table:
            tables = [name for name, kind in fields.items() if isinstance(kind, type)]
            raise ConfigError(f"unknown table {key!r} in {where}: {nearest(key, tables)}")
        if is_table:
            if not isinstance(value, dict):
                raise ConfigError(f"{key!r} in {where} must be a table, [{key}]")
            _check_keys(value, kind, f"[{key}] of {where}")


_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "array": "a list",
    "object": "a table",
    "bool": "true or false",
}
"""Of msgspec's terms, for people."""


def _explain(message: str, values: Mapping[str, Any], given: Mapping[str, Any], file: Path | None) -> str:
    """Turn msgspec's `Expected `int` >= 1 - at `$.envs`` into a sentence that names the option and its value."""
    complaint, _, path = message.partition(" - at `$.")
    key = path.rstrip("`").split("[")[0]
    value: Any = values
    for part in key.split("."):
        value = value[part]
    source = f"{key} = {value!r} in {file}"
    if key in given:
        source = f"--{key} {value!r}"
        complaint = complaint.removesuffix(", got `str`")  # whatever stands on a command line is one
    if choices := _choices(key):
        complaint = nearest(str(value), choices)
    for term, words in _WORDS.items():
        complaint = complaint.replace(f"`{term}`", words)
    complaint = complaint.replace("Expected ", "it must be ").replace("got ", "not ").replace("`", "")
    return f"{source} is not valid: {complaint}"


def _choices(key: str) -> tuple[str, ...]:
    """The values that a key such as `amp` or `ppo.horizon` may take, if they are words; else none."""
    kind: Any = Config
    for part in key.split("."):
        kind = next(field.type for field in msgspec.structs.fields(kind) if field.encode_name == part)
    plain = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    return get_args(plain) if get_origin(plain) is Literal else ()
