"""How does a cell run on every device of JAX, and as a loop of steps?"""
