"""How values flow through the function of a `jax.shard_map`, on its way to each device.

Each value gets facts: along which mesh axes the devices' values differ, what another device sent,
which dimensions are cut, which are random. A fact that cannot be found is left out, so that a check
says nothing rather than something wrong.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from tpunb.jax.checks.equations import programs_in, scan_counts, source_inside

Axes = frozenset[str]
_NONE: Axes = frozenset()

SUMS = frozenset({"psum", "psum2", "psum_invariant"})
_COMBINE = SUMS | {"pmax", "pmin", "all_gather", "all_gather_invariant"}
"""The collectives after which all devices have the same value."""

_COPIES = frozenset({"pvary", "pcast", "pbroadcast"})
"""The operations that only say that a value may differ."""

_CALLS = frozenset(
    {
        "jit",
        "pjit",
        "closed_call",
        "core_call",
        "checkpoint",
        "remat2",
        "custom_jvp_call",
        "custom_vjp_call",
        "custom_vjp_call_jaxpr",
    }
)

_SAME_NUMBER = _COPIES | {
    "broadcast_in_dim",
    "convert_element_type",
    "copy",
    "reduce_precision",
    "reshape",
    "squeeze",
    "transpose",
}
"""The operations that leave the numbers of an array as they are."""

_SAME_RANK = frozenset(
    {
        "concatenate",
        "dynamic_slice",
        "dynamic_update_slice",
        "pad",
        "rev",
        "slice",
        "sort",
        "split",
    }
)
"""The operations that leave a dimension as it is if its size stays."""

_WITH_REDUCERS = ("reduce", "scatter", "select_and", "sort")
"""The beginnings of the names of operations whose inner program combines two elements."""

_MOST_ROUNDS = 8
"""The most rounds until the facts about a loop's values are the same as a round before."""


@dataclasses.dataclass(frozen=True, slots=True)
class Mean:
    """A multiple of a mean over dimensions that are cut, or of the sum of such means.

    Attributes:
        axes: The mesh axes along which the dimensions are cut.
        scale: The factor before the mean.
        is_divided: Whether a total was divided by the number of its elements. A total times a
            learning rate is no mean.
        sum: The equation that added up the devices' means, or None.
        devices: The number of means that it added up.
    """

    axes: Axes
    scale: float
    is_divided: bool = False
    sum: Any = None
    devices: int = 1

    @property
    def is_too_large(self) -> bool:
        """Whether it is a sum of means that nothing divides by their number.

        A factor above 1 may be the number of examples.
        """
        is_sum = self.is_divided and self.sum is not None
        return is_sum and 1 / self.devices < abs(self.scale) * 0.999 < 1


@dataclasses.dataclass(frozen=True, slots=True)
class Value:
    """The facts about a value on the devices.

    Attributes:
        differs: The mesh axes along which the devices have different values.
        sent: The mesh axes along which devices sent it to each other, so that it may be the same.
        summed: The mesh axes along which different values were added up.
        cut: For each dimension the mesh axes along which it is cut.
        draw: The equation that drew the random numbers it comes from, or None.
        random: The dimensions along which its elements are drawn independently.
        number: The number that all elements are, or None.
        mean: The mean that it is, or None.
    """

    differs: Axes = _NONE
    sent: Axes = _NONE
    summed: Axes = _NONE
    cut: tuple[Axes, ...] = ()
    draw: Any = None
    random: frozenset[int] = frozenset()
    number: float | None = None
    mean: Mean | None = None

    def joined(self, other: Value) -> Value:
        """Return what is known of a value that is one of two."""
        return Value(
            self.differs | other.differs,
            self.sent | other.sent,
            self.summed | other.summed,
            tuple(map(operator.or_, self.cut, other.cut)),
            self.draw or other.draw,
            self.random | other.random,
            self.number if self.number == other.number else None,
            self.mean if self.mean == other.mean else None,
        )


