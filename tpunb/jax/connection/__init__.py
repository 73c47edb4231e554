"""Connections of JAX, to a virtual TPU and to hardware."""
