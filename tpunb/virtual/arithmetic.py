"""The arithmetics of a virtual TPU: that of this machine's CPU, or that of a TPU's matrix unit."""

from __future__ import annotations

import os
from typing import Literal

from tpunb.errors import TpunbError, nearest

_VARIABLE = "TPUNB_ARITHMETIC"

Arithmetic = Literal["cpu", "tpu"]
"""How float32 matrix products and convolutions multiply: in float32, or in bfloat16."""

ARITHMETICS: tuple[Arithmetic, ...] = ("cpu", "tpu")


class ArithmeticNameError(TpunbError, ValueError):
    """There is no arithmetic of this name."""


def arithmetic_of(name: str | None) -> Arithmetic:
    """Reads what a user gives as `arithmetic`.

    Args:
        name: `"cpu"` or `"tpu"`; None for what `TPUNB_ARITHMETIC` says, else `"cpu"`.

    Raises:
        ArithmeticNameError: There is no such arithmetic.
    """
    if name is None:
        name = os.environ.get(_VARIABLE) or "cpu"
    if name in ARITHMETICS:
        return name
    near = nearest(str(name), ARITHMETICS, most=1)
    fix = f"Did you mean {near[0]!r}?" if near else "Write 'cpu' or 'tpu'."
    raise ArithmeticNameError(f"There is no arithmetic {name!r}.", fix=fix)
