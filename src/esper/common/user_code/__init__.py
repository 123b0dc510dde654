"""Code of the user: what names it, its import, its places in a stack, and what its calls may not change."""
