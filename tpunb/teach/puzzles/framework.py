"""The interface of JAX and of TensorFlow that the forms of answers use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from tpunb.compiler.ask.compile_settings import CompileOptions
from tpunb.compiler.program import TpuProgram
from tpunb.errors import TpunbError

Numbers = np.ndarray[Any, Any]
Traced = Mapping[str, Any]
"""A traced program as plain data, which a process without the answer's code runs and compiles."""


class AnswerError(TpunbError, ValueError):
    """An answer that a puzzle does not take. The message says what it takes."""


class Framework(Protocol):
    """A framework, and the cores on which its programs run.

    Attributes:
        tpu: The TPU type that the compiler compiles for.
        cores: The number of cores that compute together.
    """

    tpu: ClassVar[str]
    cores: ClassVar[int]

    def traced(self, fn: Callable[..., Any], args: Sequence[Any]) -> Traced:
        """Trace a function, once.

        Args:
            fn: The function.
            args: Its arguments: nests of arrays of NumPy on all cores together, whose numbers do
                not count.

        Raises:
            AnswerError: The program does something that no TPU does.
        """

    def runner(self, traced: Traced, leaves: Sequence[Numbers]) -> Callable[..., list[Numbers]]:
        """Return a function that runs a program, and returns the results as float64.

        Args:
            traced: The program.
            leaves: The arrays in its arguments.

        Raises:
            AnswerError: The program has other arguments, or works outside of the TPU.
        """

    def compiled(
        self, traced: Traced, leaves: Sequence[Numbers], options: CompileOptions
    ) -> TpuProgram:
        """Return the program as the TPU's compiler compiles it."""
