import subprocess
import sys

PROGRAM = """
import gc, weakref
from esper.process import freeze_loaded_objects

class Node: pass

def ring():
    node = Node()
    node.itself = node
    return weakref.ref(node)

loaded = len(gc.get_objects())
freeze_loaded_objects()
looked_at = len(gc.get_objects())
later = ring()
gc.collect()
print(looked_at < loaded / 10, later() is None)
"""


def test_gc_skips_loaded_objects_and_collects_later_ones() -> None:
    """In a process of its own: what it does cannot be taken back."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]
