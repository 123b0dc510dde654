"""Jobs of a sweep on one machine: how many runs train at once, and the devices of each."""

from __future__ import annotations

from collections.abc import Sequence

from esper.common.configuration.config import ConfigError
from esper.common.formatting import strip_control
from esper.training.lanes.device_names import DeviceCounts, is_auto, is_cpu_lane, max_device_counts, resolve_lanes

JobDevices = tuple[str, ...]
"""Value of `--devices` of the runs of a job, which train one after another."""


def make_jobs(devices: Sequence[str], jobs: int | None, counts: DeviceCounts | None = None) -> list[JobDevices]:
    """Return the devices of each job of this machine.

    GPUs are dealt to the jobs. CPU lanes are cores in any order, so every job has equally many.

    Args:
        devices: Value of `--devices` for the whole machine.
        jobs: Number of jobs; None: one per GPU, or as many as the cores allow.
        counts: Devices of this machine; None: find out.

    Raises:
        ConfigError: A device is not found, or the devices cannot be dealt to so many jobs.
    """
    counts = max_device_counts() if counts is None else counts
    if is_auto(devices) and counts["cuda"] is None:  # only torch could count them
        return [tuple(devices)] * (jobs or 1)
    lanes = resolve_lanes(devices, counts)
    if all(map(is_cpu_lane, lanes)):
        cores = counts["cpu"] or 1
        if is_auto(devices):
            jobs = jobs or cores
            return [tuple(lanes[: max(1, cores // jobs)])] * jobs
        return [tuple(lanes)] * (jobs or max(1, cores // len(lanes)))
    jobs = jobs or len(lanes)
    if jobs > len(lanes) and jobs % len(lanes) == 0:  # several runs share a GPU
        return [(lanes[index % len(lanes)],) for index in range(jobs)]
    if len(lanes) % jobs:
        names = strip_control(", ".join(lanes))
        raise ConfigError(f"--jobs {jobs} cannot share {names} equally; give a divisor or a multiple of {len(lanes)}")
    return [tuple(lanes[index::jobs]) for index in range(jobs)]
