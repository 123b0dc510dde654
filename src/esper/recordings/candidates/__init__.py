"""Candidates of a growth: the front, the choice and the answer; their order, table and chart."""
