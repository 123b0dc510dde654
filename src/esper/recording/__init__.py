"""Recordings on disk: written, locked, decoded, followed."""
