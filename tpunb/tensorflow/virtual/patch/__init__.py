"""Replacements that let TensorFlow's own names find a virtual TPU, for unmodified notebooks."""
