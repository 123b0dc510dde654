import subprocess
import sys
from pathlib import Path

PROGRAM = """
import gc, weakref
from esper.process import freeze_loaded_objects

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
    program = f"import subprocess; from esper.process import python_command; {child}"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("imported\n", "")
