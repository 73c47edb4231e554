"""The key of a traced program: two programs with equal keys compute the same."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Hashable, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

import jax
import numpy as np

from tpunb._util.functions import read_closure

_OF_JAX = str(Path(jax.__file__).parent)

_NOT_LOWERED = {
    "custom_jvp_call": {"jvp_jaxpr_fun"},
    "custom_vjp_call": {"fwd_jaxpr_thunk", "bwd", "out_trees"},
    "reduce": {"computation"},
    "remat2": {"policy"},
    "checkpoint": {"policy"},
}
"""The parameters of operations that only transformations of a trace read, and no program has.

JAX makes most of them anew in each trace.
"""

_CONTEXT = ("compute_type", "cur_abstract_mesh", "threefry_partitionable", "xla_metadata")
"""What an operation takes from the contexts that it was traced in."""


class ProgramKey:
    """A traced program by what it computes: operations, constants and functions of the host.

    Functions count by identity, and NumPy's arrays by their numbers, which may change in place.
    JAX's arrays cannot change, so they count by identity.

    Args:
        program: A closed jaxpr.

    Attributes:
        calls_host: Whether the program calls Python functions.
    """

    def __init__(self, program: Any) -> None:
        self.calls_host = False
        self._known: dict[int, tuple[Any, Hashable]] = {}  # programs that are called repeatedly
        self._key = self._of(program)
        self._known.clear()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProgramKey) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def _of(self, value: Any) -> Hashable:
        """Return the key of a part of a program."""
        if isinstance(value, float | complex):
            return type(value), repr(value), getattr(value, "dtype", None)  # 0.0 is not -0.0
        if isinstance(value, tuple | list):
            return type(value), *map(self._of, value)
        if isinstance(value, dict):
            return type(value), *((key, self._of(each)) for key, each in value.items())
        if isinstance(value, jax.Array):
            return _Same(value)
        if hasattr(value, "eqns"):  # JAX 0.12 has one class for open and closed programs
            constants = tuple(getattr(value, "consts", ()))
            return self._of_program(getattr(value, "jaxpr", value)), self._of(constants)
        if hasattr(value, "__array__"):
            return _numbers(value)
        if isinstance(value, functools.partial):
            return functools.partial, self._of((value.func, value.args, value.keywords))
        if isinstance(value, FunctionType) and value.__code__.co_filename.startswith(_OF_JAX):
            closed = read_closure(value)
            return value.__code__, self._of((closed, value.__defaults__, value.__kwdefaults__))
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = dataclasses.fields(value)
            named = {each.name: getattr(value, each.name, None) for each in fields}
            return type(value), self._of({k: v for k, v in named.items() if k != "debug_info"})
        return _Same(value)

    def _of_program(self, program: Any) -> Hashable:
        if id(program) in self._known:
            return self._known[id(program)][1]
        numbers: dict[Any, int] = {}

        def variable(value: Any) -> Hashable:
            if hasattr(value, "val"):
                return self._of(value.val), _Same(value.aval)
            return numbers.setdefault(value, len(numbers)), _Same(value.aval)

        key: list[Hashable] = [tuple(map(variable, (*program.constvars, *program.invars)))]
        for equation in program.eqns:
            name = equation.primitive.name
            self.calls_host |= name.endswith("callback") or name == "debug_print"
            left_out = _NOT_LOWERED.get(name, ())
            params = {k: v for k, v in equation.params.items() if k not in left_out}
            key += [
                _Same(equation.primitive),
                tuple(map(variable, equation.invars)),
                self._of(params),
                tuple(_Same(getattr(equation.ctx, each, None)) for each in _CONTEXT),
                tuple(map(variable, equation.outvars)),
            ]
        key.append(tuple(map(variable, program.outvars)))
        self._known[id(program)] = program, tuple(key)
        return tuple(key)


class _Same:
    """A value that equals itself, and values of its type that say so."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Same) or type(self._value) is not type(other._value):
            return False
        if self._value is other._value:
            return True
        if isinstance(self._value, jax.Array | Mapping):
            return False
        try:
            return bool(self._value == other._value)
        except Exception:  # a class of the user
            return False

    def __hash__(self) -> int:
        return hash(type(self._value))


def _numbers(array: Any) -> Hashable:
    """Return the key of the numbers of an array."""
    plain = np.ascontiguousarray(array)
    if plain.dtype.hasobject:
        return _Same(array)
    digest = hashlib.sha256(plain.reshape(-1).view(np.uint8).data).digest()
    return type(array), plain.dtype, plain.shape, getattr(array, "weak_type", False), digest