class Event(NamedTuple):
    """An equation with the facts about its values.

    Attributes:
        equation: The equation.
        source: The equation that gives it its place in the code.
        inputs: The facts about its inputs.
        outputs: The facts about its outputs.
    """

    equation: Any
    source: Any
    inputs: Sequence[Value]
    outputs: Sequence[Value]

    @property
    def name(self) -> str:
        """The operation."""
        return str(self.equation.primitive.name)


@dataclasses.dataclass(frozen=True)
class Flow:
    """What a `jax.shard_map` does with its values.

    Attributes:
        equation: The equation of the `jax.shard_map`.
        events: The equations of its function.
        results: The facts about its results.
        sizes: The sizes of the mesh axes.
    """

    equation: Any
    events: Sequence[Event]
    results: Sequence[Value]
    sizes: dict[str, int]

    def results_with_axes(self) -> Iterable[tuple[int, Value, Axes]]:
        """Return for each result its number, its facts, and the mesh axes in its spec."""
        specs = self.equation.params["out_specs"]
        for number, (value, spec) in enumerate(zip(self.results, specs, strict=True)):
            yield number, value, frozenset().union(*_axes_of(spec, len(value.cut)))


def flow_of(equation: Any) -> Flow:
    """Return what a `jax.shard_map` does with its values."""
    sizes = dict(equation.params["mesh"].shape)
    visitor = _Visitor(sizes)
    results = visitor.mapped(equation, [_plain(each) for each in equation.invars], None)
    return Flow(equation, visitor.events, results, sizes)


def _axes_of(spec: Any, rank: int) -> list[Axes]:
    """Return the mesh axes of each dimension in a spec."""
    entries = [*spec, *[None] * rank][:rank]
    several = [each if isinstance(each, tuple) else (each,) for each in entries]
    return [frozenset(name for name in names if isinstance(name, str)) for names in several]


def _shape(variable: Any) -> tuple[int, ...]:
    return tuple(getattr(variable.aval, "shape", ()))


def _plain(variable: Any) -> Value:
    """Return the facts about a value that nothing is known of; a constant's number."""
    number = getattr(variable, "val", None)
    is_number = number is not None and _shape(variable) == () and not isinstance(number, bool)
    try:
        known = float(number) if is_number else None  # type: ignore[arg-type]
    except (TypeError, ValueError):
        known = None
    return Value(cut=(_NONE,) * len(_shape(variable)), number=known)


