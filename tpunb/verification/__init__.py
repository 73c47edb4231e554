"""`verify()`: checks whether a TPU, real or virtual, does what tpunb says it does.

This package is a test suite for the TPU. Each `Suite` holds the small programs of one group of
claims, `run` tries them one after the other, and `report` shows the outcomes.
"""
