import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from esper.common.system.process import host_memory, resident_bytes
from esper.studies.sweeps.memory import tree_memory

PROGRAM = """
import gc, weakref
from esper.common.system.process import freeze_loaded_objects

class Node: pass

def ring():
    node = Node()
    node.cycle = node
    return weakref.ref(node)

loaded = len(gc.get_objects())
freeze_loaded_objects()
scanned = len(gc.get_objects())
later = ring()
gc.collect()
print(scanned < loaded / 10, later() is None)
"""


def test_gc_skips_loaded_objects_and_collects_later_ones() -> None:
    """Run in a separate process, because the settings cannot be undone."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]


def test_child_of_an_interactive_session_imports_from_the_working_directory(tmp_path: Path) -> None:
    """`python -c`, like an interactive session, has an empty entry in `sys.path`."""
    (tmp_path / "own_helper.py").write_text("print('imported')")
    child = "command, environment = python_command('import own_helper'); subprocess.run(command, env=environment)"
    program = f"import subprocess; from esper.common.system.process import python_command; {child}"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("imported\n", "")


def test_shared_memory_of_processes_counts_once() -> None:
    own, child = SimpleNamespace(rss=500, shared=300), SimpleNamespace(rss=400, shared=300)
    assert resident_bytes([own, child]) == 300 + 200 + 100
    assert resident_bytes([SimpleNamespace(rss=500), SimpleNamespace(rss=400)]) == 900  # a system without the size


def test_memory_of_a_process_includes_its_children() -> None:
    program = "import time; data = bytearray(200 << 20); print(1, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        own, whole = psutil.Process().memory_info().rss, tree_memory(os.getpid())
        child.kill()
    assert whole is not None
    assert 200 << 20 < whole - own + (1 << 20) < 220 << 20
    assert tree_memory(child.pid) is None


@pytest.mark.parametrize(
    ("line", "folder", "limit", "used", "cached"),
    [
        ("0::/job/step", "job", "memory.max", "memory.current", "inactive_file"),
        ("0::/", "", "memory.max", "memory.current", "inactive_file"),
        ("4:memory:/job", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ],
)
def test_memory_of_a_container_is_that_of_its_group(
    line: str, folder: str, limit: str, used: str, cached: str, tmp_path: Path
) -> None:
    """The limit may be one of a parent; in a container, the file names groups that are not visible there."""
    membership, root = tmp_path / "cgroup", tmp_path / "groups"
    membership.write_text(f"9:name=systemd:/\n{line}\n")
    step = root / "job" / "step"
    step.mkdir(parents=True)
    (step / "memory.max").write_text("max\n")
    (step / "memory.current").write_text("1\n")
    group = root / folder
    group.mkdir(exist_ok=True)
    (group / limit).write_text("5000000\n")
    (group / used).write_text("4600000\n")
    (group / "memory.stat").write_text(f"anon 7\n{cached} 100000\n")
    assert host_memory(membership, root) == (500_000, 5_000_000)
    assert host_memory(tmp_path / "none", root).total == psutil.virtual_memory().total
