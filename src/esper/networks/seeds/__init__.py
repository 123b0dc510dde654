"""Hosts, their slots, and the seeds that grow in them. Imports no policies, rewards or telemetry."""
