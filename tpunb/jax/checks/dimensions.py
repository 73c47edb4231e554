"""Which dimensions of a call's arrays are the same.

The columns of a weight are the rows of the next, for example. The operations of a traced program
say so: an addition has the dimensions of both operands, a product adds up over a dimension of each,
and a reshape keeps those that it does not cut. A layout that shards such a dimension in all arrays
needs no communication there until it is added up. Rules for the names of weights, as in Flax and
MaxText, write the same down by hand:
https://flax.readthedocs.io/en/latest/guides/parallel_training/flax_on_pjit.html
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from tpunb.jax.checks.equations import programs_in, scan_counts

_Dims = tuple[int, ...]
"""The numbers of an array's dimensions. Dimensions that are the same have the same root."""


class Dimensions:
    """The dimensions of the arguments of a traced program.

    Args:
        jaxpr: The program.

    Attributes:
        arguments: For each argument, the group of each of its dimensions.
        scanned: The groups that a `jax.lax.scan` goes over, such as a model's layers.
        looked_up: The groups that an index chooses from, such as a vocabulary.
    """

    def __init__(self, jaxpr: Any) -> None:
        self._roots: list[int] = []
        self._sizes: list[int] = []
        self._scanned: list[int] = []
        self._looked_up: list[int] = []
        arguments = [self._new(var.aval) for var in jaxpr.invars]
        self._follow(jaxpr, arguments)
        self.arguments = [tuple(map(self._root, dims)) for dims in arguments]
        self.scanned = {self._root(dim) for dim in self._scanned}
        self.looked_up = {self._root(dim) for dim in self._looked_up}

    def divisor(self, group: int) -> int:
        """Return the greatest number that divides each size of a group.

        A group has several sizes where a reshape cuts a dimension, as into heads.
        """
        return self._sizes[group]

    def _new(self, aval: Any) -> _Dims:
        sizes = getattr(aval, "shape", ())
        first = len(self._roots)
        self._roots.extend(range(first, first + len(sizes)))
        self._sizes.extend(size if isinstance(size, int) else 1 for size in sizes)
        return tuple(range(first, first + len(sizes)))

    def _root(self, dim: int) -> int:
        while self._roots[dim] != dim:
            self._roots[dim] = self._roots[self._roots[dim]]
            dim = self._roots[dim]
        return dim

    def _join(self, first: Sequence[int], second: Sequence[int]) -> None:
        for one, other in zip(first, second, strict=True):
            old, new = self._root(one), self._root(other)
            self._roots[old] = new
            self._sizes[new] = math.gcd(self._sizes[old], self._sizes[new])

    def _follow(self, jaxpr: Any, arguments: Sequence[_Dims]) -> list[_Dims]:
        """Join the dimensions that a program's equations share, and return its results'."""
        known: dict[Any, _Dims] = dict(zip(jaxpr.invars, arguments, strict=True))

        def dims_of(atom: Any) -> _Dims:
            if hasattr(atom, "val"):  # a literal
                return self._new(atom.aval)
            if atom not in known:  # a constant
                known[atom] = self._new(atom.aval)
            return known[atom]

        for equation in jaxpr.eqns:
            inputs = [dims_of(atom) for atom in equation.invars]
            outputs = [self._new(var.aval) for var in equation.outvars]
            known.update(zip(equation.outvars, outputs, strict=True))
            self._join_across(equation, inputs, outputs)
        return [dims_of(atom) for atom in jaxpr.outvars]

    def _join_across(self, equation: Any, inputs: list[_Dims], outputs: list[_Dims]) -> None:
        rule = _RULES.get(equation.primitive.name)
        if rule is not None:
            rule(self, equation, inputs, outputs)
            return
        inner = list(programs_in(equation))
        called = [each for each in inner if len(each.invars) == len(inputs)]
        for program in called:
            self._call(program, inputs, outputs)
        if not inner:
            self._join_equal(equation, inputs, outputs)

    def _call(self, program: Any, inputs: Sequence[_Dims], outputs: Sequence[_Dims]) -> None:
        """Follow an inner program, whose arguments and results are those of an equation."""
        if [len(dims) for dims in inputs] != [len(var.aval.shape) for var in program.invars]:
            return
        results = self._follow(program, inputs)
        for result, output in zip(results, outputs, strict=False):
            if len(result) == len(output):
                self._join(result, output)

    def _join_equal(self, equation: Any, inputs: list[_Dims], outputs: list[_Dims]) -> None:
        """Join the dimensions at the same place and with the same size, as of an addition."""
        name = equation.primitive.name
        for output, result in zip(outputs, equation.outvars, strict=True):
            for dims, atom in zip(inputs, equation.invars, strict=True):
                sizes, own = result.aval.shape, getattr(atom.aval, "shape", ())
                if len(sizes) != len(own) or (sizes != own and name not in _CUTS):
                    continue
                same = [place for place, size in enumerate(sizes) if size == own[place]]
                self._join([dims[place] for place in same], [output[place] for place in same])

    def _transpose(self, equation: Any, inputs: list[_Dims], outputs: list[_Dims]) -> None:
        permutation = equation.params["permutation"]
        self._join([inputs[0][place] for place in permutation], outputs[0])

    def _broadcast(self, equation: Any, inputs: list[_Dims], outputs: list[_Dims]) -> None:
        sizes = equation.params["shape"]
        own = equation.invars[0].aval.shape
        for dim, place in enumerate(equation.params["broadcast_dimensions"]):
            if own[dim] == sizes[place]:
                self._join([inputs[0][dim]], [outputs[0][place]])

    def _reshape(self, equation: Any, inputs: list[_Dims], outputs: list[_Dims]) -> None:
        before, after = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
        if 0 in before:
            return
        for one, other in _majors(before, after):
            self._join([inputs[0][one]], [outputs[0][other]])

    def _reduce(self, equation: Any, inputs: list[_Dims], outputs: list[_Dims]) -> None:
        gone = equation.params["axes"]
        for dims, output in zip(inputs, outputs, strict=False):
            self._join([dim for place, dim in enumerate(dims) if place not in gone], output)

    def _squeeze(self, equation: Any, inputs: list[_Dims], outputs: list[_Dims]) -> None:
        gone = {place % len(inputs[0]) for place in equation.params["dimensions"]}
        self._join([dim for place, dim in enumerate(inputs[0]) if place not in gone], outputs[0])

    def _product(self, equation: Any, inputs: list[_Dims], outputs: list[_Dims]) -> None:
        (summed, batched) = equation.params["dimension_numbers"]
        left, right = inputs[:2]
        for one, other in (*zip(*summed, strict=True), *zip(*batched, strict=True)):
            self._join([left[one]], [right[other]])
        free = [
            dim
            for dims, gone in zip((left, right), zip(summed, batched, strict=True), strict=True)
            for place, dim in enumerate(dims)
            if place not in (*gone[0], *gone[1])
        ]
        self._join([*(left[place] for place in batched[0]), *free], outputs[0])

    def _convolution(self, equation: Any, inputs: list[_Dims], outputs: list[_Dims]) -> None:
        numbers = equation.params["dimension_numbers"]
        (batch, features, *_), (outs, ins, *_) = numbers.lhs_spec, numbers.rhs_spec
        out_batch, out_features, *_ = numbers.out_spec
        left, right, result = inputs[0], inputs[1], outputs[0]
        self._join([left[batch], right[outs]], [result[out_batch], result[out_features]])
        if equation.params["feature_group_count"] == equation.params["batch_group_count"] == 1:
            self._join([left[features]], [right[ins]])

    def _gather(self, equation: Any, inputs: list[_Dims], outputs: list[_Dims]) -> None:
        numbers = equation.params["dimension_numbers"]
        sizes, slices = equation.invars[0].aval.shape, equation.params["slice_sizes"]
        gone = (*numbers.collapsed_slice_dims, *getattr(numbers, "operand_batching_dims", ()))
        self._index((inputs[0], sizes, slices), inputs[1], outputs[0], numbers.offset_dims, gone)

    def _scatter(self, equation: Any, inputs: list[_Dims], outputs: list[_Dims]) -> None:
        self._join(inputs[0], outputs[0])
        numbers = equation.params["dimension_numbers"]
        sizes, updates = equation.invars[0].aval.shape, equation.invars[2].aval.shape
        gone = (*numbers.inserted_window_dims, *getattr(numbers, "operand_batching_dims", ()))
        window = iter(numbers.update_window_dims)
        slices = [1 if place in gone else updates[next(window)] for place in range(len(sizes))]
        operand = (inputs[0], sizes, slices)
        self._index(operand, inputs[1], inputs[2], numbers.update_window_dims, gone)

    def _index(
        self,
        operand: tuple[_Dims, Sequence[int], Sequence[int]],
        indices: _Dims,
        slices: _Dims,
        offsets: Sequence[int],
        gone: Sequence[int],
    ) -> None:
        """Join an array's dimensions with those of its slices, and the indices' with theirs.

        Args:
            operand: The array's dimensions, their sizes, and the sizes of a slice.
            indices: The dimensions of the indices, of which the last is not in the slices.
            slices: The dimensions of the slices.
            offsets: The places in `slices` of the array's dimensions.
            gone: The array's dimensions that the slices do not have.
        """
        dims, sizes, kept = operand
        places = iter(offsets)
        for place, dim in enumerate(dims):
            if kept[place] != sizes[place]:
                self._looked_up.append(dim)
            if place not in gone and kept[place] == sizes[place]:
                self._join([dim], [slices[next(places)]])
            elif place not in gone:
                next(places)
        others = [dim for place, dim in enumerate(slices) if place not in offsets]
        if len(others) == len(indices) - 1:
            self._join(indices[:-1], others)

    def _scan(self, equation: Any, inputs: list[_Dims], outputs: list[_Dims]) -> None:
        (program,) = programs_in(equation)
        consts, carried = scan_counts(equation)
        first = consts + carried
        self._scanned.extend(dims[0] for dims in inputs[first:])
        results = self._follow(program, [*inputs[:first], *(dims[1:] for dims in inputs[first:])])
        for place, result in enumerate(results):
            if place < carried:
                self._join(result, inputs[consts + place])
            self._join(result, outputs[place] if place < carried else outputs[place][1:])

    def _while(self, equation: Any, inputs: list[_Dims], outputs: list[_Dims]) -> None:
        unused = equation.params["cond_nconsts"]
        results = self._follow(equation.params["body_jaxpr"].jaxpr, inputs[unused:])
        consts = unused + equation.params["body_nconsts"]
        for result, first, output in zip(results, inputs[consts:], outputs, strict=True):
            self._join(result, first)
            self._join(result, output)

    def _cond(self, equation: Any, inputs: list[_Dims], outputs: list[_Dims]) -> None:
        for branch in programs_in(equation):
            self._call(branch, inputs[1:], outputs)


