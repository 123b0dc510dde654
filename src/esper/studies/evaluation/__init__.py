"""Evaluation of policies on held-out episodes, with intervals over training seeds or episodes."""
