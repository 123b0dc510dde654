"""Effects of decisions: recorded episodes, changes to them, and the stored results of simulations. No torch."""
