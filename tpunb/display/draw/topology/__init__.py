"""The topology of a TPU as text and SVG."""
