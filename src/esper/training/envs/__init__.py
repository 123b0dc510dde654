"""Envs: one growing network each, with its optimizers, precision and health."""
