"""A saved Keras model, with the arguments to compile one of its steps with."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from typing import Any

from tpunb.compiler.program import CompileError

_OR_FUNCTION = "Or compile a Python function: FILE.py::FUNCTION."


def saved_model_call(
    path: str | os.PathLike[str],
    batch: int,
    sizes: Sequence[int] = (),
    step: str = "",
) -> tuple[Any, list[Any]]:
    """Load a model from a `.keras` file.

    Args:
        path: The file.
        batch: The global batch.
        sizes: The sizes of an example, such as `[224, 224, 3]`, for a model whose input has open
            sizes. By default, the sizes that the model declares.
        step: `"fit"`, `"evaluate"` or `"predict"`. By default, `"fit"` for a model that was saved
            with its optimizer and loss, and `"predict"` for any other model.

    Returns:
        The function for `tpunb.compile`, and its arguments.

    Raises:
        CompileError: Keras is not installed or cannot load the file, or the arguments do not follow
            from the model.
    """
    try:
        keras: Any = importlib.import_module("keras")
    except ImportError as error:
        raise CompileError(
            f"{os.fspath(path)} needs Keras, which cannot be imported: {error}.",
            fix="pip install keras tensorflow",
        ) from None
    try:
        model = keras.models.load_model(path)
    except Exception as error:  # Keras raises many kinds
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CompileError(
            f"Keras {keras.__version__} cannot load {os.fspath(path)}: {first}",
            fix=f"Save it again with model.save(...). {_OR_FUNCTION}",
        ) from None
    trains = getattr(model, "optimizer", None) is not None and getattr(model, "loss", None)
    step = step or ("fit" if trains else "predict")
    if step != "predict" and not trains:
        raise CompileError(
            f"The model {model.name} was saved without an optimizer and a loss, so it has no "
            f"{step}.",
            fix="Call model.compile(...) before you save it, or use --step predict.",
        )
    inputs = _inputs(keras, model, batch, sizes)
    method = model if step == "fit" else getattr(model, step)
    if step == "predict":
        return method, [inputs]
    return method, [inputs, _targets(keras, model, batch, inputs)]


def _spec(keras: Any, shape: Sequence[int], dtype: str) -> Any:
    """Return a tensor's shape and type for the backend in use."""
    if keras.backend.backend() == "jax":
        jax: Any = importlib.import_module("jax")
        return jax.ShapeDtypeStruct(tuple(shape), dtype)
    import tensorflow as tf

    return tf.TensorSpec(list(shape), dtype)


def _inputs(keras: Any, model: Any, batch: int, sizes: Sequence[int]) -> Any:
    """Return the shapes of a batch of a model's inputs.

    Raises:
        CompileError: A size is open.
    """
    declared = getattr(model, "input", None) if getattr(model, "built", False) else None
    if sizes:
        several = declared is not None and len(keras.tree.flatten(declared)) != 1
        if several:
            raise CompileError(
                f"The model {model.name} has several inputs, and --input names the size of one.",
                fix=_OR_FUNCTION,
            )
        dtype = "float32" if declared is None else keras.tree.flatten(declared)[0].dtype
        spec = _spec(keras, (batch, *sizes), dtype)
        return spec if declared is None else keras.tree.map_structure(lambda _: spec, declared)
    if declared is None:
        raise CompileError(
            f"The model {model.name} does not say the size of its input.",
            fix=f"Add --input 224,224,3, the sizes of an example. {_OR_FUNCTION}",
        )

    def spec_of(tensor: Any) -> Any:
        if None in tensor.shape[1:]:
            raise CompileError(
                f"The input {tensor.name} of the model {model.name} has open sizes: "
                f"{tuple(tensor.shape[1:])}.",
                fix=f"Add --input 224,224,3, the sizes of an example. {_OR_FUNCTION}",
            )
        return _spec(keras, (batch, *tensor.shape[1:]), tensor.dtype)

    return keras.tree.map_structure(spec_of, declared)


def _targets(keras: Any, model: Any, batch: int, inputs: Any) -> Any:
    """Return the shape of a batch of targets, which follows from the output and the loss.

    Raises:
        CompileError: The model has several outputs, or several losses.
    """
    loss = model.loss
    output = model.compute_output_shape(
        keras.tree.map_structure(lambda spec: tuple(spec.shape), inputs)
    )
    if not isinstance(loss, list | dict) and all(
        size is None or isinstance(size, int) for size in output
    ):
        name = loss if isinstance(loss, str) else getattr(loss, "name", "")
        name = name or getattr(loss, "__name__", "")
        if "sparse" in name:
            return _spec(keras, (batch, *output[1:-1]), "int32")
        return _spec(keras, (batch, *output[1:]), "float32")
    raise CompileError(
        f"The targets of the model {model.name} do not follow from its outputs and losses.",
        fix=f"Use --step predict. {_OR_FUNCTION}",
    )
