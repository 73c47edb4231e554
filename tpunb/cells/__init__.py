"""A cell's source -> a function that runs on every replica."""
