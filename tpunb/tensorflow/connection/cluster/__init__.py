"""A TPU's workers on other machines: health checks and joining."""
