"""The garbage collector, told what this program is like.

A full collection looks through everything that is loaded, and nobody else runs Python meanwhile: with torch and Textual
that is 0.2 s in which no key is answered. And events come by the hundred thousand, in containers that form no cycles:
to look through the young ones as often as Python does by itself is a tenth of the time that a recording takes to read.
"""

import atexit
import gc

YOUNG = 10_000
"""Containers made, and not freed, from one look at the young ones to the next."""


def spare_what_is_loaded() -> None:
    """From here on, look only through what is made later: modules live as long as the process.

    For programs, not for tests: what is alive now is not looked at again until the process ends. Then it is, or
    extensions would print what of theirs was never freed.
    """
    gc.freeze()
    gc.set_threshold(YOUNG)
    atexit.register(gc.unfreeze)
