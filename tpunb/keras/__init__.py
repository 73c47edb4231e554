"""What Keras 3 and tf_keras get from us; neither of them is imported."""

from tpunb.keras.callback import LiveCurves

__all__ = ["LiveCurves"]
