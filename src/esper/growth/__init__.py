"""Kasmina: hosts, their slots, and the seeds that grow in them. Knows nothing of policies, rewards or telemetry."""
