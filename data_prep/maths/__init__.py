"""Real maths data for training and evaluation, and the reward on it."""
