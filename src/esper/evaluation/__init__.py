"""Policies compared on episodes that none of them was trained on."""
