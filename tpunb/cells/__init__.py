"""The way from a cell's source to a function that runs on every replica."""
