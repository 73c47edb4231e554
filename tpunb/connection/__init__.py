"""Connections to TPUs, real and virtual."""
