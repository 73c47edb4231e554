"""Datasets on their way to the replicas."""
