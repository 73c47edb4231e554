"""The engine, which traces a replica function once and expands it for all replicas."""
