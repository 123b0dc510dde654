"""`devices`: lists the devices of this machine and the lane of each env."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from esper.cli.options import EXIT_OK, Parser, add_run_options, given_options
from esper.cli.streams import print_json, print_text
from esper.common.configuration.files import resolve_config
from esper.common.system.process import RankInfo
from esper.networks.tasks import check_task_reference
from esper.recordings.events.sentences import format_lanes
from esper.training.engine.start_checks import resolve_policy
from esper.training.lanes.device_names import early_lanes

if TYPE_CHECKING:
    from esper.training.lanes.devices import DeviceInfo


def run(arguments: Sequence[str]) -> int:
    """Print devices and lanes."""
    options = _parser().parse_args(arguments)
    config = resolve_policy(resolve_config(options.config, given_options(options)))
    check_task_reference(config.task)

    early_lanes(config.devices, RankInfo())

    from esper.training.lanes.devices import list_devices, resolve_devices, unusable_gpus

    lanes = resolve_devices(config.devices)
    lane_by_env = [lanes[env % len(lanes)] for env in range(config.envs)]
    devices, unusable = list_devices(), unusable_gpus()
    if options.json:
        print_json(msgspec.json.encode({"devices": devices, "unusable": unusable, "lanes": lane_by_env}))
    else:
        rows = [f"{name:14} cannot be used: {reason}" for name, reason in unusable.items()]
        print_text("\n".join([*map(_format_row, devices), *rows, format_lanes(lane_by_env)]))
    return EXIT_OK


def _parser() -> Parser:
    parser = Parser(
        prog="esper-sanctum devices",
        description="List the devices of this machine, and the lane of each env of a run with these options",
    )
    add_run_options(parser)
    parser.add_argument("--json", action="store_true", help="print devices and the lane of each env as JSON")
    return parser


def _format_row(device: DeviceInfo) -> str:
    lanes = device.lanes[0] if len(device.lanes) == 1 else f"{device.lanes[0]} to {device.lanes[-1]}"
    facts = [device.name, f"{device.memory / 2**30:.1f} GiB"]
    if device.fast_bf16:
        facts.append("fast in bf16")
    if device.driver is not None:
        facts.append(f"driver {device.driver}")
    return f"{lanes:14} {', '.join(facts)}"
