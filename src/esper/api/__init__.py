"""The Python interface: train, grow, simulate, read a run, check a task. `import esper` offers it."""