class _Visitor:
    """Finds the facts about the values of a program, and notes them for each equation."""

    def __init__(self, sizes: dict[str, int]) -> None:
        self._sizes = {axis: size for axis, size in sizes.items() if size > 1}
        self._trials = 0
        self.events: list[Event] = []

    def mapped(self, equation: Any, inputs: Sequence[Value], source: Any) -> list[Value]:
        """Return the facts about the results of a `jax.shard_map` in its own function."""
        program = equation.params["jaxpr"]
        values = []
        for value, variable, spec in zip(
            inputs, program.invars, equation.params["in_specs"], strict=True
        ):
            axes = [each & self._sizes.keys() for each in _axes_of(spec, len(_shape(variable)))]
            cut = tuple(map(operator.or_, value.cut, axes))
            differs = value.differs.union(*axes)
            values.append(dataclasses.replace(value, cut=cut, differs=differs))
        return self._visit(getattr(program, "jaxpr", program), values, source)

    def _visit(self, program: Any, inputs: Sequence[Value], source: Any) -> list[Value]:
        """Return the facts about a program's results."""
        known = dict(zip(program.invars, inputs, strict=True))

        def fact(variable: Any) -> Value:
            is_literal = hasattr(variable, "val")
            return _plain(variable) if is_literal else known.get(variable) or _plain(variable)

        for equation in program.eqns:
            values = [fact(each) for each in equation.invars]
            results = self._results(equation, values, source)
            known.update(zip(equation.outvars, results, strict=True))
            if not self._trials:
                self.events.append(Event(equation, source or equation, values, results))
        return [fact(each) for each in program.outvars]

    def _results(self, equation: Any, inputs: Sequence[Value], source: Any) -> list[Value]:
        name = equation.primitive.name
        inner = list(programs_in(equation))
        sources = [source_inside(equation, each, source) for each in inner]
        if name == "scan":
            return self._scanned(equation, inner[0], inputs, sources[0])
        if name == "while":
            return self._looped(equation, inputs, source)
        if name == "cond":
            of_branches = [
                self._visit(each, inputs[1:], own) for each, own in zip(inner, sources, strict=True)
            ]
            return [
                _differing(functools.reduce(Value.joined, values), inputs[0].differs)
                for values in zip(*of_branches, strict=True)
            ]
        if name in _CALLS and inner and len(inner[0].invars) == len(inputs):
            return self._visit(inner[0], inputs, sources[0])
        if name == "shard_map":  # over further axes
            axes = frozenset(equation.params["mesh"].shape)
            results = self.mapped(equation, inputs, source)
            return [_differing(each, _NONE, without=axes) for each in results]
        return [self._result(equation, inputs, number) for number in range(len(equation.outvars))]

    def _tried(self, program: Any, inputs: Sequence[Value], source: Any) -> list[Value]:
        self._trials += 1
        results = self._visit(program, inputs, source)
        self._trials -= 1
        return results

    def _scanned(
        self, equation: Any, body: Any, inputs: Sequence[Value], source: Any
    ) -> list[Value]:
        consts, carried = scan_counts(equation)
        fixed, carry = inputs[:consts], list(inputs[consts : consts + carried])
        rows = [_without_first(each) for each in inputs[consts + carried :]]
        for _ in range(_MOST_ROUNDS):
            results = self._tried(body, [*fixed, *carry, *rows], source)
            joined = list(map(Value.joined, carry, results[:carried]))
            if joined == carry:
                break
            carry = joined
        results = self._visit(body, [*fixed, *carry, *rows], source)
        return [*map(Value.joined, carry, results), *map(_with_first, results[carried:])]

    def _looped(self, equation: Any, inputs: Sequence[Value], source: Any) -> list[Value]:
        params = equation.params
        test, body = params["cond_jaxpr"].jaxpr, params["body_jaxpr"].jaxpr
        of_test, of_body = params["cond_nconsts"], params["body_nconsts"]
        tested, fixed = inputs[:of_test], inputs[of_test : of_test + of_body]
        carry = list(inputs[of_test + of_body :])
        for _ in range(_MOST_ROUNDS):
            results = self._tried(body, [*fixed, *carry], source)
            (goes_on,) = self._tried(test, [*tested, *carry], source)
            joined = [
                _differing(old.joined(new), goes_on.differs)
                for old, new in zip(carry, results, strict=True)
            ]
            if joined == carry:
                break
            carry = joined
        self._visit(body, [*fixed, *carry], source)
        return carry

    def _result(self, equation: Any, inputs: Sequence[Value], number: int) -> Value:
        """Return the facts about a result of an operation."""
        name, shape = equation.primitive.name, _shape(equation.outvars[number])
        if name == "axis_index":
            return Value(differs=frozenset({equation.params["axis_name"]}) & self._sizes.keys())
        axes = _axes_named(equation) & self._sizes.keys()
        if axes and name not in _COPIES:
            return self._received(equation, inputs, number, axes)
        sources = _sources(equation, shape)
        draws = (each.draw for each in inputs)
        is_draw = name == "random_bits"
        sent = frozenset().union(*(each.sent for each in inputs))
        if not name.startswith(_WITH_REDUCERS) and next(programs_in(equation), None) is not None:
            sent |= self._sizes.keys()  # a kernel, which may send as it likes
        return Value(
            frozenset().union(*(each.differs for each in inputs)),
            sent,
            frozenset().union(*(each.summed for each in inputs)),
            tuple(
                frozenset().union(*(inputs[place].cut[dim] for place, dim in each))
                for each in sources
            ),
            equation if is_draw else next((each for each in draws if each is not None), None),
            frozenset(dim for dim, size in enumerate(shape) if size > 1)
            if is_draw
            else frozenset(
                out
                for out, each in enumerate(sources)
                if any(dim in inputs[place].random for place, dim in each)
            ),
            _number(name, inputs),
            _mean(equation, inputs),
        )

    def _received(self, equation: Any, inputs: Sequence[Value], number: int, axes: Axes) -> Value:
        """Return the facts about a result of a collective."""
        name, rank = equation.primitive.name, len(_shape(equation.outvars[number]))
        value = inputs[number] if len(inputs) == len(equation.outvars) else inputs[0]
        value = dataclasses.replace(value, draw=None, random=frozenset(), number=None)
        if name not in _COMBINE or equation.params.get("axis_index_groups") is not None:
            # A reduction's own rank; the dimensions of a collective that moves parts are not known.
            return dataclasses.replace(
                value, sent=value.sent | axes, cut=(_NONE,) * rank, mean=None
            )
        mean = value.mean if name in SUMS else None
        if mean is not None:
            added = mean.axes & axes
            devices = math.prod(self._sizes[axis] for axis in added)
            is_new = mean.sum is None and added and not value.sent & added
            mean = dataclasses.replace(mean, sum=equation, devices=devices) if is_new else None
        cut = tuple(each - axes for each in value.cut) if name in SUMS else (_NONE,) * rank
        summed = value.summed | (axes & value.differs if name in SUMS else _NONE)
        return dataclasses.replace(
            value, differs=value.differs - axes, summed=summed, cut=cut, mean=mean
        )


