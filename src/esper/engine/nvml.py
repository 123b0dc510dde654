"""What NVIDIA's management library knows of a GPU and CUDA does not say. Where it does not answer, nothing is known."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple


class Sensors(NamedTuple):
    """What a GPU measures of itself; None for what it does not."""

    utilisation: float | None = None
    """Share of the last sampling period in which a kernel ran, whoever's."""
    temperature: float | None = None
    """Degrees Celsius."""
    power: float | None = None
    """Watts."""


def read_sensors(uuid: str) -> Sensors:
    """Read a GPU's sensors.

    Args:
        uuid: as CUDA has it, without a prefix. NVML numbers all GPUs of the machine, CUDA those that
            CUDA_VISIBLE_DEVICES names, in its order: the UUID is what they agree on.
    """
    nvml, handle = _library(), _handle(uuid)
    if nvml is None or handle is None:
        return Sensors()
    rates = _ask(nvml.nvmlDeviceGetUtilizationRates, handle)
    milliwatts = _ask(nvml.nvmlDeviceGetPowerUsage, handle)
    return Sensors(
        utilisation=None if rates is None else rates.gpu / 100,
        temperature=_ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
        power=None if milliwatts is None else milliwatts / 1000,
    )


def driver_version() -> str | None:
    """Of the NVIDIA driver; None where there is none."""
    nvml = _library()
    return None if nvml is None else _ask(nvml.nvmlSystemGetDriverVersion)


@cache
def _library() -> ModuleType | None:
    """NVML, open for as long as the process lives; None on a machine without it."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


@cache
def _handle(uuid: str) -> Any:
    """NVML's handle of a GPU, or of a part of one (MIG); None if it knows no such."""
    nvml = _library()
    if nvml is None:
        return None
    whole = _ask(nvml.nvmlDeviceGetHandleByUUID, f"GPU-{uuid}")
    return whole if whole is not None else _ask(nvml.nvmlDeviceGetHandleByUUID, f"MIG-{uuid}")


def _ask(query: Callable[..., Any], *arguments: Any) -> Any:
    """The answer; None where there is none, as for the power of a GPU that does not measure it."""
    import pynvml

    try:
        return query(*arguments)
    except pynvml.NVMLError:
        return None
