"""The scripts of `completion`, in the shells that are installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import get_args

import pytest

from esper.cli.commands.completion import SHELLS
from esper.cli.main import main
from esper.common.configuration.config import PolicyName
from esper.networks.tasks import TASK_NAMES

LINES = {
    "esper-sanctum re": ["replay"],
    "esper-sanctum attach --read": ["--read-only"],
    "esper-sanctum --ppo.g": ["--ppo.gae-lambda", "--ppo.gamma"],
    "esper-sanctum --policy ": sorted(get_args(PolicyName)),
    "esper-sanctum grow --task ": sorted(TASK_NAMES),
    "esper-sanctum evaluate --policies h": ["heuristic"],
    "esper-sanctum show ": ["last", "one", "two"],
    "esper-sanctum replay one --against t": ["two"],
    "esper-sanctum --resume o": ["one"],
}
"""Words that complete a line."""
BASH = """
source {script}
while read -r line; do
  [[ $line == *, ]] && COMP_WORDS=(${{line%,}} "") || COMP_WORDS=($line)
  COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)) COMPREPLY=()
  _shtab_esper_sanctum esper-sanctum "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD - 1]}}"
  echo "${{COMPREPLY[*]}}"
done
"""
FISH = """
source {script}
while read -l line; echo (complete -C (string replace , "" $line) | string replace -r "\t.*" ""); end
"""


def script_of(shell: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Write the script of a shell, beside two runs."""
    assert main(["completion", shell]) == 0
    folder.mkdir(exist_ok=True)
    script = folder / f"completion.{shell}"
    script.write_text(capsys.readouterr().out)
    for name in ("one", "two"):
        (folder / "telemetry" / name).mkdir(parents=True)
    return script


@pytest.mark.parametrize(("shell", "reader"), [("bash", BASH), ("fish", FISH)], ids=["bash", "fish"])
def test_shell_completes_commands_options_and_names(
    shell: str, reader: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if (program := shutil.which(shell)) is None:
        pytest.skip(f"{shell} is not installed")
    script = script_of(shell, tmp_path, capsys)
    typed = "".join(f"{line},\n" if line.endswith(" ") else f"{line}\n" for line in LINES)  # `read` drops the space
    command = [program, "-c", reader.format(script=script)]
    result = subprocess.run(command, check=True, input=typed, capture_output=True, text=True, cwd=tmp_path)
    assert result.stderr == ""
    found = dict(zip(LINES, (sorted(line.split()) for line in result.stdout.splitlines()), strict=True))
    assert found == LINES


def test_script_of_each_shell_has_all_kinds_of_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for shell in SHELLS:
        script = script_of(shell, tmp_path / shell, capsys).read_text()
        assert all(word in script for word in ("whatif", "ppo.gamma", "digits_family", "heuristic", "telemetry"))
