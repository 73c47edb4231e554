"""Preparation of a cell's optimizers, and refusal of models that the cell cannot train."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tpunb._util.attributes import attribute, has_attributes
from tpunb._util.code_names import value_of
from tpunb.cells.reading.source import CellSource, StepSource
from tpunb.errors import CellError
from tpunb.tensorflow.cells.capture import Captured

_APPLIES = {"apply_gradients": 0, "apply": 1, "minimize": 1}
"""The methods that apply gradients, with the position of the argument that names the variables."""


def make_ready(cell: StepSource, captured: Captured, namespace: dict[str, Any]) -> None:
    """Build optimizers that are not built, in the scope where the replicas' variables belong.

    Raises:
        CellError: Variables that the cell trains were made outside the scope.
    """
    values, strategy = {**captured.read, **captured.closed}, captured.strategy
    optimizers = {
        name: value
        for name, value in values.items()
        if has_attributes(value, "apply_gradients", "learning_rate")
    }
    models = {
        name: value
        for name, value in values.items()
        if name not in optimizers and not isinstance(value, type)
        if isinstance(value, tf.Module) or has_attributes(value, "trainable_variables")
    }
    if not optimizers:
        return
    for name, model in models.items():
        _refuse_outside(name, _variables(model, "trainable_variables"), strategy)
    for name, optimizer in optimizers.items():
        _refuse_outside(name, _variables(optimizer, "variables"), strategy)
    distinct = {id(model): model for model in models.values()}
    for name, optimizer in optimizers.items():
        if _is_built(optimizer):
            continue
        variables = _trained(cell, name, namespace)
        if not variables and len(distinct) == 1:  # otherwise the variables are not certain
            variables = _variables(next(iter(distinct.values())), "trainable_variables")
        if variables:
            with strategy.scope():
                optimizer.build(variables)


def _is_built(optimizer: Any) -> bool:
    """Return whether an optimizer has its variables, or does not make them by `build`."""
    if has_attributes(optimizer, "build", "_create_iteration_variable"):  # tf_keras
        return bool(attribute(optimizer, "_built", False))  # missing until it is built
    return bool(attribute(optimizer, "built", True))


def _variables(owner: Any, name: str) -> list[Any]:
    try:
        return list(getattr(owner, name))
    except (AttributeError, TypeError, ValueError):  # not built yet, or no variables of its own
        return []


def _refuse_outside(name: str, variables: list[Any], strategy: Any) -> None:
    if strategy.num_replicas_in_sync == 1:
        return
    for variable in variables:
        # Keras 3 wraps TensorFlow's variables in its own.
        inner = variable if isinstance(variable, tf.Variable) else getattr(variable, "value", None)
        if isinstance(inner, tf.Variable) and not isinstance(
            inner, tf.distribute.DistributedValues
        ):
            raise CellError(
                f"Variables of `{name}` were made outside of the strategy's scope: they have no "
                "copy on each replica, and the cell cannot train them.",
                fix="Make it inside of `with strategy.scope():`, and call its `build` there too.",
            )


def _trained(cell: StepSource, optimizer: str, namespace: dict[str, Any]) -> list[Any]:
    """Return the variables that the cell names where it applies gradients."""
    assigned = {
        node.targets[0].id: node.value
        for node in cell.nodes
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    for call in cell.nodes:
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        place = _APPLIES.get(call.func.attr)
        if place is None or ast.unparse(call.func.value) != optimizer or len(call.args) <= place:
            continue
        named = call.args[place]
        if isinstance(named, ast.Call) and ast.unparse(named.func) == "zip":
            named = named.args[-1]  # the variables in zip(gradients, variables)
        if isinstance(named, ast.Name):  # follow a name that the cell itself assigns once
            named = assigned.get(named.id, named)
        variables = value_of(named, namespace)
        if isinstance(variables, list | tuple):
            return list(variables)
    return []


def is_step_counter(value: Any, cell: StepSource, namespace: Mapping[str, Any]) -> bool:
    """Return whether a cell's last value is only the optimizer's count of its steps.

    `apply_gradients` returns it. Keras 3 returns the variable `iterations`, and tf_keras a tensor
    that was read from it. A cell that ends with `optimizer.iterations` itself asks for it.
    """
    call = cell.last.value if isinstance(cell, CellSource) and cell.last is not None else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return False
    if call.func.attr not in _APPLIES:
        return False
    optimizer = value_of(call.func.value, namespace)
    counter = getattr(optimizer, "iterations", None)
    if counter is None or not has_attributes(optimizer, "apply_gradients"):
        return False
    if value is counter:
        return True
    if not isinstance(value, tf.Tensor | tf.Variable) or value.shape.rank != 0:
        return False
    is_read = type(value).__name__ == "_UnreadVariable" or (
        isinstance(value, tf.Tensor) and value.op.type == "ReadVariableOp"
    )
    return is_read and value.dtype == tf.as_dtype(counter.dtype)
