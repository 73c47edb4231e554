"""The two arithmetics of a virtual TPU: this machine's CPU's, or a TPU matrix unit's."""

from __future__ import annotations

import os
from typing import Literal

from tpunb.errors import TpunbError, nearest

_VARIABLE = "TPUNB_ARITHMETIC"

Arithmetic = Literal["cpu", "tpu"]
"""The way float32 matrix products and convolutions multiply: in float32, or in bfloat16."""

ARITHMETICS: tuple[Arithmetic, ...] = ("cpu", "tpu")


class ArithmeticNameError(TpunbError, ValueError):
    """An arithmetic that does not exist."""


def arithmetic_of(name: str | None) -> Arithmetic:
    """Return the arithmetic that a user passes as `arithmetic`.

    Args:
        name: `"cpu"` or `"tpu"`. None means the value of `TPUNB_ARITHMETIC`, or `"cpu"` if that is
            not set.

    Raises:
        ArithmeticNameError: The name is unknown.
    """
    if name is None:
        name = os.environ.get(_VARIABLE) or "cpu"
    if name in ARITHMETICS:
        return name
    near = nearest(str(name), ARITHMETICS, most=1)
    fix = f"Did you mean {near[0]!r}?" if near else "Write 'cpu' or 'tpu'."
    raise ArithmeticNameError(f"There is no arithmetic {name!r}.", fix=fix)
