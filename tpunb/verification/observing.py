"""Compares what was found with what is claimed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tpunb.errors.explain import explain
from tpunb.verification.observation import NotRunError, Observation

__all__ = ["close", "equal", "message_of", "refused", "runs"]

_MOST_NUMBERS = 8
_REFUSED = "refused"
_FRAMES = re.compile(r'^\s*File "[^"\n]*", line \d+.*\n(?:\s+\S.*\n)?', re.MULTILINE)


def equal(expected: Any, found: Any) -> Observation:
    """Compares by `==`: names, counts, shapes."""
    return Observation(bool(expected == found), str(expected), str(found))


def close(expected: Any, found: Any, tolerance: float = 0.0) -> Observation:
    """Compares numbers.

    Args:
        expected: An array, or something that NumPy makes one of.
        found: Likewise, of the same shape.
        tolerance: The largest difference that is no difference, as a part of the largest
            expected magnitude, or of 1 if that is less.
    """
    wanted, got = _array(expected), _array(found)
    if wanted.shape != got.shape:
        return Observation(False, _text(wanted), f"the shape {list(got.shape)}: {_text(got)}")
    if not tolerance:
        return Observation(bool(np.array_equal(wanted, got)), _text(wanted), _text(got))
    difference = float(np.max(np.abs(wanted - got), initial=0.0))
    allowed = tolerance * max(1.0, float(np.max(np.abs(wanted), initial=0.0)))
    holds = difference <= allowed  # which NaN never is
    limit = f"largest difference {difference:.2g}, allowed {allowed:.2g}"
    return Observation(holds, _text(wanted), f"{_text(got)}; {limit}")


def refused(call: Callable[[], Any], code: str | None = None) -> Observation:
    """Makes a call that is refused on a TPU.

    Args:
        call: The call.
        code: The known error that it ends with; None if only the refusal is claimed.
    """
    expected = _REFUSED if code is None else f"{_REFUSED}, known error {code}"
    try:
        result = call()
    except NotRunError:
        raise
    except Exception as error:
        known = explain(error)
        found = _REFUSED if known is None else f"{_REFUSED}, known error {known.code}"
        holds = code is None or (known is not None and known.code == code)
        if known is None and code is not None:
            found += ", by an error that is not known"
        return Observation(holds, expected, found, message_of(error))
    return Observation(False, expected, f"runs, and gives {_shown(result)}")


def runs(call: Callable[[], Any], expected: Any, tolerance: float = 0.0) -> Observation:
    """Makes a call that is not refused on a TPU, and compares its numbers; see `close`."""
    try:
        found = call()
    except NotRunError:
        raise
    except Exception as error:
        return Observation(False, f"runs: {_shown(expected)}", _REFUSED, message_of(error))
    seen = close(expected, found, tolerance)
    return Observation(seen.holds, f"runs: {seen.expected}", f"runs: {seen.found}")


def message_of(error: BaseException) -> str:
    """What an error says, without the lines of our own code that autograph puts before it."""
    text = _FRAMES.sub("", str(error)).replace("in user code:", "")
    name = type(error).__name__
    text = " ".join(text.split()).removeprefix(f"{name}: ")
    return f"{name}: {text}"


def _shown(value: Any) -> str:
    try:
        return _text(_array(value))
    except (TypeError, ValueError):
        return type(value).__name__


def _array(value: Any) -> np.ndarray:
    if isinstance(value, Sequence) and not isinstance(value, str):
        value = np.asarray([np.asarray(item) for item in value])
    array = np.asarray(value)
    # NumPy knows bfloat16 as a type of its own kind, of which it cannot print a mean.
    return array.astype(np.float64) if array.dtype.kind not in "biuf" else array


def _text(array: np.ndarray) -> str:
    flat = array.reshape(-1)
    shown = " ".join(f"{number:.6g}" for number in flat[:_MOST_NUMBERS])
    more = " …" if flat.size > _MOST_NUMBERS else ""
    shape = f" {list(array.shape)}" if array.ndim > 1 or more else ""
    return f"{shown}{more}{shape}"
