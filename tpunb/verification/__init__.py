"""`verify()`: does a TPU, real or virtual, do what this package says it does?

A claim is a sentence about every TPU, and a small function that tries it on the one that is
connected. Modules hold the claims by subject; `catalogue` lists them all, `verify` tries them,
and `report` shows what came out.
"""
