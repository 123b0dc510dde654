"""Lanes: the devices of a run, and how envs are trained on them."""
