"""Cells of TensorFlow: traced once, run on every replica, saved and continued."""
