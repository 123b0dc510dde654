"""The search of a growth: which candidates are tried, and which of them are trained on fresh hosts."""
