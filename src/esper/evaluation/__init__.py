"""Evaluation of policies on held-out episodes, with bootstrap intervals and paired differences."""
