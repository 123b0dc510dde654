"""Recordings as histories: the state at any position, playback in both directions, comparison and export."""
