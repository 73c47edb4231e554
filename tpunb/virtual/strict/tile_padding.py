"""What the matrix unit of a TPU makes of a function's products and convolutions.

A TPU multiplies tiles: the batch is filled up to a multiple of 8 and the features to
one of 128, or the other way round. What is filled up is computed for nothing.
Source: Cloud TPU performance guide.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator
from typing import Any

from tpunb.virtual._tensorflow import dtypes

__all__ = ["LANES", "ROWS", "Product", "products", "wasted"]

ROWS = 8
LANES = 128

_MATRICES = frozenset({"MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"})
_CONVOLUTIONS = frozenset({"Conv1D", "Conv2D", "Conv3D"})
# The gradients multiply the same sizes once more: they add no information.
_GRADIENTS = ("gradient_tape/", "gradients/")


@dataclasses.dataclass(frozen=True, slots=True)
class Product:
    """A matrix product or a convolution, as the matrix unit sees it.

    Attributes:
        node: Its operation's name.
        op: Its operation's type.
        times: How often it multiplies matrices of the following sizes.
        batch: Rows: examples, or whatever stands in the place of the batch.
        inner: Features that are summed over.
        outer: Features of the result.
        dtype: The type of the factors.
    """

    node: str
    op: str
    times: int
    batch: int
    inner: int
    outer: int
    dtype: dtypes.DType

    @property
    def work(self) -> int:
        """Multiply-adds that are wanted."""
        return self.times * self.batch * self.inner * self.outer

    @property
    def padded(self) -> int:
        """Multiply-adds that are made, in the better of the two layouts."""
        return self.times * min(
            _up(self.batch, rows) * _up(self.inner, lanes) * _up(self.outer, lanes)
            for rows, lanes in ((ROWS, LANES), (LANES, ROWS))
        )

    @property
    def sizes(self) -> str:
        """The sizes for a reader."""
        return f"[{self.batch}, {self.inner}] × [{self.inner}, {self.outer}]"


def wasted(found: Iterable[Product]) -> float:
    """The share of the multiply-adds that padding adds, between 0 and 1."""
    listed = list(found)
    padded = sum(product.padded for product in listed)
    return 1 - sum(product.work for product in listed) / padded if padded else 0.0


def products(graph: Any) -> Iterator[Product]:
    """The products of a traced function, without those of its gradients.

    Args:
        graph: The function's graph. Products of unknown sizes are left out.
    """
    for operation in graph.get_operations():
        if operation.name.startswith(_GRADIENTS):
            continue
        if operation.type in _MATRICES:
            product = _matrices(operation)
        elif operation.type in _CONVOLUTIONS:
            product = _convolution(operation)
        else:
            continue
        if product is not None:
            yield product


def _matrices(operation: Any) -> Product | None:
    left, right = (tensor.shape for tensor in operation.inputs)
    result = operation.outputs[0].shape
    if not all(shape.is_fully_defined() for shape in (left, right, result)):
        return None
    transposed = any(
        operation.get_attr(name) for name in ("transpose_a", "adj_x") if _has(operation, name)
    )
    *around, batch, outer = result.as_list()
    inner = left[-2 if transposed else -1]
    times = math.prod(around)
    return Product(
        operation.name, operation.type, times, batch, inner, outer, operation.inputs[0].dtype
    )


def _convolution(operation: Any) -> Product | None:
    image, kernel = (tensor.shape for tensor in operation.inputs)
    result = operation.outputs[0].shape
    if not all(shape.is_fully_defined() for shape in (image, kernel, result)):
        return None
    *window, inner, outer = kernel.as_list()
    batch = image[0]
    times = math.prod(window) * (result.num_elements() // max(batch * outer, 1))
    return Product(
        operation.name, operation.type, times, batch, inner, outer, operation.inputs[0].dtype
    )


def _has(operation: Any, name: str) -> bool:
    return name in operation.node_def.attr


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
