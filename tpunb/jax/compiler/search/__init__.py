"""Variants of a JAX call: where its arrays can lie on a mesh, and the code that puts them there."""
