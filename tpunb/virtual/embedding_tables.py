"""The tables of `tf.tpu.experimental.embedding`, which are in hardware that only a TPU has."""

from __future__ import annotations

from tpunb.errors.code_problems import Problem
from tpunb.errors.explain import explain

__all__ = ["no_embedding_tables"]

_CODE = "48"  # in the catalogue


def no_embedding_tables(error: Exception, place: tuple[str, int] | None) -> Problem:
    """The finding that a function needs embedding tables of a TPU.

    TensorFlow asks for their kernels already while it traces.

    Args:
        error: What tracing raised.
        place: The file and the line of the function.

    Raises:
        Exception: The error, if it is another one.
    """
    known = explain(error)
    if known is None or known.code != _CODE:
        raise error
    file, line = place or ("", None)
    return Problem("unsupported-op", line, file, known.cause, known.fix, known.code)
