"""The state of a run, folded from its events, and the hub that distributes the events."""
