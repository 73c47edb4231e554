"""Displays of values: described first, then drawn as text, picture, table or widget."""
