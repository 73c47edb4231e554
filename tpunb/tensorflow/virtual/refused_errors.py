"""Exceptions of TensorFlow's types that name the rule by which a program is refused."""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf


@functools.cache
def error_of_rule(error_type: Any, rule: str) -> Any:
    """Return an exception type like another, whose attribute `code` is the name of a rule.

    AutoGraph and Keras replace an exception by a new one of its type, with a longer message. An
    attribute of the exception would be lost there, and the type's attribute is not.

    Args:
        error_type: TensorFlow's type of the exception, which also names the new type.
        rule: The rule's name.
    """
    attributes: dict[str, Any] = {
        "__doc__": error_type.__doc__,
        "__module__": error_type.__module__,
        "__reduce__": functools.partialmethod(_reduced, error_type),
        "code": rule,
    }
    if not issubclass(error_type, tf.errors.OpError):
        # AutoGraph raises a StagingError instead of any other type that is not TensorFlow's or
        # Python's own, unless it has this constructor (TensorFlow 2.21, autograph/pyct/errors).
        attributes["__init__"] = Exception.__init__
    return type(error_type.__name__, (error_type,), attributes)


def _reduced(error: Any, error_type: Any) -> tuple[Any, ...]:
    """Return how a copy of an exception is made, because `pickle` does not find its type."""
    values = error.args
    if isinstance(error, tf.errors.OpError):
        values = error.node_def, error.op, error.message
    return _made, (error_type, error.code, values)


def _made(error_type: Any, rule: str, values: tuple[Any, ...]) -> Any:
    return error_of_rule(error_type, rule)(*values)
