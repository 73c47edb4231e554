"""`verify()`: checks whether a TPU, real or virtual, does what this package says it does.

It is a test suite whose subject is the TPU. Each `Suite` holds the small programs of one group of
claims, `run` tries them one after the other, and `report` shows the outcomes.
"""
