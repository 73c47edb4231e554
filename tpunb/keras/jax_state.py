"""What Keras's variables hold with the JAX backend, within an epoch too."""

from __future__ import annotations

from typing import Any


def is_of_jax(model: Any) -> bool:
    """Whether a model is Keras's with the JAX backend."""
    return hasattr(model, "_get_jax_state")


def value_of(variable: Any, model: Any) -> Any:
    """The array that a variable of a model's optimizer or metrics stands for.

    Within an epoch the variable itself holds nothing, and the model has the arrays of its last
    step. The next step takes them: what is to be kept has to be copied.
    """
    if model._jax_state_synced:
        return variable.value
    held = (
        *zip(model.metrics_variables, model._jax_state["metrics_variables"], strict=True),
        *zip(model.optimizer.variables, model._jax_state["optimizer_variables"], strict=True),
    )
    return next(value for one, value in held if one is variable)
