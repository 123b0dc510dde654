"""The Python interface: train, grow, simulate, read a run, query all, check a task. `import esper` offers it."""
