"""The virtual TPU for TensorFlow: `TPUStrategy` on virtual CPU cores."""
