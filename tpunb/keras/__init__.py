"""The callback for Keras 3 and tf_keras. Importing it imports neither."""

from tpunb.keras.callback import LiveCurves

__all__ = ["LiveCurves"]
