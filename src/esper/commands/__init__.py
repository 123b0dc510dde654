"""The commands besides training, a file each: `run(arguments)` carries one out, and returns its exit code."""
