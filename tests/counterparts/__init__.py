"""Servers on the loopback that stand in for Google Cloud's."""
