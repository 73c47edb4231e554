"""Servers that stand in for those of Google Cloud, on the loopback."""
