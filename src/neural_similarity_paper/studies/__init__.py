"""Studies of our own: where M helps to adapt a network, and whether it helps one to the end."""
