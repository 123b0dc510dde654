"""Harvest: a grown network as an ordinary module, in files that need nothing of a run."""
