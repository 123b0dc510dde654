"""What decisions were worth: recorded episodes, changes to them, and the stored results of simulations. No torch."""
