"""Teaching: a policy learns from the exact outcomes of alternatives, which a search has found."""