def names_in(axes: object) -> tuple[str, ...]:
    """Return the mesh's axes of one dimension in a `PartitionSpec`: none, one or several."""
    return (axes,) if isinstance(axes, str) else axes if isinstance(axes, tuple) else ()


def axes_in(spec: Iterable[object]) -> set[str]:
    """Return the mesh's axes in a `PartitionSpec`."""
    return {name for axes in spec for name in names_in(axes)}


_Rule = Callable[[Dimensions, Any, list[_Dims], list[_Dims]], None]

_RULES: dict[str, _Rule] = {
    "transpose": Dimensions._transpose,
    "broadcast_in_dim": Dimensions._broadcast,
    "reshape": Dimensions._reshape,
    "squeeze": Dimensions._squeeze,
    "dot_general": Dimensions._product,
    "conv_general_dilated": Dimensions._convolution,
    "gather": Dimensions._gather,
    "scan": Dimensions._scan,
    "while": Dimensions._while,
    "cond": Dimensions._cond,
    **dict.fromkeys(
        ("scatter", "scatter-add", "scatter_add", "scatter_mul", "scatter_min", "scatter_max"),
        Dimensions._scatter,
    ),
    **dict.fromkeys(
        [
            *("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or"),
            *("argmax", "argmin"),
        ],
        Dimensions._reduce,
    ),
}
"""The operations whose results have other dimensions than their operands."""

_CUTS = frozenset({"slice", "dynamic_slice", "dynamic_update_slice", "concatenate", "pad", "split"})
"""The operations that change the sizes of some dimensions, and keep the others."""


def _majors(before: Sequence[int], after: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the pairs of dimensions that a reshape keeps, or whose outer part it keeps.

    >>> list(_majors((2, 12, 5), (2, 3, 4, 5)))
    [(0, 0), (1, 1), (2, 3)]
    """
    ones, others = [
        [(place, size) for place, size in enumerate(shape) if size != 1]
        for shape in (before, after)
    ]
    start, end = 0, 0
    while start < len(ones) and end < len(others):
        yield ones[start][0], others[end][0]
        left, right = ones[start][1], others[end][1]
        start, end = start + 1, end + 1
        while left != right:
            if left < right:
                left, start = left * ones[start][1], start + 1
            else:
                right, end = right * others[end][1], end + 1
