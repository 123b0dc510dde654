"""Sanctum, the terminal dashboard of a live run or of a recording."""
