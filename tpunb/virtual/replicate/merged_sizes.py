"""Functions that are written for batches of several sizes, made one for all sizes.

They differ in integers: in shapes, and in what follows from them. Where each of these is linear
in the size it is calculated when the function runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from tpunb.virtual._tensorflow import AttrValue, FunctionDef, NodeDef, dtypes, tensor_util
from tpunb.virtual.graph.nodes import add_constant, add_node, integer, type_of
from tpunb.virtual.replicate.joined_tensors import INTEGERS

__all__ = ["merged"]

_INTEGERS = {dtypes.int32, dtypes.int64}
_SIZE = "tpunb_size"
_MASKS = ("begin", "end", "ellipsis", "new_axis", "shrink_axis")


def merged(written: Mapping[int, FunctionDef], batch: str) -> FunctionDef | None:
    """One function in place of several, each of which is for one size.

    Args:
        written: The functions by size; the first two sizes follow each other.
        batch: An argument whose axis 1 has the size.

    Returns:
        The function; None if they differ in more than integers that are linear in the size.
    """
    try:
        return _Merging(written, batch).merged()
    except _DifferError:
        return None


class _DifferError(Exception):
    """Functions differ in more than what can be calculated from the size."""


class _Merging:
    """Functions for some sizes while they are made one.

    Args:
        written: The functions by size.
        batch: An argument whose axis 1 has the size.
    """

    def __init__(self, written: Mapping[int, FunctionDef], batch: str) -> None:
        self._sizes = list(written)
        self._functions = list(written.values())
        self._batch = batch
        self._given = [_given_integers(one) for one in self._functions]
        self._result = FunctionDef()
        self._calculated: dict[tuple[bytes, bytes, str], str] = {}
        self._instead: dict[str, str] = {}

    def merged(self) -> FunctionDef:
        first = self._functions[0]
        if not all(_end_alike(first, one) for one in self._functions):
            raise _DifferError
        self._result.CopyFrom(first)
        del self._result.node_def[:]
        device = first.node_def[0].device if first.node_def else ""
        self._write_size(device)
        kept = [list(_without_integers(one)) for one in self._functions]
        if len({len(one) for one in kept}) > 1:
            raise _DifferError
        for nodes in zip(*kept, strict=True):
            self._write(nodes)
        for node in self._result.node_def:
            for place, text in enumerate(node.input):
                node.input[place] = self._instead.get(text, text)
        for name, text in self._result.ret.items():
            self._result.ret[name] = self._instead.get(text, text)
        return self._result

    def _write_size(self, device: str) -> None:
        """Writes what finds the size of the batch."""
        int32, int64 = type_of(dtypes.int32), type_of(dtypes.int64)
        types = {one.name: one.type for one in self._result.signature.input_arg}
        kind, shape = AttrValue(type=types[self._batch]), f"{_SIZE}/shape"
        self._add("Shape", shape, device, [self._batch], T=kind, out_type=int32)
        bounds = [
            self._constant(f"{_SIZE}/{name}", device, np.array([value], np.int32))
            for name, value in (("begin", 1), ("end", 2), ("step", 1))
        ]
        masks = {f"{name}_mask": integer(int(name == "shrink_axis")) for name in _MASKS}
        inputs = [f"{shape}:output:0", *bounds]
        self._add("StridedSlice", _SIZE, device, inputs, T=int32, Index=int32, **masks)
        size = [f"{_SIZE}:output:0"]
        self._add("Cast", f"{_SIZE}_64", device, size, SrcT=int32, DstT=int64)

    def _write(self, nodes: Sequence[NodeDef]) -> None:
        """Writes one node for those of all sizes."""
        first = nodes[0]
        if any(len(one.input) != len(first.input) for one in nodes):
            raise _DifferError
        node = self._result.node_def.add()
        node.CopyFrom(first)
        for place, texts in enumerate(zip(*(one.input for one in nodes), strict=True)):
            node.input[place] = self._input(texts, first.device)
        differing = [one for one in nodes[1:] if not _are_alike(first, one)]
        if not differing:
            return
        if first.op != "Const" or any(one.op != "Const" for one in differing):
            raise _DifferError
        values = [tensor_util.MakeNdarray(one.attr["value"].tensor) for one in nodes]
        text = self._calculate(values, first.device)
        self._instead[f"{first.name}:output:0"] = text

    def _input(self, texts: Sequence[str], device: str) -> str:
        """One input for those of all sizes, which are the same or integers."""
        given = [
            known.get(text.partition(":")[0])
            for text, known in zip(texts, self._given, strict=True)
        ]
        values = [one for one in given if one is not None]
        if not values and len(set(texts)) == 1:
            return texts[0]
        if len(values) < len(texts):
            raise _DifferError
        return self._calculate(values, device)

    def _calculate(self, values: Sequence[np.ndarray], device: str) -> str:
        """Writes what gives integers that are linear in the size, or the same for all."""
        return self._written(*self._line(values), device)

    def _written(self, base: np.ndarray, slope: np.ndarray, device: str) -> str:
        key = base.tobytes(), slope.tobytes(), f"{base.dtype} {base.shape}"
        if key not in self._calculated:
            name = f"{INTEGERS}_{len(self._calculated)}"
            self._calculated[key] = name  # which nothing else is called
            if not slope.any():
                text = self._constant(name, device, base)
            elif base.ndim == 1:
                text = self._list(name, device, base, slope)
            else:
                text = self._sum(name, device, self._constant(name, device, base), slope)
            self._calculated[key] = text
        return self._calculated[key]

    def _list(self, name: str, device: str, base: np.ndarray, slope: np.ndarray) -> str:
        """Writes integers one by one, of which TensorFlow knows those that are the same for all.

        So it knows as much of a shape as it did of the replica function's.
        """
        pairs = zip(base, slope, strict=True)
        each = [self._written(np.asarray(one), np.asarray(more), device) for one, more in pairs]
        kind = type_of(dtypes.as_dtype(base.dtype))
        count = integer(len(each))
        self._add("Pack", f"{name}/list", device, each, T=kind, N=count, axis=integer(0))
        return f"{name}/list:output:0"

    def _sum(self, name: str, device: str, base: str, slope: np.ndarray) -> str:
        """Writes a sum of integers, and of others times the size."""
        kind = type_of(dtypes.as_dtype(slope.dtype))
        size = f"{_SIZE}:output:0" if slope.dtype == np.int32 else f"{_SIZE}_64:y:0"
        each = self._constant(f"{name}/each", device, slope)
        self._add("Mul", f"{name}/times", device, [each, size], T=kind)
        self._add("AddV2", f"{name}/sum", device, [base, f"{name}/times:z:0"], T=kind)
        return f"{name}/sum:z:0"

    def _line(self, values: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """What integers are for size 0, and how much more with each example."""
        first, second = values[:2]
        alike = all(one.shape == first.shape and one.dtype == first.dtype for one in values)
        if not alike or dtypes.as_dtype(first.dtype) not in _INTEGERS:
            raise _DifferError
        slope = second - first
        base = first - self._sizes[0] * slope
        pairs = zip(self._sizes, values, strict=True)
        if not all(np.array_equal(base + size * slope, one) for size, one in pairs):
            raise _DifferError
        return base.astype(first.dtype), slope.astype(first.dtype)

    def _constant(self, name: str, device: str, value: np.ndarray) -> str:
        kind = dtypes.as_dtype(value.dtype)
        return add_constant(self._add, name, device, value, kind)

    def _add(self, *arguments: object, **attributes: object) -> str:
        return add_node(self._result, *arguments, **attributes)  # type: ignore[arg-type]


def _is_integers(node: NodeDef) -> bool:
    return bool(node.op == "Const" and node.name.startswith(INTEGERS))


def _given_integers(function: FunctionDef) -> dict[str, np.ndarray]:
    """The integers that joined nodes take, by the names of their constants."""
    return {
        node.name: tensor_util.MakeNdarray(node.attr["value"].tensor)
        for node in function.node_def
        if _is_integers(node)
    }


def _without_integers(function: FunctionDef) -> Iterator[NodeDef]:
    return (node for node in function.node_def if not _is_integers(node))


def _end_alike(one: FunctionDef, other: FunctionDef) -> bool:
    return bool(one.ret == other.ret and one.control_ret == other.control_ret)


def _are_alike(one: NodeDef, other: NodeDef) -> bool:
    """Whether two nodes differ in nothing but what they take."""
    names = (one.name, one.op, one.device) == (other.name, other.op, other.device)
    return names and one.attr == other.attr
