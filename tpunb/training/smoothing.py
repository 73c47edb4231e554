"""The smoothing of curves: an exponential moving average, by the share of the line's reach.

`curves_store.js` computes the same average. A slider in the page smooths without Python, as in a
notebook that was saved, and a picture is drawn without a page.
"""

from __future__ import annotations

import numpy as np

from tpunb.training.metrics import Floats, Ints


def smoothed(steps: Ints, values: Floats, weight: float) -> Floats:
    """Return the exponential moving average.

    The weight is per 1/200 of the line's reach: the same setting smooths a line of ten values
    as it does one of a hundred thousand. Values that are not finite stay as they are, and do
    not enter the average.
    """
    kept = np.flatnonzero(np.isfinite(values))
    result: Floats = values.copy()
    if not kept.size:
        return result
    unit = max(float(steps[-1] - steps[0]), 1.0) / 200
    weights = np.power(weight, np.diff(steps[kept]) / unit)
    average = float(values[kept[0]])
    averages = [average]
    for keep, value in zip(weights.tolist(), values[kept[1:]].tolist(), strict=True):
        average = keep * average + (1 - keep) * value
        averages.append(average)
    result[kept] = averages
    return result
