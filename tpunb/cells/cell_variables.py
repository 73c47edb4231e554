"""The objects with variables that a cell uses: models, optimizers, metrics, variables."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping
from types import FunctionType
from typing import Any

import tensorflow as tf

from tpunb._util.attributes import attribute, has_attributes
from tpunb._util.functions import closed_over, wrapped
from tpunb._util.user_code import is_users_class
from tpunb.cells.code_names import mentions
from tpunb.cells.nests import is_nest

_MOST = 20_000  # objects to visit
_Trackable = tf.__internal__.tracking.Trackable


def owners_of(values: Mapping[str, Any], namespace: Mapping[str, Any]) -> dict[str, Any]:
    """Return the objects with variables that can be reached from values, by their names.

    The search follows lists, tuples, dicts, functions, and the attributes of the user's own
    objects. An object in `values` keeps its name there; others get names such as `trainer.model`.

    Args:
        values: The values of the names that a cell reads.
        namespace: The notebook's names, which functions may read.
    """
    found: dict[str, Any] = {}
    seen: dict[int, Any] = {}  # kept alive, so that no id is used twice during the search
    waiting = collections.deque(values.items())
    while waiting and len(seen) < _MOST:
        name, value = waiting.popleft()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if _owns_variables(value):
            found[name] = value
        else:
            waiting.extend(_inside(name, value, namespace))
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


def _inside(name: str, value: Any, namespace: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the values that a value leads to, with their names."""
    if isinstance(value, dict):
        yield from ((f"{name}.{key}", inner) for key, inner in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"{name}.{number}", inner) for number, inner in enumerate(value))
    elif isinstance(value, FunctionType):
        yield from _read_by(name, value, namespace)
    elif inner := (*wrapped(value), attribute(value, "python_function")):
        yield from ((name, each) for each in inner if each is not None)
        if is_users_class(type(value)):
            yield from _of_object(name, value)


def _read_by(
    name: str, function: FunctionType, namespace: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """Yield what a function reads."""
    if function.__globals__ is namespace:
        names = mentions(function.__code__).globals
        yield from ((each, namespace[each]) for each in names if each in namespace)
    yield from ((f"{name}.{each}", inner) for each, inner in closed_over(function).items())
    yield from ((name, each) for each in function.__defaults__ or ())
    yield name, attribute(function, "__wrapped__")


def _of_object(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an object of a user's class, and its methods."""
    attributes = attribute(value, "__dict__", {})
    yield from ((f"{name}.{each}", inner) for each, inner in attributes.items())
    for kind in type(value).__mro__:
        if is_users_class(kind):
            methods = [each for each in vars(kind).values() if isinstance(each, FunctionType)]
            yield from ((name, method) for method in methods)
