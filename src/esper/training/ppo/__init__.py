"""PPO: rewards, advantages, and recurrent PPO over whole episodes."""
