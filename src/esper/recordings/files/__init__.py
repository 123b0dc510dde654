"""Recordings on disk: writing, locking, decoding and following them."""
