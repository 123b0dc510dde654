"""Networks that grow: seeds and their slots, and the tasks with their hosts. Policy networks are in training."""
