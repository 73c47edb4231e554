"""Whether the models and optimizers of a cell are ready to be trained by it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tpunb._util.attributes import has_attributes

from ..errors import CellError
from .capture import Captured
from .source import StepSource

_APPLIES = {"apply_gradients": 0, "apply": 1, "minimize": 1}


def make_ready(
    cell: StepSource, captured: Captured, namespace: dict[str, Any], strategy: Any
) -> None:
    """Builds optimizers that are not built, where the replicas' variables belong.

    Raises:
        CellError: A model that the cell trains was made outside of the scope.
    """
    optimizers = {n: v for n, v in captured.closed.items() if _is_optimizer(v)}
    models = {n: v for n, v in captured.closed.items() if _is_model(v) and n not in optimizers}
    if not optimizers:
        return
    for name, made in (*models.items(), *optimizers.items()):
        _refuse_outside(name.partition(" in ")[0], made, strategy)
    for name, optimizer in optimizers.items():
        if getattr(optimizer, "built", True) is False or _is_unbuilt_legacy(optimizer):
            variables = _trained(cell, name, namespace) or _only_models(models)
            if variables:
                with strategy.scope():
                    optimizer.build(variables)


def _is_optimizer(value: Any) -> bool:
    return has_attributes(value, "apply_gradients", "learning_rate")


def _is_model(value: Any) -> bool:
    if isinstance(value, type):
        return False
    return isinstance(value, tf.Module) or has_attributes(value, "trainable_variables")


def _is_unbuilt_legacy(optimizer: Any) -> bool:
    """Whether this is a tf_keras optimizer before its first step."""
    return getattr(optimizer, "_built", None) is False


def _variables(model: Any) -> list[Any]:
    """A model's trainable variables; the state of an optimizer."""
    try:
        return list(model.variables if _is_optimizer(model) else model.trainable_variables)
    except (AttributeError, TypeError, ValueError):  # not built yet, or none of its own
        return []


def _refuse_outside(name: str, model: Any, strategy: Any) -> None:
    if strategy.num_replicas_in_sync == 1:
        return
    for variable in _variables(model):
        # Keras 3 wraps TensorFlow's variables in its own.
        inner = variable if isinstance(variable, tf.Variable) else getattr(variable, "value", None)
        if isinstance(inner, tf.Variable) and not isinstance(
            inner, tf.distribute.DistributedValues
        ):
            raise CellError(
                f"`{name}` was made outside of the strategy's scope: its variables have no copy on "
                "each replica, and the cell cannot train them.",
                fix="Make models and optimizers inside of `with strategy.scope():`.",
            )


def _only_models(models: dict[str, Any]) -> list[Any]:
    """The variables of the cell's models, if there is no doubt which these are."""
    each = {id(model): model for model in models.values()}
    return _variables(next(iter(each.values()))) if len(each) == 1 else []


def _trained(cell: StepSource, optimizer: str, namespace: dict[str, Any]) -> list[Any]:
    """The variables that the cell names where it applies gradients."""
    for call in _calls(cell):
        function = call.func
        if not isinstance(function, ast.Attribute) or _dotted(function.value) != optimizer:
            continue
        place = _APPLIES.get(function.attr)
        if place is None:
            continue
        named = _argument(call, place)
        found = _value(named, cell, namespace) if named is not None else None
        if isinstance(found, list | tuple):
            return list(found)
    return []


def _calls(cell: StepSource) -> Iterator[ast.Call]:
    for statement in cell.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Call):
                yield node


def _argument(call: ast.Call, place: int) -> ast.expr | None:
    """The variables of `apply(gradients, variables)` or `apply_gradients(zip(_, variables))`."""
    if len(call.args) <= place:
        return None
    found = call.args[place]
    if place:
        return found
    is_zip = isinstance(found, ast.Call) and _dotted(found.func) == "zip"
    return (
        found.args[1] if isinstance(found, ast.Call) and is_zip and len(found.args) == 2 else None
    )


def _dotted(node: ast.expr) -> str:
    """`a.b.c` as text; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = _dotted(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return ""


def _value(node: ast.expr, cell: StepSource, namespace: dict[str, Any]) -> Any:
    """What a dotted name stands for; names of the cell's own are followed once."""
    dotted = _dotted(node)
    if not dotted:
        return None
    first, *rest = dotted.split(".")
    if first in cell.names.assigned and not rest:
        assigned = _assigned(cell, first)
        return _value(assigned, cell, namespace) if assigned is not None else None
    value = namespace.get(first)
    for part in rest:
        value = getattr(value, part, None)
    return value


def _assigned(cell: StepSource, name: str) -> ast.expr | None:
    """What the cell assigns to a name, if it is another dotted name."""
    for statement in cell.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                target = node.targets[0]
                if (
                    isinstance(target, ast.Name)
                    and target.id == name
                    and "." in _dotted(node.value)
                ):
                    return node.value
    return None
