"""Descriptions as text, pictures and HTML tables, and bundles of these."""
