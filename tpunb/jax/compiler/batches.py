"""The batch among the arguments of a JAX function, and whether that size is a batch."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tpunb.compiler.ask.compile_settings import Settings
from tpunb.compiler.ask.topologies import Target
from tpunb.compiler.fit.any_batch import AnyBatch, Lowerer
from tpunb.compiler.frameworks import arrays_in, is_keras_model
from tpunb.compiler.program import CompileError
from tpunb.jax.checks.equations import all_equations, programs_in, scan_counts
from tpunb.jax.compiler.functions import (
    batch_of,
    devices_of,
    first_place,
    function_for,
    kinds_of,
    traced_call,
)
from tpunb.machine.keras_internals import model_of

_DIVIDED_BY_ANY_MESH = 1 << 14


def lowerer(fn: Any, args: Sequence[Any], note: str) -> Lowerer:
    """Return how JAX traces a function. See `tpunb.framework.Framework.lowerer`."""
    lower = functools.partial(function_for, fn)

    def with_any_batch(kind: Target, settings: Settings) -> AnyBatch:
        whole = model_of(fn) is not None
        before, resized = any_batch(fn, args)
        sized = args if before else resized(_DIVIDED_BY_ANY_MESH)
        cores = kind.replicas if whole else devices_of(fn, sized, kind, settings)
        sure = functools.partial(is_batch, fn, args)
        known = (lambda: True) if whole else sure
        return AnyBatch(lower, resized, before, cores, cores, whole, known)

    return Lowerer(fn, lower, args, None, True, note, with_any_batch)


def any_batch(fn: Any, args: Sequence[Any]) -> tuple[int | None, Callable[..., list[Any]]]:
    """Return the arguments' global batch, or None if it is open, and a function that changes it.

    The batch is the first size of a model's first array, or of a function's last argument. The
    function's other arguments are resized if it is the first size of all their arrays. Resized
    arguments keep their shardings, unless another sharding is given.

    Raises:
        CompileError: No argument has a batch.
    """
    jax: Any = sys.modules["jax"]
    whole = is_keras_model(fn)
    data = batch_of(args, may_be_open=True) if whole else ()
    arguments = list(args) if not whole else list(data) if isinstance(data, tuple) else [data]
    sized = arrays_in(arguments[0] if whole else arguments[-1:])
    shapes = [array.shape for array in sized if np.shape(array)]
    if not shapes:
        raise CompileError("No argument has a batch.", fix="Pass the batch as the last argument.")
    before = shapes[0][0]

    def has_batch(value: Any) -> bool:
        return bool(np.shape(value)[:1] == (before,))

    def with_batch(size: int, sharding: Any = None) -> list[Any]:
        def resized(value: Any) -> Any:
            if not has_batch(value):
                return value
            own = getattr(value, "sharding", None)
            named = own if isinstance(own, jax.sharding.NamedSharding) else None
            shape = (size, *value.shape[1:])
            return jax.ShapeDtypeStruct(shape, value.dtype, sharding=sharding or named)

        return [
            jax.tree_util.tree_map(resized, argument)
            if whole or all(map(has_batch, arrays_in(argument)))
            else argument
            for argument in arguments
        ]

    return before, with_batch


def is_batch(fn: Any, args: Sequence[Any]) -> bool:
    """Return whether the size that `any_batch` changes is known to be a batch.

    It is if it is also the first size of all results of a function with weights. A function with
    gradients returns arrays of the sizes of the arguments that it trains: then it is if all other
    arguments have it. The axis of a `jax.lax.scan` is none, but layers or time.
    """
    before, with_batch = any_batch(fn, args)
    if before is None or before < 2:
        return False
    call = _Call(fn, args)
    larger = with_batch(2 * before)
    changed = [old is not new for old, new in zip(args, larger, strict=True)]
    if any(call.scans(place) for place, is_resized in enumerate(changed) if is_resized):
        return False
    if call.is_trained():
        given = [each for place, each in enumerate(args) if not call.returns(place)]
        last = len(args) - 1
        return not call.returns(last) and all(
            _has_size(array, before) for array in arrays_in(given)
        )
    results = _Call(fn, larger).results
    return all(result.shape[:1] == (2 * before,) for result in results) and (
        not all(changed) or not call.returns(len(args) - 1)
    )


def _has_size(array: Any, size: int) -> bool:
    """Return whether an array has a first size, or is none that would: a number or a key."""
    shape = np.shape(array)
    is_key = not shape or "key" in str(array.dtype) or str(array.dtype) == "uint32"
    return is_key or shape[0] == size


_TRANSPARENT = frozenset({"convert_element_type", "copy", "sharding_constraint"})


class _Call:
    """A traced call of a JAX function.

    Args:
        fn: The function.
        args: Its arguments.
    """

    def __init__(self, fn: Any, args: Sequence[Any]) -> None:
        call = traced_call(fn, args)
        self._args, self._jaxpr = args, call.jaxpr.jaxpr
        self.results = arrays_in(call.out_info)
        start = first_place(call, args)
        self._places: list[range] = []
        for arg in args:
            self._places.append(range(start, start + len(arrays_in(arg))))
            start = self._places[-1].stop

    def returns(self, place: int) -> bool:
        """Return whether the results have all arrays of an argument, by shape and type."""
        return kinds_of(self._args[place]) <= kinds_of(self.results)

    def is_trained(self) -> bool:
        """Return whether the function has a gradient."""
        return any(
            "transpose" in str(each.equation.source_info.name_stack)
            for each in all_equations(self._jaxpr)
        )

    def scans(self, place: int) -> bool:
        """Return whether a `jax.lax.scan` goes over the first axis of an argument's arrays."""
        arrays = (self._jaxpr.invars[leaf] for leaf in self._places[place])
        return any(_is_scanned(self._jaxpr, array) for array in arrays)


def _is_scanned(jaxpr: Any, array: Any) -> bool:
    """Return whether a scan goes over the first axis of a program's array."""
    for eqn in jaxpr.eqns:
        for place in (place for place, operand in enumerate(eqn.invars) if operand is array):
            name = eqn.primitive.name
            if name == "scan":
                if place >= sum(scan_counts(eqn)):
                    return True
                continue
            if name in _TRANSPARENT and _is_scanned(jaxpr, eqn.outvars[0]):
                return True
            for inner in programs_in(eqn):
                if len(inner.invars) == len(eqn.invars) and _is_scanned(inner, inner.invars[place]):
                    return True
    return False
