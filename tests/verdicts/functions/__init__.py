"""Small functions of many kinds, for the comparison with libtpu's own verdict."""

from __future__ import annotations

from verdicts.functions import (
    arrays,
    control,
    images,
    mathematics,
    networks,
    outside,
    randomness,
    sizes,
    wide,
)

__all__ = ["FUNCTIONS"]

FUNCTIONS = {
    f"{module.__name__.rpartition('.')[2]}.{name}": entry
    for module in (networks, arrays, mathematics, images, control, randomness, wide, sizes, outside)
    for name, entry in module.FUNCTIONS.items()
}
"""Each function and the specs of its arguments, by name."""
