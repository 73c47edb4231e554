"""The objects with variables that a cell uses: models, optimizers, metrics, variables."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any

import tensorflow as tf

from tpunb._util.attributes import attribute, has_attributes
from tpunb._util.functions import unwrap
from tpunb._util.reachable import read_globals, unpack, walk
from tpunb._util.user_code import is_users_class
from tpunb.cells.reading.nests import is_nest

_Trackable = tf.__internal__.tracking.Trackable
_SEARCHED = frozenset({"builtins", "collections", "functools"})


def owners_of(values: Mapping[str, Any], namespace: Mapping[str, Any]) -> dict[str, Any]:
    """Return the objects with variables that can be reached from values, by their names.

    The search follows lists, tuples, dicts, functions, and the attributes of the user's own
    objects. An object in `values` keeps its name there; others get names such as `trainer.model`.

    Args:
        values: The values of the names that a cell reads.
        namespace: The notebook's names, which functions may read.
    """
    found: dict[str, Any] = {}
    waiting = collections.deque(values.items())
    for name, value in walk(waiting):
        if _owns_variables(value):
            found[name] = value
        elif _is_searched(value):
            if isinstance(value, FunctionType) and value.__globals__ is namespace:
                waiting.extend(read_globals(value))
            waiting.extend(unpack(name, value, _dotted))
            waiting.extend((name, method) for method in _methods(type(value)))
    return found


def variables_of(owner: Any) -> list[Any]:
    """Return TensorFlow's variables of an object with variables, each once and in a fixed order."""
    reached = reachable(owner) if isinstance(owner, _Trackable) else []
    listed = attribute(owner, "variables", ())
    listed = [plain_variable(variable) for variable in listed] if is_nest(listed) else []
    every = [variable for variable in (*reached, *listed) if variable is not None]
    return list({id(variable): variable for variable in every}.values())


def reachable(root: Any) -> list[Any]:
    """Return the variables that TensorFlow saves with an object."""
    objects = tf.train.TrackableView(root).descendants()
    return [found for each in objects if (found := plain_variable(each)) is not None]


def plain_variable(value: Any) -> Any:
    """Return TensorFlow's variable in a Keras variable; None if the value is not a variable."""
    if isinstance(value, tf.Variable):
        return value
    inner = value.value if has_attributes(value, "_value", "value", "assign") else None
    return inner if isinstance(inner, tf.Variable) else None


def _owns_variables(value: Any) -> bool:
    if isinstance(value, tf.Variable | tf.Module | tf.random.Generator):
        return True
    if isinstance(value, type) or is_nest(value):
        return False
    # Keras's models, layers, optimizers and metrics, and its variables.
    return has_attributes(value, "variables", "get_config") or plain_variable(value) is not None


def _is_searched(value: Any) -> bool:
    """Return whether a value is the user's, a container or a function, and no class or module."""
    if isinstance(value, type | ModuleType):
        return False
    kind = type(value)
    return kind.__module__ in _SEARCHED or is_users_class(kind) or bool(unwrap(value))


def _dotted(name: str, owner: Any, key: Any) -> str:
    del owner
    return f"{name}.{key}"


def _methods(kind: type) -> Iterator[FunctionType]:
    """Yield the methods that a user's class defines or inherits."""
    for base in filter(is_users_class, kind.__mro__):
        yield from (each for each in vars(base).values() if isinstance(each, FunctionType))
