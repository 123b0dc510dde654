"""Health of a run: anomaly rules, the detector that evaluates them, and root causes."""
