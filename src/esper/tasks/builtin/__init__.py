"""The built-in tasks, and the hosts and data that only they use. Importing a task does not import torch."""
