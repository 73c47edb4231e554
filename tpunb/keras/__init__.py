"""The callback for Keras 3 and tf_keras; neither of them is imported."""

from tpunb.keras.callback import LiveCurves

__all__ = ["LiveCurves"]
