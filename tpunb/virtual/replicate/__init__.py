"""The engine: a replica function is traced once and expanded for all replicas."""
