"""Training: the engine, its lanes and envs, PPO, the policies, and the checkpoints that it writes."""
