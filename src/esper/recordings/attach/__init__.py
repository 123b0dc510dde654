"""Control of a run from other processes, over a Unix socket in the run directory.

The socket carries only requests and replies. Viewers read the events from the recording, so that a slow viewer cannot
delay the run.
"""
