"""Connections of TensorFlow, to a virtual TPU and to hardware."""