def _axes_named(equation: Any) -> Axes:
    """Return the mesh axes that an operation names."""
    params = equation.params
    named = params.get("axes", params.get("axis_name", ()))
    names = named if isinstance(named, tuple | list) else (named,)
    return frozenset(name for name in names if isinstance(name, str))


def _differing(value: Value, axes: Axes, without: Axes = _NONE) -> Value:
    return dataclasses.replace(value, differs=(value.differs | axes) - without)


def _without_first(value: Value) -> Value:
    random = frozenset(dim - 1 for dim in value.random if dim)
    return dataclasses.replace(value, cut=value.cut[1:], random=random, mean=None)


def _with_first(value: Value) -> Value:
    random = frozenset(dim + 1 for dim in value.random)
    return dataclasses.replace(value, cut=(_NONE, *value.cut), random=random, mean=None)


_Dims = list[tuple[int, int]]
"""The dimensions of inputs, by the input's place and the dimension's number."""


def _sources(equation: Any, shape: tuple[int, ...]) -> list[_Dims]:
    """Return for each dimension of a result the dimensions of inputs that it is."""
    name, params = equation.primitive.name, equation.params
    shapes = list(map(_shape, equation.invars))
    none: list[_Dims] = [[] for _ in shape]
    if name == "transpose":
        return [[(0, dim)] for dim in params["permutation"]]
    if name == "squeeze" or (name.startswith(("reduce_", "arg")) and "axes" in params):
        gone = params.get("axes", params.get("dimensions"))
        return [[(0, dim)] for dim in range(len(shapes[0])) if dim not in gone]
    if name == "broadcast_in_dim":
        for dim, out in enumerate(params["broadcast_dimensions"]):
            none[out] += [(0, dim)] if shapes[0][dim] == shape[out] else []
        return none
    if name == "reshape":
        return _reshaped(shapes[0], shape)
    if name == "dot_general":
        (left, right), (batch, _) = params["dimension_numbers"]
        of_right = {*right, *params["dimension_numbers"][1][1]}
        kept = [*batch, *(dim for dim in range(len(shapes[0])) if dim not in {*left, *batch})]
        others = [dim for dim in range(len(shapes[1])) if dim not in of_right]
        return [[(0, dim)] for dim in kept] + [[(1, dim)] for dim in others]
    if name == "conv_general_dilated":
        numbers = params["dimension_numbers"]
        none[numbers.out_spec[0]] = [(0, numbers.lhs_spec[0])]
        return none
    if name == "gather":
        offset = params["dimension_numbers"].offset_dims
        rows = [dim for dim in range(len(shape)) if dim not in offset]
        for dim, out in enumerate(rows):
            none[out] = [(1, dim)]
        return none
    if name in _SAME_RANK:
        ranked = [place for place, own in enumerate(shapes) if len(own) == len(shape)]
        return [
            [(place, dim) for place in ranked if shapes[place][dim] == shape[dim]]
            for dim in range(len(shape))
        ]
    if all(own == () or _is_spread(own, shape) for own in shapes):  # element by element
        full = [place for place, own in enumerate(shapes) if own]
        return [
            [(place, dim) for place in full if shapes[place][dim] == size]
            for dim, size in enumerate(shape)
        ]
    return none


