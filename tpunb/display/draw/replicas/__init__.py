"""The values of the replicas as text and HTML."""
