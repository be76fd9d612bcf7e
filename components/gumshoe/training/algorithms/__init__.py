"""Algorithms: the advantages of episodes and the loss of their tokens, one file each."""
