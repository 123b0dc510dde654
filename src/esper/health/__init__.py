"""Health: what is wrong with a run, and why."""
