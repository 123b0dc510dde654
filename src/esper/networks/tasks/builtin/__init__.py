"""The built-in tasks and their convolutional host. Importing a task does not import torch. Data are in `tasks/data`."""
