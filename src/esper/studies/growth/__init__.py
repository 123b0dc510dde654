"""Growth: the best network within a budget: its request, its search, its director, its comparisons and its results."""
