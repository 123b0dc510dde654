"""A finished or growing recording as a history: any moment, backwards and forwards."""
