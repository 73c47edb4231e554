"""The interface of JAX and of TensorFlow that the forms of answers use."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from tpunb.errors import TpunbError

Numbers = np.ndarray[Any, Any]


class AnswerError(TpunbError, ValueError):
    """An answer that a puzzle does not take. The message says what it takes."""


class Framework(Protocol):
    """A framework. A nest is an array, or a tuple, list or dict of nests."""

    def traced(self, fn: Callable[..., Any], args: Sequence[Any]) -> Callable[..., Any]:
        """Trace a function, and return what runs and compiles this one program.

        Args:
            fn: The function.
            args: The types of its arguments.

        Raises:
            AnswerError: The host would compute.
        """

    def types(self, nest: Any) -> Any:
        """Return the types of the arrays in a nest."""

    def type_of(self, shape: Sequence[int], dtype: str) -> Any:
        """Return the type of an array."""

    def numbers(self, nest: Any) -> list[Numbers]:
        """Return the arrays in a nest, in order, as float64."""

    def compiling(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which a program is compiled."""
