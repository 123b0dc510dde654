"""Policies, which decide what grows: the policy network, its observation and masks, and the baselines."""