def _is_spread(own: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Return whether an operation on elements gives a shape, with sizes of 1 repeated."""
    pairs = itertools.zip_longest(own, shape)
    return all(size in {1, whole} for size, whole in pairs)


def _reshaped(old: tuple[int, ...], new: tuple[int, ...]) -> list[_Dims]:
    """Return the sources of dimensions that are merged or split; the first part has them."""
    sources: list[_Dims] = [[] for _ in new]
    ends = list(itertools.accumulate(new, operator.mul))
    before = 1
    for dim, size in enumerate(old):
        out = next((n for n, end in enumerate(ends) if end > before), None)
        if size > 1 and out is not None and before % (ends[out] // new[out]) == 0:
            sources[out].append((0, dim))
        before *= size
    return sources


def _number(name: str, inputs: Sequence[Value]) -> float | None:
    numbers = [each.number for each in inputs]
    if None in numbers or not numbers:
        return None
    if name in _SAME_NUMBER:
        return numbers[0]
    if name == "mul" and len(numbers) == 2:
        return numbers[0] * numbers[1]  # type: ignore[operator]
    if name == "div" and numbers[1]:
        return numbers[0] / numbers[1]  # type: ignore[operator]
    return None


def _mean(equation: Any, inputs: Sequence[Value]) -> Mean | None:
    """Return the mean that a result is, if its inputs are means or dimensions that are cut."""
    name = equation.primitive.name
    if name == "reduce_sum":
        return _total(inputs[0], _shape(equation.invars[0]), equation.params["axes"])
    means = [each.mean for each in inputs]
    known = [each for each in means if each is not None]
    if not known:
        return None
    if name in _SAME_NUMBER or name == "neg":
        return known[0]
    if name in {"add", "sub", "add_any"}:
        return known[0] if all(each == known[0] for each in known) else None
    factor = None
    if name == "mul":
        factor = next((each.number for each in inputs if each.mean is None), None)
    elif name == "div" and means[0] is not None and inputs[1].number:
        factor = 1 / inputs[1].number
        is_divided = known[0].is_divided or math.isclose(known[0].scale * factor, 1)
        return dataclasses.replace(known[0], scale=known[0].scale * factor, is_divided=is_divided)
    return dataclasses.replace(known[0], scale=known[0].scale * factor) if factor else None


def _total(value: Value, shape: tuple[int, ...], axes: Sequence[int]) -> Mean | None:
    count = math.prod(shape[dim] for dim in axes)
    if value.mean is not None:
        return dataclasses.replace(value.mean, scale=value.mean.scale * count)
    cut = [dim for dim in axes if value.cut[dim]]
    if math.prod(shape[dim] for dim in cut) < 2:
        return None
    return Mean(frozenset().union(*(value.cut[dim] for dim in cut)), float(count))
