"""What forms of answers need of JAX or TensorFlow."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

Numbers = np.ndarray[Any, Any]


class Framework(Protocol):
    """A framework. A nest is an array, or a tuple, list or dict of nests."""

    def traced(
        self, fn: Callable[..., Any], args: Sequence[Any], needs: Sequence[str] = ()
    ) -> Callable[..., Any]:
        """Trace a function, and return what runs and compiles this one program.

        Args:
            fn: The function.
            args: The types of its arguments.
            needs: Primitives that the program has to have.

        Raises:
            AnswerError: The host would compute, or a primitive is missing.
        """

    def types(self, nest: Any) -> Any:
        """Return the types of the arrays in a nest."""

    def type_of(self, shape: Sequence[int], dtype: str) -> Any:
        """Return the type of an array."""

    def numbers(self, nest: Any) -> list[Numbers]:
        """Return the arrays in a nest, in order, as float64."""

    def compiling(self, needs: Sequence[str]) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which a program with these primitives is compiled."""
