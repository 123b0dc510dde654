import subprocess
import sys

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
