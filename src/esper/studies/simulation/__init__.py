"""Episodes of a recording, played again with other decisions: the exact effect of each."""
