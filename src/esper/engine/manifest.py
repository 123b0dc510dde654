"""Which checkpoints there are, what they were made for, and whether a run may go on from one.

Imports no torch: the command line asks before the engine is loaded.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from esper.config import Config

FORMAT = 1
MANIFEST = "manifest.json"

FIXED = ("task", "policy", "envs", "steps", "slots", "seed", "reward")
"""What a checkpoint was made for: a run that goes on from it cannot change these."""


class CheckpointError(Exception):
    """A checkpoint that cannot be used; its text is one sentence: which, why, and what else there is."""


def read_manifest(directory: Path) -> dict[str, Any]:
    """The manifest of a checkpoint, without reading the rest.

    Raises:
        CheckpointError: there is none, or it is not one.
    """
    try:
        manifest = json.loads((directory / MANIFEST).read_bytes())
    except OSError:
        raise CheckpointError(f"{directory} is not a checkpoint: it has no readable {MANIFEST}") from None
    except ValueError:
        raise CheckpointError(f"{directory / MANIFEST} is damaged: it is not JSON") from None
    expected = {"format": int, "round": int, "step": int, "config": dict, "files": dict}
    if not isinstance(manifest, dict) or not all(isinstance(manifest.get(k), t) for k, t in expected.items()):
        raise CheckpointError(f"{directory / MANIFEST} is not the manifest of a checkpoint")
    if manifest["format"] != FORMAT:
        raise CheckpointError(f"{directory} has checkpoint format {manifest['format']}; this version reads {FORMAT}")
    return manifest


def checkpoint_path(run: Path, round_number: int, step: int) -> Path:
    """Where a run keeps the checkpoint of a moment: rounds completed, and steps of the next."""
    return run / "checkpoints" / f"round-{round_number:05d}-step-{step:04d}"


def run_of(checkpoint: Path) -> Path:
    """The directory of the run that a checkpoint belongs to."""
    return checkpoint.resolve().parent.parent


def list_checkpoints(run: Path) -> list[Path]:
    """Checkpoints of a run, the oldest first. Interrupted ones are not among them."""
    return sorted(
        path.parent for path in (run / "checkpoints").glob(f"round-*-step-*/{MANIFEST}") if path.parent.suffix == ""
    )


def find_checkpoint(path: Path) -> Path:
    """The checkpoint that `--resume PATH` means: that directory, or the newest of a run's.

    Raises:
        CheckpointError: there is none.
    """
    if (path / MANIFEST).exists():
        return path
    found = list_checkpoints(path)
    if not found:
        raise CheckpointError(f"{path} holds no checkpoint; give a run, or a directory below its checkpoints/")
    return found[-1]


def keep_newest(run: Path, count: int) -> None:
    """Remove all but the newest `count` checkpoints of a run."""
    for path in list_checkpoints(run)[:-count]:
        shutil.rmtree(path)


def check_compatible(saved: Mapping[str, Any], config: Config, path: Path) -> None:
    """Refuse to go on from a checkpoint under a configuration that it does not fit.

    Raises:
        CheckpointError: naming the option that differs.
    """
    wanted = msgspec.json.decode(msgspec.json.encode(config))  # lists for tuples, as the manifest has them
    for key in FIXED:
        if saved.get(key) != wanted[key]:
            before, now = _plain(saved.get(key)), _plain(wanted[key])
            raise CheckpointError(f"{path} was made with --{key} {before}, not {now}; a run cannot change that")
    if saved.get("ppo", {}).get("hidden") != wanted["ppo"]["hidden"]:
        raise CheckpointError(f"{path} was made with another ppo.hidden; that cannot change in a run")


def _plain(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
