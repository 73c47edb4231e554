"""Compiled programs as text, as HTML and as tables."""
