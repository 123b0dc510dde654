"""The public surface, word for word: commands, options, configuration keys, Python names, event fields, stored values.

Removing a name or changing its meaning breaks scripts, TOML files, checkpoints or recordings. `SCHEMA` in
`telemetry/events/` and `CHECKPOINT_FORMAT` in `recordings/checkpoints/manifest.py` count such changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import get_args

import msgspec
import pytest

import esper
from esper.api.recorded_run import RecordedDecision, RecordedRun
from esper.cli.commands import COMMANDS
from esper.cli.main import main
from esper.common.configuration.config import (
    AmpName,
    Config,
    CounterfactualName,
    HorizonName,
    PolicyName,
    RewardName,
    ScalerName,
)
from esper.common.configuration.fields import list_fields
from esper.common.control import RequestKind
from esper.common.domain import HEADS, AlphaCurve, Op, Stage
from esper.networks.seeds.blend import ALPHA_TARGETS, BLEND_STYLES, INITIAL_RAMP_EPOCHS, RAMP_EPOCHS, Blend
from esper.networks.seeds.blueprints import BLUEPRINTS
from esper.networks.tasks import TASK_NAMES
from esper.recordings import events as ev
from esper.recordings.checkpoints.manifest import CHECKPOINT_FORMAT
from esper.recordings.history import address

CONFIG = {
    "": "envs devices policy-device task policy plan init-policy rounds steps slots reward counterfactual amp scaler "
    "seed context-seed telemetry-dir checkpoint-every keep sync-seconds patience-minutes data-dir",
    "training": "host-clip seed-clip host-learning-rate seed-learning-rate batch-size samples-per-epoch momentum "
    "weight-decay",
    "ppo": "learning-rate gamma horizon gae-lambda clip epochs minibatches envs-per-host value-coef entropy-coef "
    "max-grad-norm target-kl hidden",
    "reward-weights": "rent rent-floor op dependence penalty",
    "anomalies": "recovery explosion-factor explosion-steps chance-factor chance-steps skipped-steps dead-gradient "
    "dead-seed-steps stalled-steps stalled-gap stalled-envs stalled-rounds kl entropy memory memory-growth "
    "straggler-ratio stale-steps",
}


def keys_but(*left_out: str) -> str:
    """Return the options of the keys outside the tables."""
    return " ".join(f"--{key}" for key in CONFIG[""].split() if key not in left_out)


OPTIONS = {
    "": f"--help --version --help-all {keys_but()} --config --resume --accept-changed-task --name --tag --note --theme "
    "--symbols --bell --notify --no-tui --narrate --on-alert --tensorboard --detach",
    "replay": "--help --telemetry-dir --follow --against --task --at --speed --theme --symbols --bell --notify "
    "--no-tui --narrate",
    "attach": "--help --telemetry-dir --read-only --task --theme --symbols --bell --notify --no-tui --narrate",
    "demo": "--help --faults --at --speed --theme --symbols --bell --notify --no-tui --narrate",
    "serve": "--help --telemetry-dir --host --allow-host --port --theme",
    "runs": "--help --telemetry-dir --filter --sort --json --no-tui --theme --symbols --bell --notify",
    "whatif": "--help --telemetry-dir --round --env --without --do --plan --then --repeats --rounds --sample --growth "
    "--task --devices --json",
    "show": "--help --telemetry-dir --json",
    "compare": "--help --telemetry-dir --group-by --json",
    "export": "--help --telemetry-dir --to --out --per-env",
    "mcp": "--help --telemetry-dir --task",
    "query": "--help --telemetry-dir --json --csv --max-rows --max-seconds",
    "evaluate": "--help --checkpoint --telemetry-dir --task --accept-changed-task --policies --episodes --seed "
    "--devices --plantings --figure --json",
    "sweep": "--help --dry-run --jobs --storage --results --best --json --telemetry-dir",
    "grow": f"--help --help-all {keys_but('rounds', 'reward')} --config --trials --minutes --objective "
    "--max-parameters --patience --until-flat --compare --to --all --new --accept-changed-task --theme --symbols "
    "--bell --notify --no-tui --narrate",
    "harvest": "--help --telemetry-dir --env --best --to --task --accept-changed-task",
    "checkpoints": "--help --telemetry-dir --json",
    "devices": f"--help --help-all {keys_but()} --config --json",
    "schema": "--help --of",
    "completion": "--help",
    "config": f"--help --help-all {keys_but()} --config",
}

CHOICES = {
    "policy": "ppo pretrained heuristic periodic random static full plan",
    "reward": "shaped simplified sparse",
    "counterfactual": "ablation shapley off",
    "amp": "auto off tf32 bf16 fp16",
    "scaler": "env device",
    "ppo.horizon": "episode continuing",
}

PYTHON = {
    "esper": "Action AdamW Agent Chance CheckpointError ChosenAction ConfigError EnvStatus Family Group Grown "
    "HarvestError Loss NonLearningAgent Op Optimizer PerSample ReadError RecordedRun RecordingError RunFailedError SGD "
    "Schedule Setting Slot SlotSite Splits Task TaskError TaskReport TrainedRun WAITING accuracy advance_action "
    "blueprint check constant cooldown cosine cross_entropy germinate_action grow load_grown no_decay one_cycle "
    "over_split query read_run starts_at_zero train what_if",
    "RecordedRun": "config curves decisions events name notices plot search table",
    "RecordedDecision": "round step env op target choices probability",
    "TrainedRun": "directory status rounds score",
}

EVENTS = {
    "RunStarted": "run task policy rounds steps slot_names lanes seed host_parameters structures score_name "
    "score_scale chance_loss chance_score batches growth_interval versions search task_code recipe task_defaults "
    "config",
    "RoundStarted": "round",
    "EpisodeStarted": "round env structure settings",
    "EnvStepped": "round step env op target train_loss train_score loss score reward reward_parts value "
    "op_probability op_probabilities decision grad_norm learning_rate parameter_ratio loss_scale growth_tracker "
    "skipped_batches overflows_by_owner metrics slots",
    "SeedMoved": "round step env slot before after blueprint reason",
    "GateRefused": "round step env slot gate checks",
    "GateOpened": "round step env slot gate checks",
    "PolicyUpdated": "round policy_loss value_loss entropy kl clip_fraction explained_variance "
    "within_step_explained_variance grad_norm learning_rate minibatches stopped_early episode_return heads",
    "DeviceSampled": "device envs active busy launching graphs allocated reserved used total utilisation temperature "
    "power scale_min scale_max owners processes",
    "PhaseTimed": "round step wall phases",
    "AnomalyFound": "rule severity where env value threshold text",
    "AnomalyJoined": "rule where env value threshold text",
    "AnomalyLeft": "rule where env",
    "AnomalyEnded": "rule where env",
    "GovernorRolledBack": "round step env reason value threshold penalty culled",
    "EpisodeEnded": "round env score best_score episode_return parameter_ratio fossilized culled",
    "CheckpointSaved": "round step path bytes score seconds written origin",
    "ControlRequested": "kind origin path env ignored",
    "DecisionExplained": "round step env choices without",
    "Paused": "round step origin reason cause",
    "Resumed": "round step origin checkpoint",
    "Logged": "severity text",
    "CallOverdue": "env lane function file line seconds max_seconds",
    "CallEnded": "env seconds",
    "ClockChanged": "seconds",
    "TrialStarted": "round env candidate origin fresh",
    "TrialEnded": (
        "round step env candidate fresh outcome reason score best_step net_return parameter_ratio seeds late_gain"
    ),
    "CandidateMeasured": "candidate score test gain score_gain",
    "NetworkTested": "candidate test_score",
    "SearchEnded": "answer candidate directory",
    "RunEnded": "outcome reason",
}

PARTS = {
    "SlotReading": "stage blueprint blend alpha age parameters grad_norm dependence dependence_se shapley",
    "StructureInfo": "name slots host_parameters chance_loss",
    "GateCheck": "name passed value threshold",
    "HeadReading": "grad_norm entropy",
    "HeadChoice": "choice probability",
}

VALUES = {
    "ops": "wait germinate advance set_alpha cull fossilize",
    "heads": "op slot blueprint style tempo alpha_target alpha_speed alpha_curve",
    "stages": "dormant germinated training blending probationary fossilized culled embargoed",
    "curves": "linear cosine sigmoid_gentle sigmoid sigmoid_sharp",
    "blends": "add multiply gate",
    "blueprints": "norm attention depthwise bottleneck conv_small conv_light conv_heavy linear_lowrank mlp "
    "self_attention",
    "styles": "linear_add linear_multiply sigmoid_add linear_gate",
    "tempos": "3 5 8",
    "speeds": "0 3 5 8",
    "targets": "0.5 0.7 1.0",
    "addresses": "round step event anomaly env view",
    "requests": "pause resume step checkpoint restore explain stop abandon",
    "tasks": "digits_impaired digits digits_family synthetic mnist1d recall cifar10 cifar_impaired fashion_mnist",
}


def options_of(command: str | None, capsys: pytest.CaptureFixture[str], flag: str = "--help") -> str:
    """Return the options that the help of a command lists."""
    with pytest.raises(SystemExit) as stopped:
        main([command, flag] if command else [flag])
    assert stopped.value.code == 0
    return " ".join(re.findall(r"^  (?:-h, )?(--[a-z.-]+)", capsys.readouterr().out, re.MULTILINE))


def fields(kind: type[msgspec.Struct]) -> str:
    return " ".join(field.encode_name for field in msgspec.structs.fields(kind) if field.name not in ("seq", "time"))


def words(values: Iterable[object]) -> str:
    return " ".join(map(str, values))


def test_surface_commands_and_options_are_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    commands = [None, *COMMANDS]
    assert {command or "": options_of(command, capsys) for command in commands} == OPTIONS


def keys(section: msgspec.Struct) -> dict[str, str]:
    """Return the keys of each table of the TOML file, the top-level one first."""
    values = msgspec.to_builtins(section)
    tables = {key: words(value) for key, value in values.items() if isinstance(value, dict)}
    return {"": words(key for key in values if key not in tables), **tables}


def test_surface_configuration_keys_are_unchanged() -> None:
    assert keys(Config()) == CONFIG


def test_help_all_lists_an_option_for_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    dotted = [f"--{table}.{key}" for table, names in CONFIG.items() if table for key in names.split()]
    assert options_of("config", capsys, "--help-all").split() == [*OPTIONS["config"].split(), *dotted]


def test_surface_configuration_choices_are_unchanged() -> None:
    assert {
        "policy": words(get_args(PolicyName)),
        "reward": words(get_args(RewardName)),
        "counterfactual": words(get_args(CounterfactualName)),
        "amp": words(get_args(AmpName)),
        "scaler": words(get_args(ScalerName)),
        "ppo.horizon": words(get_args(HorizonName)),
    } == CHOICES
    assert {field.key: words(field.choices) for field in list_fields(Config) if field.choices} == CHOICES


def test_surface_names_in_python_are_unchanged() -> None:
    assert {
        "esper": words(sorted(dir(esper))),
        "RecordedRun": words(sorted(name for name in vars(RecordedRun) if not name.startswith("_"))),
        "RecordedDecision": words(RecordedDecision._fields),
        "TrainedRun": words(esper.TrainedRun._fields),
    } == PYTHON


def test_surface_events_and_fields_are_unchanged() -> None:
    """The fields `seq` and `time`, common to all events, are left out."""
    assert (ev.SCHEMA_VERSION, CHECKPOINT_FORMAT) == (2, 2)
    assert {kind.__name__: fields(kind) for kind in get_args(ev.AnyEvent)} == EVENTS
    assert {
        kind.__name__: fields(kind)
        for kind in (ev.SlotReading, ev.StructureInfo, ev.GateCheck, ev.HeadReading, ev.HeadChoice)
    } == PARTS
    for kind in get_args(ev.AnyEvent):
        assert kind.__struct_config__.tag == kind.__name__
        assert kind.__struct_config__.tag_field == "type"


def test_surface_stored_values_are_unchanged() -> None:
    """The order matters: it is the order of a policy's outputs."""
    assert {
        "ops": words(op.label for op in Op),
        "heads": words(HEADS),
        "stages": words(stage.label for stage in Stage),
        "curves": words(curve.value for curve in AlphaCurve),
        "blends": words(blend.value for blend in Blend),
        "blueprints": words(BLUEPRINTS),
        "styles": words(style.name for style in BLEND_STYLES),
        "tempos": words(INITIAL_RAMP_EPOCHS),
        "speeds": words(RAMP_EPOCHS),
        "targets": words(ALPHA_TARGETS),
        "addresses": words(address.ADDRESS_KEYS),
        "requests": words(kind.value for kind in RequestKind),
        "tasks": words(TASK_NAMES),
    } == VALUES
    assert [op.value for op in Op] == list(range(len(Op)))
    assert [stage.value for stage in Stage] == list(range(len(Stage)))
