"""Panels and lines used on several screens, and their base classes."""
