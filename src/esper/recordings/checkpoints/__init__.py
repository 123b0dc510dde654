"""The checkpoints of a run as a reader needs them: their list and their manifests. Training writes them."""
