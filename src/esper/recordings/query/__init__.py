"""SQL over all runs of a telemetry directory."""
