"""The search of a growth: which candidates are tried, and which are trained on fresh hosts. It imports no torch."""
