"""What fits: the largest batch, other sizes, limits and advice."""
