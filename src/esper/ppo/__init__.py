"""How the policy learns: rewards, advantages, and recurrent PPO over whole episodes (Simic)."""
