"""Recordings of runs: events, the state that follows from them, files, health, histories, viewers and effects.

Nothing here imports torch or Textual, so a recording can be read on a machine that has neither.
"""
