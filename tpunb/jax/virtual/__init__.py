"""A virtual TPU for JAX: a CPU client whose devices answer as the devices of a TPU type."""
