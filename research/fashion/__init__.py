"""Growing compared with its alternatives on Fashion-MNIST, at equal CPU time. `__main__.py` has the commands."""
