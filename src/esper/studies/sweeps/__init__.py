"""Sweeps: studies of many runs, with Optuna. Importing this package imports neither torch nor Optuna."""
