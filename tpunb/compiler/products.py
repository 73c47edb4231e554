"""Matrix products and convolutions in a program, fused with others or not."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from tpunb.compiler.hlo import PRODUCTS, Computation, Instruction, Module
from tpunb.compiler.shapes import Shape

__all__ = ["multiplications", "products"]

_LABELS = re.compile(r"dim_labels=\w+_(\w+)->")
_CONTRACTED = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")


def products(
    instruction: Instruction, module: Module, around: Computation | None = None
) -> Iterator[tuple[Instruction, Computation]]:
    """The products that an instruction consists of, in fusions within it too.

    Args:
        instruction: The instruction.
        module: The program.
        around: The computation that it is in, by default the program's entry.
    """
    if instruction.opcode in PRODUCTS:
        yield instruction, around or module.entry
    elif instruction.opcode == "fusion":
        inner = module.computations.get(instruction.called.get("calls", ""))
        for one in inner.instructions if inner else ():
            yield from products(one, module, inner)


def multiplications(product: Instruction, inside: Computation) -> float:
    """How many multiplications a product takes; 0 where the text does not tell."""
    shapes = [_shape(inside.by_name.get(name)) for name in product.operands[:2]]
    if len(shapes) < 2 or None in shapes:
        return 0.0
    left, right = (shape.sizes for shape in shapes if shape is not None)
    result = math.prod(product.results[0].sizes)
    if found := _LABELS.search(product.rest):
        return result * math.prod(right) / max(right[found[1].index("o")], 1)
    found = _CONTRACTED.search(product.rest)
    axes = [int(axis) for axis in found[1].split(",") if axis] if found else []
    return float(result * math.prod(left[axis] for axis in axes))


def _shape(instruction: Instruction | None) -> Shape | None:
    return instruction.results[0] if instruction is not None and instruction.results else None
