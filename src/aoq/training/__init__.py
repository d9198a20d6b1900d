"""Training: one step, one round, and the two rounds of the paper with mining between them."""
