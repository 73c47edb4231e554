"""Asking libtpu, in its own process, and keeping its answers."""
