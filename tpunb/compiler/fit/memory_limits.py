"""A limit on a program's memory, as a test or a command names it."""

from __future__ import annotations

import re

from tpunb._util.units import byte_count
from tpunb.errors import TpunbError

_UNITS: dict[str, float] = {
    "": 1,
    **{f"{unit}iB".lower(): 2 ** (10 * n) for n, unit in enumerate("KMGT", start=1)},
}
_UNITS |= {f"{unit}b": 1000**n for n, unit in enumerate("kmgt", start=1)} | {"b": 1}
_TEXT = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*(%|[A-Za-z]*)")

_EXAMPLES = 'Write a number of bytes, a text such as "12 GiB" or "90%", or a fraction such as 0.9.'


class LimitError(TpunbError, ValueError):
    """A limit on memory that is not a number of bytes or a share of the memory."""


def limit_in_bytes(limit: int | float | str | None, available: int) -> int:
    """Return a limit on a core's memory in bytes.

    Args:
        limit: A number of bytes; a fraction of the available memory, from 0 to 1; a text such as
            `"12 GiB"` or `"90%"`; or None for all of the available memory.
        available: The bytes that a program can use on a core.

    Raises:
        LimitError: It is none of these.
    """
    if limit is None:
        return available
    number: float = -1.0
    if isinstance(limit, str):
        number = _number(limit, available)
    elif isinstance(limit, float) and 0 < limit <= 1:
        number = limit * available
    elif isinstance(limit, int | float) and not isinstance(limit, bool) and limit > 1:
        number = limit
    if not 0 < number < float("inf"):
        raise LimitError(f"{limit!r} is not a limit on memory.", fix=_EXAMPLES)
    return int(number)


def _number(text: str, available: int) -> float:
    """Return the bytes that a text names, or -1 if it names none."""
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        return -1
    amount, unit = float(match[1]), match[2].lower()
    if unit == "%":
        return amount / 100 * available
    return amount * _UNITS.get(unit, -1)


def limit_phrase(limit: int, available: int) -> str:
    """Return a phrase such as `"the limit of 12 GiB"`, or the available memory."""
    if limit >= available:
        return f"the {byte_count(available)} available"
    return f"the limit of {byte_count(limit)} (of {byte_count(available)} available)"
