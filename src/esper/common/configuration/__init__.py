"""The configuration of a run: its keys, their description, and its files."""
