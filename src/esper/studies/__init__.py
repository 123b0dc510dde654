"""Studies: many trainings, one answer. Each is a user of the engine in training, which does not know it."""
