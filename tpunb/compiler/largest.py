"""The largest batch that fits, by compiling few times."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tpunb._util.freed_memory import giving_back
from tpunb.compiler import libtpu
from tpunb.compiler.compile import chooser_of, cores_of, function_for, targets
from tpunb.compiler.models import is_model
from tpunb.compiler.program import CompileError, TpuProgram
from tpunb.compiler.topologies import Target
from tpunb.compiler.verdict import Settings
from tpunb.virtual.check import current

__all__ = ["LargestBatch", "largest_batch"]

_MOST = 1 << 24
_ROUNDS = 12


@dataclasses.dataclass(frozen=True)
class LargestBatch:
    """The largest batch of a TPU type that fits.

    Attributes:
        tpu: The type.
        per_replica: Examples of a replica; 0 where not one fits.
        batch: The global batch.
        program: What it compiles to; of one that does not fit where none does.
        tried: The batches of a replica that were compiled, with the peak in bytes a core
            where the compiler gave it, and whether they fit.
    """

    tpu: str
    per_replica: int
    batch: int
    program: TpuProgram
    tried: tuple[tuple[int, int | None, bool], ...]

    def __str__(self) -> str:
        if not self.per_replica:
            return f"{self.tpu}: not even one example a replica fits."
        return f"{self.tpu}: {self.batch:,} examples, {self.per_replica:,} a replica."


@giving_back()
def largest_batch(
    fn: Any,
    *specs: Any,
    tpu: str | Sequence[str] | None = None,
    strategy: Any = None,
    step: int = 8,
    timeout: float = 300,
    progress: Callable[[str], None] | None = None,
) -> LargestBatch | tuple[LargestBatch, ...]:
    """Finds the largest batch that fits into the memory of a TPU.

    The function is compiled with a few sizes: memory grows almost in proportion to the
    batch, so that each compilation tells which size to try next.

    Args:
        fn: What `tpunb.compile` takes.
        *specs: Its arguments; the first size of each tensor with the same first size as
            the first of them is the batch, and its value where the search begins. It may
            be None.
        tpu: A TPU type, or several; by default the strategy's.
        strategy: As for `tpunb.compile`.
        step: The batch of a replica is a multiple of it.
        timeout: Seconds that one compilation may take.
        progress: Is called with a sentence about what is done next.

    Returns:
        The batch; for several types one of each.

    Raises:
        CompileError: It does not compile for another reason than memory, or no argument
            has a batch.
        CompilerUnavailableError: The compiler is not installed.
    """
    libtpu.start()
    strategy = strategy or current()
    kinds = targets(tpu, strategy)
    settings = Settings(
        chooser_of(fn), timeout=timeout, details=False, progress=progress or (lambda _: None)
    )
    # A model takes its global batch, a replica function that of a replica.
    whole = is_model(fn) or is_model(getattr(fn, "__self__", None))
    traced_on = cores_of(strategy)[0] if whole else 1
    found = []
    for kind in kinds:
        search = _Search(fn, specs, strategy, kind, settings, step, traced_on)
        found.append(search.run())
    return found[0] if tpu is None or isinstance(tpu, str) else tuple(found)


class _Search:
    """Tries sizes between one that fits and one that does not."""

    def __init__(
        self,
        fn: Any,
        specs: Sequence[Any],
        strategy: Any,
        kind: Target,
        settings: Settings,
        step: int,
        times: int,
    ) -> None:
        self._fn, self._specs, self._strategy = fn, specs, strategy
        self._kind, self._settings = kind, settings
        self._step, self._times = step, times
        self._size = _batch_of(specs)
        self._tried: dict[int, TpuProgram] = {}

    def run(self) -> LargestBatch:
        """The largest size that fits."""
        size = self._rounded((self._size or self._step * self._times) // self._times)
        for _ in range(_ROUNDS):
            self._try(size)
            following = self._next()
            if following is None:
                break
            size = following
        return self._result()

    def _try(self, size: int) -> None:
        self._settings.progress(f"a batch of {size:,} a replica on {self._kind.tpu.name}")
        specs = _with_batch(self._specs, self._size, size * self._times)
        function = function_for(self._fn, specs, self._strategy)
        program = function.on(self._kind, self._settings)
        if program.unknown or any(error.code != "memory" for error in program.errors):
            program.raise_if_refused()
        self._tried[size] = program

    def _next(self) -> int | None:
        """The size to try next; None where the answer is known."""
        good = max((size for size, one in self._tried.items() if one.ok), default=0)
        bad = min((size for size, one in self._tried.items() if not one.ok), default=0)
        if bad and bad - good <= self._step:
            return None
        if good >= _MOST:
            return None
        guess = self._guess() or (2 * good if not bad else (good + bad) // 2)
        lowest = good + self._step
        highest = bad - self._step if bad else max(16 * good, lowest)
        return min(max(self._rounded(guess), lowest), highest)

    def _guess(self) -> int:
        """Where a straight line through the peaks meets the limit; 0 where there is none."""
        peaks = sorted(
            (size, one.memory.peak) for size, one in self._tried.items() if one.memory is not None
        )
        if len(peaks) < 2:
            return 0
        limit = self._kind.hardware.usable_bytes
        near = sorted(peaks, key=lambda one: abs(one[1] - limit))[:2]
        (small, low), (large, high) = sorted(near)
        slope = (high - low) / (large - small)
        return int(small + (limit - low) / slope) if slope > 0 else 0

    def _rounded(self, size: int) -> int:
        return max(size // self._step * self._step, self._step)

    def _result(self) -> LargestBatch:
        good = max((size for size, one in self._tried.items() if one.ok), default=0)
        program = self._tried[good or min(self._tried)]
        batch = good * self._kind.replicas
        return LargestBatch(
            self._kind.tpu.name,
            good,
            batch,
            dataclasses.replace(program, largest_batch=batch),
            tuple(
                (size, one.memory.peak if one.memory else None, one.ok)
                for size, one in sorted(self._tried.items())
            ),
        )


def _batch_of(specs: Sequence[Any]) -> int | None:
    """The batch in the arguments; None where it is open."""
    for value in tf.nest.flatten(_specs(specs)):
        shape = getattr(value, "shape", None)
        if shape is not None and len(shape):
            return None if shape[0] is None else int(shape[0])
    raise CompileError("None of the arguments has a batch.", fix="Pass a tf.TensorSpec([None, …]).")


def _with_batch(specs: Sequence[Any], before: int | None, size: int) -> list[Any]:
    """The arguments with another batch."""

    def resized(value: Any) -> Any:
        shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
        if shape is None or dtype is None or not len(shape) or shape[0] != before:
            return value
        return tf.TensorSpec([size, *shape[1:]], dtype)

    return list(tf.nest.map_structure(resized, _specs(specs)))


def _specs(specs: Sequence[Any]) -> list[Any]:
    """A dataset as its elements are."""
    if len(specs) == 1 and hasattr(specs[0], "element_spec"):
        spec = specs[0].element_spec
        return list(spec) if isinstance(spec, tuple) else [spec]
    return list(specs)
