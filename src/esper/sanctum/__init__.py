"""Sanctum, the terminal dashboard (Karn's eye): the whole run live, or any recorded one again."""
