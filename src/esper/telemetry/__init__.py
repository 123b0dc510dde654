"""Events of a run, the hub that distributes them, and the state folded from them.

Nothing in this package imports torch or Textual, so a recording can be read on a machine that has neither.
"""
