"""A function as the compiler gets it: how it is traced, and with other batches than its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from tpunb.compiler.ask.compile_settings import Settings
from tpunb.compiler.ask.topologies import Target
from tpunb.compiler.program import TpuProgram


@dataclasses.dataclass(frozen=True)
class AnyBatch:
    """A function with any batch.

    Attributes:
        lower: Lowers it with given arguments.
        resized: Returns its arguments with another batch.
        before: The batch of its own arguments; None if that is open.
        times: The batch of the arguments, as a multiple of a replica's batch.
        replicas: The number of replicas of a JAX function, from its arguments; otherwise None.
        whole: Whether the batch is for all replicas of the TPU type, like a model's.
        is_batch: Returns whether that size is known to be a batch. A JAX function may have layers
            there, for example.
    """

    lower: Callable[[Sequence[Any], Settings], Any]
    resized: Callable[[int], Sequence[Any]]
    before: int | None
    times: int
    replicas: int | None = None
    whole: bool = False
    is_batch: Callable[[], bool] = lambda: True

    def on(self, kind: Target, per_replica: int, settings: Settings) -> TpuProgram:
        """Compile the function for a TPU type, with a given batch of each replica."""
        arguments = self.resized(per_replica * self.times)
        program: TpuProgram = self.lower(arguments, settings).on(kind, settings)
        return program


@dataclasses.dataclass(frozen=True)
class Lowerer:
    """How a function is traced and lowered.

    Attributes:
        fn: The function, with its arguments by name.
        lower: Lowers it with given arguments.
        args: The function's own arguments.
        strategy: The strategy whose replicas run it; None for a JAX function.
        by_jax: Whether JAX traces it.
        note: A sentence if both frameworks could trace it; otherwise empty.
        any_batch: Returns the function with any batch, for a target and settings. It raises a
            `CompileError` if no argument has a batch.
    """

    fn: Any
    lower: Callable[[Sequence[Any], Settings], Any]
    args: Sequence[Any]
    strategy: Any
    by_jax: bool
    note: str
    any_batch: Callable[[Target, Settings], AnyBatch]
