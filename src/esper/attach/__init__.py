"""How viewers in other processes ask something of a run: a Unix socket in its directory.

Only requests and their answers go through it. What the run does is told by its recording, which any viewer reads by
itself; so no viewer, however slow, holds the run up.
"""
